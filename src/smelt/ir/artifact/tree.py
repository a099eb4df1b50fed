"""Trees of arguments and results: how leaves are put together to what a function takes and returns.

    (x, {"mask": m})   →   Tree("tuple", items=(LEAF, Tree("dict", keys=("mask",), items=(LEAF,)))), leaves [x, m]

Leaves are numbered from left to right. A tree is plain data: a file stores it, and it is read where there is no torch.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from smelt.base.fast_dataclass import dataclass

KINDS = ("leaf", "tuple", "list", "dict", "record")


class Record(dict[str, Any]):
    """What stands for an object of a class with named fields: items, which are attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


@dataclass(frozen=True, slots=True)
class Tree:
    """A leaf, or a container of trees. A `record` is an object with named fields; `name` is that of its class."""

    kind: str = "leaf"
    keys: tuple[str | int, ...] = ()
    items: tuple["Tree", ...] = ()
    name: str = ""

    @property
    def leaves(self) -> int:
        return 1 if self.kind == "leaf" else sum(item.leaves for item in self.items)

    def names(self, prefix: str) -> Iterator[str]:
        """How the leaves are called: `args[0]`, `cache.keys[1]`."""
        if self.kind == "leaf":
            yield prefix
            return
        keyed = self.kind in ("dict", "record")
        for key, item in zip(self.keys if keyed else range(len(self.items)), self.items, strict=True):
            named = isinstance(key, str) and key.isidentifier()
            inner = f"{prefix}.{key}" if named else f"{prefix}[{key!r}]"
            yield from item.names(inner if prefix else str(key))

    def build(self, leaves: Iterator[Any]) -> Any:
        """The object that the leaves make."""
        if self.kind == "leaf":
            return next(leaves)
        items = [item.build(leaves) for item in self.items]
        if self.kind == "tuple":
            return tuple(items)
        if self.kind == "list":
            return items
        kind: Any = Record if self.kind == "record" else dict
        return kind(zip(self.keys, items, strict=True))

    def flatten(self, value: Any, where: str = "the arguments") -> Iterator[Any]:
        """The leaves of an object of this form; `ValueError` if it has another."""
        if self.kind == "leaf":
            yield value
            return
        for item, (name, inner) in zip(self.items, self._parts(value, where), strict=True):
            yield from item.flatten(inner, name)

    def _parts(self, value: Any, where: str) -> list[tuple[str, Any]]:
        if self.kind in ("tuple", "list"):
            if not isinstance(value, list | tuple) or len(value) != len(self.items):
                raise ValueError(f"{where} is a {self.kind} of {len(self.items)} items, not {_described(value)}")
            return [(f"{where}[{number}]", item) for number, item in enumerate(value)]
        parts_by_key = value if isinstance(value, dict) else getattr(value, "__dict__", {})
        if set(parts_by_key) != set(self.keys):
            raise ValueError(f"{where} has {', '.join(map(str, self.keys)) or 'nothing'}, not {_described(value)}")
        return [(f"{where}.{key}", parts_by_key[key]) for key in self.keys]

    def to_data(self) -> Any:
        """As lists and strings, for a manifest."""
        return [self.kind, list(self.keys), [item.to_data() for item in self.items], self.name]

    @classmethod
    def from_data(cls, data: Any) -> "Tree":
        """The tree that a manifest holds; `ValueError` if it holds something else."""
        if not isinstance(data, list) or len(data) != 4:
            raise ValueError("a tree is a list of four")
        kind, keys, items, name = data
        plain = isinstance(keys, list) and all(isinstance(key, str | int) for key in keys)
        if kind not in KINDS or not plain or not isinstance(items, list) or not isinstance(name, str):
            raise ValueError("a tree has a kind, keys, items and a name")
        keyed = kind in ("dict", "record")
        if len(keys) != (len(items) if keyed else 0) or (kind == "leaf" and items):
            raise ValueError("a tree has a key for each item of a dict, and none else")
        return cls(kind, tuple(keys), tuple(cls.from_data(item) for item in items), name)


LEAF = Tree()


def _described(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, dict):
        return f"a dict of {', '.join(map(str, value)) or 'nothing'}"
    return f"a {type(value).__name__}"


def tree_of(value: Any) -> tuple[Tree, list[Any]]:
    """The tree of an object, and its leaves. Whatever is no tuple, list, dict or object of named fields is a leaf."""
    leaves: list[Any] = []
    return _tree(value, leaves), leaves


def _tree(value: Any, leaves: list[Any]) -> Tree:
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return Tree("record", tuple(value._fields), _trees(value, leaves), type(value).__name__)
    if type(value) in (tuple, list):
        return Tree(type(value).__name__, (), _trees(value, leaves))
    if isinstance(value, dict) and all(isinstance(key, str | int) for key in value):
        kind = "dict" if type(value) is dict else "record"
        return Tree(kind, tuple(value), _trees(list(value.values()), leaves), "" if kind == "dict" else _named(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [each.name for each in dataclasses.fields(value)]
        return Tree("record", tuple(fields), _trees([getattr(value, name) for name in fields], leaves), _named(value))
    leaves.append(value)
    return LEAF


def _named(value: Any) -> str:
    return type(value).__name__


def _trees(values: Sequence[Any], leaves: list[Any]) -> tuple[Tree, ...]:
    return tuple(_tree(value, leaves) for value in values)
