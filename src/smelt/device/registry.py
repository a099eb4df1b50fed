"""Where targets are found by name: `register("cpu", make)` once, `find("cpu")` anywhere.

A target is made when first asked for, since describing a chip may mean asking LLVM or a driver.
"""

from collections.abc import Callable

from smelt import _native
from smelt.base import locks
from smelt.base.errors import SmeltError
from smelt.device.target import Target

_makers: dict[str, Callable[[], Target]] = {}
_made: dict[str, Target] = {}
_lock = locks.lock()


def register(name: str, make: Callable[[], Target]) -> None:
    """Offer a target under `name`; a later registration replaces an earlier one."""
    with _native.Held(_lock):
        _makers[name] = make
        _made.pop(name, None)


def find(name: str) -> Target:
    """The target called `name`, made on first use."""
    with _native.Held(_lock):
        if name not in _made:
            if name not in _makers:
                raise SmeltError("SM030", f"there is no target {name!r}", hint="choose from " + ", ".join(_makers))
            _made[name] = _makers[name]()
        return _made[name]


def names() -> tuple[str, ...]:
    """The targets on offer."""
    return tuple(_makers)
