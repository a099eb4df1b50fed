"""The kernel program: what one graph becomes, ready for a target and a runtime.

Steps run in order. Buffers are named; each has a spec and a place: given by the caller, planned into the program's
arena at a byte offset, or allocated fresh because it leaves the program. Library calls see buffers through `Operand`s
(strided views), kernels through plain pointers.
"""

from collections.abc import Iterator
from dataclasses import replace
from enum import Enum
from typing import Any

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.ir.kernel import AnyKernel, Kernel, Role, members
from smelt.ir.tensorspec import TensorSpec
from smelt.symbolic.shapes import Shape, Size, span


class Place(Enum):
    """Where a buffer's memory comes from."""

    INPUT = "input"  # the caller's tensor
    CONSTANT = "constant"  # a tensor captured with the graph
    ARENA = "arena"  # planned memory, reused between buffers and between calls
    FRESH = "fresh"  # allocated at each call: it is an output, or outlives the call, or there is no arena
    LIBRARY = "library"  # allocated by the library call that makes it


@dataclass(frozen=True, slots=True)
class ProgramBuffer:
    """A buffer of the program. `offset` is its byte offset in the arena, for `Place.ARENA` once planned."""

    name: str
    spec: TensorSpec
    place: Place
    offset: Size = 0


@dataclass(frozen=True, slots=True)
class Operand:
    """A strided view of a buffer, as a tensor; `offset` counts elements from the buffer's first element."""

    buffer: str
    shape: Shape
    stride: Shape
    offset: Size = 0


@dataclass(frozen=True, slots=True)
class Launch:
    """Run `kernel`, or those of a group, on the named buffers, in the order of `kernel.parameters`."""

    kernel: AnyKernel
    args: tuple[str, ...]

    @property
    def target(self) -> str:
        """What it runs on, by name."""
        return self.kernel.target

    @property
    def parts(self) -> Iterator[tuple[Kernel, tuple[str, ...]]]:
        """Its kernels, each with the buffers that it is given."""
        first = 0
        for kernel in members(self.kernel):
            count = len(kernel.parameters)
            yield kernel, self.args[first : first + count]
            first += count


@dataclass(frozen=True, slots=True)
class Library:
    """Call an ATen operator. `args`/`kwargs` hold plain values, `Operand`s, and lists of them.

    `outs` names the buffers its tensor results become (None for a result nobody reads). With `into`, the operator is an
    out-variant and the named buffers are passed as its `out` arguments (keyword names in `into`); without, the results
    are new tensors and the buffers are of `Place.LIBRARY`.

    With `unless`, the call is there to raise: it is made only if that buffer, a single bool, holds false.
    """

    op: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    outs: tuple[str | None, ...]
    into: tuple[str, ...] = ()
    unless: str | None = None


Step = Launch | Library

# What a program hands back: a view of a buffer, or a plain value (None for a gradient that is not needed).
Output = Operand | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Program:
    """Kernels and library calls in order, with the memory they need."""

    name: str
    buffers: tuple[ProgramBuffer, ...]
    inputs: tuple[str, ...]
    constants: tuple[tuple[str, torch.Tensor], ...]
    steps: tuple[Step, ...]
    outputs: tuple[Output, ...]
    arena_bytes: Size = 0
    has_backward: bool = False  # whether it holds in the middle what a backward inside of it reads

    def buffer(self, name: str) -> ProgramBuffer:
        for candidate in self.buffers:
            if candidate.name == name:
                return candidate
        raise KeyError(f"program {self.name} has no buffer {name!r}")

    def unplanned(self) -> "Program":
        """The same without an arena: each buffer is allocated when it is first written, and let go when it has been
        read for the last time. That takes less memory, as nothing is held for later, and more time."""
        buffers = [replace(b, place=Place.FRESH, offset=0) if b.place is Place.ARENA else b for b in self.buffers]
        return replace(self, buffers=tuple(buffers), arena_bytes=0)

    @property
    def kernels(self) -> tuple[AnyKernel, ...]:
        """What its steps launch."""
        return tuple(step.kernel for step in self.steps if isinstance(step, Launch))


def arena_bytes(buffer: ProgramBuffer) -> Size:
    return span(buffer.spec.shape, buffer.spec.stride) * buffer.spec.dtype.itemsize


def operands_in(value: Any) -> Iterator[Operand]:
    """Every operand inside arguments, lists included."""
    if isinstance(value, Operand):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from operands_in(item)


def reads(step: Step) -> tuple[str, ...]:
    """The buffers whose contents a step uses."""
    if isinstance(step, Library):
        values = [*step.args, *(value for _, value in step.kwargs)]
        condition = () if step.unless is None else (step.unless,)
        return (*condition, *(operand.buffer for operand in operands_in(values)))
    pairs = zip(step.kernel.parameters, step.args, strict=False)
    return tuple(name for parameter, name in pairs if parameter.role is not Role.OUTPUT)


def writes(step: Step) -> tuple[str, ...]:
    """The buffers a step fills."""
    if isinstance(step, Library):
        return tuple(name for name in step.outs if name is not None)
    pairs = zip(step.kernel.parameters, step.args, strict=False)
    return tuple(name for parameter, name in pairs if parameter.role is not Role.INPUT)


def touched(step: Step) -> tuple[str, ...]:
    """The buffers a step reads or fills."""
    return step.args if isinstance(step, Launch) else reads(step) + writes(step)


def touches(program: Program) -> dict[str, tuple[int, int]]:
    """First and last step that touches each buffer."""
    spans: dict[str, tuple[int, int]] = {}
    for number, step in enumerate(program.steps):
        for name in touched(step):
            spans[name] = (spans.get(name, (number, number))[0], number)
    return spans
