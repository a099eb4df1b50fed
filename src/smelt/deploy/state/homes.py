"""Where Python keeps a value: its container and key, which are the same by whatever path it is read.

    opt.param_groups[0]["lr"], scheduler.optimizer.param_groups[0]["lr"]   →   (id of the group, "lr")
    group["betas"][0]                                                      →   (id of the group, "betas", 0)
"""

import inspect
from collections.abc import Callable
from types import CellType, FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any

from smelt.capture.driver.whole_call import TARGET
from smelt.capture.model.source import Accessor, identity_of

Home = tuple[Any, ...]
Path = tuple[Accessor, ...]

_UNKNOWN = object()


class Homes:
    """Homes of what one exported function reads and writes."""

    def __init__(self, target: Callable[..., Any]) -> None:
        self._target = target
        self._held: list[Any] = []  # objects whose ids are part of homes
        self._known: dict[Any, tuple[Home, Any]] = {}

    def of(self, path: Path) -> Home:
        """The home of what a path leads to; the path itself where no object of Python holds it."""
        return self._followed(path)[0]

    def value(self, path: Path, default: Any) -> Any:
        """What is there now."""
        value = self._followed(path)[1]
        return default if value is _UNKNOWN else value

    def inside(self, owner: Path, key: Any) -> Home:
        """The home of an entry or attribute of what a path leads to."""
        value = self._followed(owner)[1]
        if type(value) is CellType:
            return self.of((*owner, ("cell",)))
        if isinstance(value, list):
            return self.of((*owner, ("item", key)))
        return self.of((*owner, ("key" if isinstance(value, dict) else "attr", key)))

    def _followed(self, path: Path) -> tuple[Home, Any]:
        identity = tuple(map(identity_of, path))
        followed = self._known.get(identity)
        if followed is None:
            self._held.append(path)
            followed = self._known[identity] = self._step(path) or (identity, _UNKNOWN)
        return followed

    def _step(self, path: Path) -> tuple[Home, Any] | None:
        """The home and the value at the end of a path, from those at the end of all but its last part."""
        if len(path) == 1:
            kind, root = path[0]
            if kind == "slot" and root != TARGET:
                return None  # an argument
            return tuple(map(identity_of, path)), self._target if kind == "slot" else root
        home, value = self._followed(path[:-1])
        if value is _UNKNOWN:
            return None
        kind, key = (*path[-1], None)[:2]
        own = value.__dict__ if kind == "attr" and key in (getattr(value, "__dict__", None) or ()) else value
        self._held.append(own)
        named = (key,) if type(key) is str else identity_of((key,)) if kind in ("key", "item") else (kind, key)
        home = (*home, *named) if type(value) is tuple else (id(own), *named)
        return home, _read(value, kind, key)


def _read(value: Any, kind: str, key: Any) -> Any:
    if kind == "attr":
        attribute = inspect.getattr_static(value, key, _UNKNOWN)
        of_class = isinstance(attribute, MemberDescriptorType | GetSetDescriptorType)
        return attribute.__get__(value) if of_class else attribute
    if kind == "dict":
        return getattr(value, "__dict__", _UNKNOWN)
    if kind == "key":
        return dict.get(value, key, _UNKNOWN) if isinstance(value, dict) else _UNKNOWN
    if kind == "item":
        return value[key] if type(value) in (list, tuple) and key < len(value) else _UNKNOWN
    if kind == "cell":
        return value.cell_contents if type(value) is CellType else _UNKNOWN
    if kind == "globals":
        return value.__globals__ if type(value) is FunctionType else _UNKNOWN
    if kind == "closure":
        return value.__closure__[key] if type(value) is FunctionType and value.__closure__ else _UNKNOWN
    return _UNKNOWN
