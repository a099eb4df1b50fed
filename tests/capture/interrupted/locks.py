"""The locks that smelt makes, so that one can see whether any is held. Nothing of smelt is imported here."""

import sys
import threading
from collections.abc import Callable
from typing import Any

_made: list[tuple[str, Any]] = []


def watch_locks() -> None:
    """Note every lock that smelt makes from now on; to be called before it is imported."""

    def watched(make: Callable[[], Any]) -> Callable[[], Any]:
        def noting() -> Any:
            lock, caller = make(), sys._getframe(1)
            if "smelt" in caller.f_globals.get("__name__", ""):
                _made.append((f"{caller.f_globals['__name__']}:{caller.f_lineno}", lock))
            return lock

        return noting

    for name in ("Lock", "RLock"):
        setattr(threading, name, watched(getattr(threading, name)))


def held_locks() -> list[str]:
    return [name for name, lock in _made if (lock.locked() if hasattr(lock, "locked") else lock._is_owned())]


def forget_locks(count: int = 0) -> int:
    """Forget the locks noted after the first `count`, and say how many there are."""
    if count:
        del _made[count:]
    return len(_made)
