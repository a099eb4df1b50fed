"""Classes that the captured code defined: what they are made of, and the stand-ins that capture works with."""

from collections import namedtuple
from typing import Any

from smelt.base.fast_dataclass import dataclass
from smelt.capture.model.values import Cell, Mapping, Value


class Member:
    """Stands for a value in the place where a stand-in class holds it."""

    __slots__ = ("__weakref__",)


@dataclass(slots=True, eq=False)
class MadeClass:
    """A class statement that was followed: its bases, the names of its body, and the cell that methods find it by."""

    kind: type
    """The stand-in."""
    bases: list[Value]
    names: Mapping
    cell: Cell | None
    of_namedtuple: tuple[list[Any], dict[str, Any]] | None = None
    """The arguments of `namedtuple`, where that made it."""


def make_namedtuple(args: list[Any], kwargs: dict[str, Any]) -> type:
    """The class that `collections.namedtuple` makes."""
    make: Any = namedtuple
    kind: type = make(*args, **kwargs)
    return kind
