"""The values that others hold: what the captured code can still come upon.

reachable([frame slot, …])   →   {id(value): value, …}, at whatever depth
"""

from collections.abc import Iterable
from typing import Any

from smelt.capture.model.values import (
    Array,
    Cell,
    Deque,
    Descriptor,
    DictView,
    ExceptionValue,
    Function,
    Instance,
    Iterator,
    Mapping,
    Method,
    Partial,
    Proxy,
    Sequence,
    Super,
    Wrapper,
    ZippedIterator,
)


def reachable(roots: Iterable[Any]) -> dict[int, Any]:
    """The values that `roots` are or hold, at whatever depth, by id."""
    values: dict[int, Any] = {}
    pending = list(roots)
    while pending:
        value = pending.pop()
        if value is None or id(value) in values:
            continue
        values[id(value)] = value
        for name in _PARTS.get(type(value), ()):
            part = getattr(value, name)
            if isinstance(part, dict):
                pending.extend(part.values())
            else:
                pending.extend(part if isinstance(part, list | tuple) else (part,))
    return values


_PARTS: dict[type, tuple[str, ...]] = {
    Sequence: ("raw_items",),
    Deque: ("raw_items",),
    Mapping: ("items", "owner"),
    Instance: ("members", "contents"),
    ExceptionValue: ("members", "args"),
    Array: ("tensor",),
    Wrapper: ("members",),
    Cell: ("contents",),
    Method: ("function", "receiver"),
    Partial: ("function", "args", "keywords"),
    Descriptor: ("parts",),
    Function: ("closure", "defaults", "keyword_defaults", "annotations", "members", "overrides"),
    Iterator: ("over",),
    ZippedIterator: ("parts", "function"),
    DictView: ("mapping",),
    Proxy: ("mapping",),
    Super: ("receiver",),
}
