"""The steps of a flat program as records that people read, before they are words and after.

    CallStep("aten::mm.out", torch.mm, (Ref(0), Ref(1), Ref(2)), ("out",), native=NativeCall("aoti_torch_…", …))

Tensors are values with numbers: the inputs, the constants, what steps make, what the arena lends.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from smelt.symbolic.shapes import Shape, Size

# Kinds of arguments in the code of a native call, as in csrc/runner/native_call.h.
NONE, WORD, DOUBLE, TENSOR, SOME, LIST, STRING = range(7)


class Ref(NamedTuple):
    """A tensor in an argument list or among the results: the number of a value, as it is or as a view of it."""

    value: int
    shape: Shape | None = None
    stride: Shape | None = None
    offset: Size = 0


class FlatValue(NamedTuple):
    """A tensor of the program. `offset` counts elements, and is 0 but in the arena, where the buffer that the tensor is
    a view of begins at `arena_offset` bytes."""

    name: str
    dtype: Any
    device: Any
    shape: Shape
    stride: Shape
    offset: Size = 0
    arena_offset: Size = 0


class NativeCall(NamedTuple):
    """A call without Python: of the dispatcher or, without an overload, of a C function by its name.

    `code` says how each argument is given (csrc/runner/native_call.h) and names `tensors` and `texts` by number.
    `product` describes a product of small matrices that is made without any call: 1 for doubles or 0 for floats, rows,
    columns, depth; per tensor its strides by row and column, and its offset. `factors`: its beta and alpha.
    """

    name: str
    overload: str | None
    tensors: tuple[Any, ...]
    code: tuple[int, ...]
    texts: tuple[str, ...]
    returns: int  # tensors; -1: one list of them
    product: tuple[Any, ...] = ()
    factors: tuple[float, ...] = ()


class AllocateStep(NamedTuple):
    """The value becomes a new tensor."""

    value: int


class LaunchStep(NamedTuple):
    """A kernel runs; `function` is a `_native.AnyLauncher`, or any callable(threads, *tensors). `target`: what it runs
    on, by name."""

    kernel: str
    function: Any
    values: tuple[int, ...]
    target: str = ""


class CallStep(NamedTuple):
    """function(*arguments), the last of them by `names`; lists and tuples among the arguments may hold tensors.

    `results`: the values that it returns, None for one that nobody reads. `is_one`: it returns its one result, not a
    sequence. Without results, what it returns is not looked at. `unless`: a value that holds one bool: the call is
    there to raise, and made if that is false.
    """

    name: str
    function: Any
    arguments: tuple[Any, ...] = ()
    names: tuple[str, ...] = ()
    results: tuple[int | None, ...] = ()
    is_one: bool = False
    native: NativeCall | None = None
    unless: int | None = None


class DropStep(NamedTuple):
    """Nobody needs these values any more."""

    values: tuple[int, ...]


FlatStep = AllocateStep | LaunchStep | CallStep | DropStep


class FlatProgram(NamedTuple):
    """A whole program as it was written."""

    name: str
    values: tuple[FlatValue, ...]
    inputs: int
    constants: tuple[Any, ...]
    arena: int
    arena_bytes: int
    steps: tuple[FlatStep, ...]
    outputs: tuple[Any, ...]
    consuming: bool = False
    writes_from: int | None = None


def codes_of(code: Sequence[int]) -> Iterator[int]:
    """Where in the code of a native call each kind of argument stands, those inside of others included."""
    at = 0
    while at < len(code):
        yield at
        at += 1 if code[at] in (NONE, SOME) else 2


def moved_texts(code: tuple[int, ...], places: Sequence[int]) -> tuple[int, ...]:
    """The code of a native call with other numbers for its strings, which it names in order, each once."""
    moved, left = list(code), iter(places)
    for at in codes_of(code):
        if code[at] == STRING:
            moved[at + 1] = next(left)
    return tuple(moved)
