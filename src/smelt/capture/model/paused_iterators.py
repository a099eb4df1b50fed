"""Loops that a break leaves in the middle: the iterator as an object that says where it stands.

Python's own iterators keep that to themselves, so what was captured behind a break could not know the next item. Where
only the interpreter's stack holds the iterator, nobody can tell a `PausedIterator` one from Python's:

    for layer in self.layers:      Paused(over=self.layers, part="forward", position=1)  →  the layers left are unrolled
        print(...)

A loop that breaks every time would be captured anew for every position; from the second time on its place is not looked
at, and Python takes the step (`REASONS["B023"]`).
"""

import collections
import itertools
from typing import Any

PLACE = "place in the loop"
CHANGED: dict[type, str] = {
    dict: "dictionary changed size during iteration",
    collections.OrderedDict: "OrderedDict mutated during iteration",
}
_DICT_PARTS = ("keys", "values", "items")


class PausedIterator:
    """An iterator over a list, tuple, range, string or dict: `position` items have been taken."""

    __slots__ = ("over", "part", "position", "size")

    def __init__(self, over: Any, part: str, position: int, size: int | None = None) -> None:
        self.over, self.part, self.position = over, part, position
        self.size = len(over) if size is None else size

    def __iter__(self) -> "PausedIterator":
        return self

    def __next__(self) -> Any:
        item = self._item()
        self.position += 1
        return item

    def _item(self) -> Any:
        if self.part in _DICT_PARTS:
            base: Any = collections.OrderedDict if isinstance(self.over, collections.OrderedDict) else dict
            if len(self.over) != self.size:
                raise RuntimeError(CHANGED[base])
            for item in itertools.islice(getattr(base, self.part)(self.over), self.position, None):
                return item
            raise StopIteration
        at = self.position if self.part == "forward" else self.size - 1 - self.position
        if not 0 <= at < len(self.over):
            self.over, self.size = (), 0  # once at its end it stays there
            raise StopIteration
        return self.over[at]


class PausedZip:
    """`enumerate`, `zip` or `map` over other iterators; `position` is enumerate's counter."""

    __slots__ = ("_real", "function", "kind", "parts", "position", "strict")

    def __init__(self, kind: type, parts: tuple[Any, ...], position: int, function: Any, strict: bool) -> None:
        self.kind, self.parts, self.position, self.function, self.strict = kind, parts, position, function, strict
        self._real: Any = zip(*parts, strict=strict) if kind is zip else map(function, *parts) if kind is map else None

    def __iter__(self) -> "PausedZip":
        return self

    def __next__(self) -> Any:
        if self._real is not None:
            return next(self._real)
        item = next(self.parts[0])
        self.position += 1
        return (self.position - 1, item)
