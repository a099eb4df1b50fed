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
    new = threading.RLock()
    _all.add(new)
    return new


def free(taken: Any) -> None:
    """Make a lock of a thread that is gone free; one that this thread has is left to it."""
    if not taken._is_owned():
        taken._at_fork_reinit()


def whole_at_fork(lock: Any, *, is_inner: bool = False) -> None:
    """Let a process fork only while nobody else has the lock, or after a while: for code that a child cannot mend.

    `is_inner`: threads take it while they have another one of these. A fork takes locks in the order that they do: else
    each would have what the other waits for."""
    (_inner if is_inner else _outer).append(lock)


_outer: list[Any] = []
_inner: list[Any] = []
_forking = threading.local()


def _before_fork() -> None:
    taken: list[Any] = []
    _forking.taken = taken
    for each in (*_outer, *_inner):
        if each.acquire(timeout=_PATIENCE):
            taken.append(each)


def _after_fork() -> None:
    taken, _forking.taken = getattr(_forking, "taken", []), []
    for each in reversed(taken):
        each.release()


def _free_all() -> None:
    for each in list(_all):
        free(each)


# One handler for all locks. One for each, registered with its lock, runs after a fork that it did not see begin.
os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
os.register_at_fork(after_in_child=_free_all)
