"""What was recorded, as a tree: a path from the root is a sequence of steps, and sequences share their beginnings.

    root ─ input f32[3] ─ add(v0, number) ─ mul(v1, number) ─ …      a second round walks along, and makes nothing new

A step has all that follows from the steps before it and its own call: how results are laid out, what they share memory
with. So a call that was recorded before costs one look-up, and where a path ends, the programs that were compiled for
it are found without hashing a graph. Numbers are not part of a step: they are operands, in a list beside the path.
"""

from collections.abc import Sequence
from typing import Any

from smelt import _native
from smelt.base.fast_dataclass import dataclass
from smelt.dispatch.tensors import Layout


@dataclass(frozen=True, slots=True, eq=False)
class Ref:
    """A value of the recording, as an argument."""

    value: int


@dataclass(frozen=True, slots=True, eq=False)
class Operand:
    """A number of the recording, as an argument."""

    place: int


class _Refs(list[Ref]):
    """One `Ref` for each value: keys compare them by identity."""

    def upto(self, value: int) -> Ref:
        try:
            return self[value]
        except IndexError:
            while len(self) <= value:
                self.append(Ref(len(self)))
            return self[value]


REFS = _Refs()


@dataclass(frozen=True, slots=True)
class Fresh:
    """A result with memory of its own, of so many bytes."""

    layout: Layout
    bytes: int


@dataclass(frozen=True, slots=True)
class View:
    """A result that shares the memory of an argument, which is found at `path`."""

    layout: Layout
    path: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Same:
    """A result that is an argument, which was written."""

    path: tuple[Any, ...]


Result = Fresh | View | Same | None


class Step(_native.Step):
    """One recorded call, or an input (`operator` is None), and the calls that have followed it.

    `form` is that of what the call returns: None for one tensor, else tuple or list; `layout` is that of an input;
    `first_value` is the first of its results that are new, and `values` and `numbers` count those of this step and of
    all before it."""

    __slots__ = ()

    def path(self) -> list["Step"]:
        """The steps from the root to this one, without the root."""
        steps: list[Step] = []
        step: Step = self
        while step.before is not None:
            steps.append(step)
            step = step.before
        steps.reverse()
        return steps


def at(path: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The argument at a path: a position or a name, then positions in lists."""
    first, *rest = path
    argument: Any = args[first] if type(first) is int else kwargs[first]
    for place in rest:
        argument = argument[place]
    return argument
