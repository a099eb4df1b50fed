"""Locks that neither their own thread nor a child process waits for in vain.

    _lock = locks.lock()

The thread that has one may ask for it again: a finalizer or a signal handler can run compiled code between two steps of
the compiler. And a process may fork while another thread has one: in the child that thread is gone, so there it is
free. What a lock guards is changed by single steps, so it is whole whenever that happens.
"""

import os
import threading
import weakref
from typing import Any

_PATIENCE = 10.0  # seconds

_all: "weakref.WeakSet[Any]" = weakref.WeakSet()


def lock() -> Any:
    """A new lock."""
    made = threading.RLock()
    _all.add(made)
    return made


def free(taken: Any) -> None:
    """Make a lock of a thread that is gone free; one that this thread has is left to it."""
    if not taken._is_owned():
        taken._at_fork_reinit()


def whole_at_fork(lock: Any) -> None:
    """Let a process fork only while nobody else has the lock, or after a while: for code that a child cannot mend."""
    taken: list[bool] = []

    def release() -> None:
        if taken.pop():
            lock.release()

    os.register_at_fork(
        before=lambda: taken.append(lock.acquire(timeout=_PATIENCE)), after_in_parent=release, after_in_child=release
    )


def _free_all() -> None:
    for each in list(_all):
        free(each)


os.register_at_fork(after_in_child=_free_all)
