"""Where targets are found by name: `register("cpu", make)` once, `find("cpu")` anywhere.

A target is made when first asked for, since describing a chip may mean asking LLVM or a driver.
"""

import threading
from collections.abc import Callable

from smelt.base.errors import SmeltError
from smelt.device.protocol import Target

_makers: dict[str, Callable[[], Target]] = {}
_made: dict[str, Target] = {}
_lock = threading.Lock()


def register(name: str, make: Callable[[], Target]) -> None:
    """Offer a target under `name`; a later registration replaces an earlier one."""
    with _lock:
        _makers[name] = make
        _made.pop(name, None)


def find(name: str) -> Target:
    """The target called `name`, made on first use."""
    with _lock:
        if name not in _made:
            if name not in _makers:
                raise SmeltError("SM030", f"there is no target {name!r}", hint="choose from " + ", ".join(_makers))
            _made[name] = _makers[name]()
        return _made[name]


def names() -> tuple[str, ...]:
    """The targets on offer."""
    return tuple(_makers)
