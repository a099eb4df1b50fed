"""The records of a table, each declared once: their fields say how they are written, read, checked and named in C.

    relu of x[n, 4], as a file has it:
      Register("x", RegisterKind.INPUT, "float32", (Dim(2, 4096, "n"), Dim(4, 4)))
      Register("y", RegisterKind.LOCAL, "float32", (Dim(0), Dim(4, 4)))
      Variant("relu", Return((1,)), symbols=(Symbol("n", Bind.SIZE, 0, 0),),
              produced=(Produced(1, (symbol(0), number(4))),),
              values=(RegisterValue(0, bytes=…), ProducedValue(0, bytes=…, writes=True)), steps=(Launch(0, (0, 1)),))
    relu of a product, as a process has it:
      Call("aten::mm.out", torch.mm, (Ref(0), Ref(1), Ref(2)), ("out",), native=Native("aoti_torch_…", …))
      Launch(0, (2,))

A table holds what a process runs (one program over tensors, with library calls) or what a file does (states of variants
over registers); kernels, launches, steps, strings and expressions are the same. Registers, states, kernels and tensors
are referred to by number; symbols, produced registers and values by their place in the `Variant`.

`ir/table/layout.py` says how each type of a field becomes words. `tools/table_header.py` writes the records as C
(`csrc/executor/records.h`).
"""

import math
from collections.abc import Sequence
from enum import IntEnum
from typing import Annotated, Any, NamedTuple

from smelt.base.fast_dataclass import dataclass
from smelt.ir.table.dtypes import DTYPES
from smelt.symbolic.expressions import LARGEST
from smelt.symbolic.postfix import Expression as Expression
from smelt.symbolic.postfix import Instruction as Instruction
from smelt.symbolic.postfix import apply as apply
from smelt.symbolic.postfix import floating as floating
from smelt.symbolic.postfix import number as number
from smelt.symbolic.postfix import symbol as symbol
from smelt.symbolic.shapes import Shape, Size

MOST_CODE = 4096  # instructions of an expression
MOST_BUFFERS = 4096  # of a kernel, and numbers of an array
MOST_BLOCKS = 2**31 - 1  # of a grid
MOST_GRID_THREADS = 1024  # of a block
MOST_SHARED = 2**20  # bytes of a block
MOST_BYTES = 2**47  # of anything in memory
ZERO = number(0)

# --- what a field may be beside numbers, text, expressions and other records ----------------------------------------


class Index(NamedTuple):
    """The number of a record of a section; or an object by its place in the tuple that comes beside the table."""

    section: str


class Mark(IntEnum):
    """How a field is written that its type does not say it of."""

    DTYPE = 0  # the name of a dtype, by its place
    NUMBERS = 1  # plain words
    ITEMS = 2  # arguments: values, tensors, and lists of them
    ITEM = 3
    DTYPE_OBJECT = 4  # PyTorch's own, described in a section
    DEVICE_OBJECT = 5
    NAMES = 6  # a tuple of strings, as an object
    CODE = 7  # instructions


Object = Annotated[Any, Index("objects")]
RegisterNumber = Annotated[int, Index("registers")]
StateNumber = Annotated[int, Index("states")]


class RegisterKind(IntEnum):
    """How long a register holds what it holds, and who gives it."""

    INPUT = 0  # given with each call
    STATE = 1  # kept from call to call, written in place, saved with the artifact
    CONSTANT = 2  # weights that nothing writes
    LOCAL = 3  # filled while a call runs

    def __str__(self) -> str:
        return self.name.lower()


class Bind(IntEnum):
    """What a symbol is read of."""

    SIZE = 0  # a dimension of a register
    VALUE = 1  # the element of a register of rank 0: bool, int64, or float64 by its bits
    GIVEN = 2  # 1 if the caller gave the register, else 0


class ValueKind(IntEnum):
    """Where the memory of a value is."""

    REGISTER = 0
    PRODUCED = 1
    ARENA = 2
    SIZES = 3


class ItemKind(IntEnum):
    """What an item stands for."""

    OBJECT = 0  # `what`: the place of an object
    VALUE = 1  # `what`: a tensor; if `numbers` is not -1, a view of it, with its layout there and `length` the rank
    TUPLE = 2  # `length` items from `what` on, which come later in the table
    LIST = 3
    NONE = 4
    BOOL = 5  # `what`: the number, or the bits of a double
    INTEGER = 6
    DOUBLE = 7


class Draws(IntEnum):
    """Which random numbers a call draws of PyTorch's generators."""

    NOTHING = 0
    NUMBERS = 1
    UNREAD = 2  # numbers of the host that nobody reads: the call only moves the generator


class StepKind(IntEnum):
    """What a step does: `place` is the number of a tensor, a launch, a copy, a call or a drop."""

    ALLOCATE = 0
    LAUNCH = 1
    COPY = 2
    CALL = 3
    DROP = 4


class NextKind(IntEnum):
    """What comes after a variant."""

    RETURN = 0
    BRANCH = 1
    JUMP = 2
    RAISE = 3


# --- of every table ----------------------------------------------------------------------------------------------


class TableHeader(NamedTuple):
    """What a table begins with; behind it are, of each section, (first word, records, words of a record)."""

    magic: int
    version: int
    bytes: int
    blob: int  # where the bytes of strings begin
    name: Annotated[int, Index("strings")]


class String(NamedTuple):
    """UTF-8 in the blob, with a zero byte behind it."""

    offset: int
    length: int


class PostfixCode(NamedTuple):
    """An expression, postfix: what is on the stack in the end is its value."""

    code: Annotated[Expression, Mark.CODE]


class Reference(NamedTuple):
    """A number in a list: of a tensor (-1: a result that nobody reads), a value, an expression or a string."""

    number: int


class Number(NamedTuple):
    """A size, stride or offset, or a part of what a native call is given."""

    number: int


@dataclass(frozen=True, slots=True)
class Operand:
    """A matrix of a product. `buffer`: by its place among the kernel's pointers; behind them is the workspace. `offset`
    counts bytes, strides count elements: from row to row, from col to col, along both axes of the batch. A number below
    0 is `~slot`: that one of the kernel's sizes."""

    buffer: int
    dtype: Annotated[str, Mark.DTYPE]
    offset: int
    row: int
    col: int
    batch: int
    outer: int


@dataclass(frozen=True, slots=True)
class Product:
    """What a library may compute instead of so many grids: left (rows × terms) times right (terms × cols), the first
    operands. The third is the result, and a fourth a vector of `cols` that is added to every row. Numbers are as in an
    operand."""

    rows: int
    cols: int
    terms: int
    batch: int
    outer: int
    grids: int
    operands: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """A function of a GPU's code. `slot`: which of the kernel's sizes says how many blocks there are; -1: `blocks`."""

    name: str
    blocks: int
    slot: int
    threads: int
    shared_bytes: int = 0
    product: Product | None = None


@dataclass(frozen=True, slots=True)
class Kernel:
    """Machine code by its name. `buffers`: how many values it takes, sizes included. In a process, `target` is what it
    runs on and `object` launches it (a `_native.AnyLauncher`, or any callable(threads, *tensors)).

    In a file, a CPU's is a function and a GPU's are grids that run one after the other: `sizes` is how many numbers its
    last buffer has. It is called with a pointer for each buffer, one to its workspace, and the sizes; what is an array
    of numbers among the other buffers is given by its first number."""

    name: str
    buffers: int
    sizes: int = 0
    grids: tuple[Grid, ...] = ()
    target: str | None = None
    object: Annotated[Any | None, Index("objects")] = None


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel on tensors of a process, or on values of the variant. In a file it gets `fixed` bytes of workspace, and
    `per_thread` for each thread; in a process, what launches it knows."""

    kernel: Annotated[int, Index("kernels")]
    values: tuple[int, ...]
    fixed: Expression = ZERO
    per_thread: Expression = ZERO


@dataclass(frozen=True, slots=True)
class Copy:
    """`bytes` from the start of value `source` to that of value `to`."""

    to: int
    source: int
    bytes: Expression


# --- what a process runs --------------------------------------------------------------------------------------------

# Kinds of arguments in the code of a native call, as in csrc/runner/native_call.h.
NONE, WORD, DOUBLE, TENSOR, SOME, LIST, STRING = range(7)


class Layout(NamedTuple):
    """How memory is looked at: sizes, strides and an offset, in elements."""

    shape: Shape
    stride: Shape
    offset: Size = 0


class Dtype(NamedTuple):
    """`code`: its number in PyTorch's C interface; -1: Python is to be asked."""

    name: str
    code: int
    object: Object


class Device(NamedTuple):
    """`kind`: the number of such devices in PyTorch's C interface; -1: Python is to be asked. `number`: which of them
    it is; -1: the current one."""

    name: str
    kind: int
    number: int
    object: Object


class Tensor(NamedTuple):
    """A value of a process. The offset of its layout is 0 but in the arena, where the buffer that it is a view of
    begins at `arena_offset` bytes."""

    name: str
    dtype: Annotated[Any, Mark.DTYPE_OBJECT]
    device: Annotated[Any, Mark.DEVICE_OBJECT]
    layout: Layout
    arena_offset: Size = 0


class Ref(NamedTuple):
    """A tensor in an argument list or among the results: by its number, as it is or as a view of it."""

    value: int
    layout: Layout | None = None


class Item(NamedTuple):
    """A part of an argument list or of the results; see `ItemKind` for what the fields mean."""

    kind: ItemKind
    what: int
    length: int
    numbers: int


class Native(NamedTuple):
    """A call without Python: of the dispatcher or, without an overload, of a C function by its name.

    `code` says how each argument is given (csrc/runner/native_call.h) and names `tensors` and `texts` by place.
    `product` describes a product of small matrices that is made without any call: 1 for doubles or 0 for floats, rows,
    columns, depth; per tensor its strides by row and column, and its offset. It is `beta` times what the result is
    computed from, if there are four tensors, plus `alpha` times the product.
    """

    name: str
    overload: str | None
    tensors: Annotated[tuple[Any, ...], Mark.ITEMS]
    code: Annotated[tuple[int, ...], Mark.NUMBERS]
    texts: tuple[str, ...] = ()
    returns: int = 0  # tensors; -1: one list of them
    product: Annotated[tuple[int, ...], Mark.NUMBERS] = ()
    beta: float = 1.0
    alpha: float = 1.0


class Call(NamedTuple):
    """function(*arguments), the last of them by `names`; lists and tuples among the arguments may hold tensors.

    `results`: the tensors that it returns, None for one that nobody reads. `is_one`: it returns its one result, not a
    sequence. Without results, what it returns is not looked at. `unless`: a tensor of one bool: the call is there to
    raise, and made if that is false.
    """

    name: str
    function: Object
    arguments: Annotated[tuple[Any, ...], Mark.ITEMS] = ()
    names: Annotated[tuple[str, ...], Mark.NAMES] = ()
    results: tuple[Annotated[int | None, Index("tensors")], ...] = ()
    is_one: bool = False
    native: Native | None = None
    unless: Annotated[int | None, Index("tensors")] = None
    draws: Draws = Draws.NOTHING


class Allocate(NamedTuple):
    """The tensor of this number is made."""

    value: int


class Drop(NamedTuple):
    """Nobody needs these tensors any more."""

    values: tuple[Annotated[int, Index("tensors")], ...]


class Program(NamedTuple):
    """What a process runs, as a whole; a file has none. Tensors are numbered: inputs, constants (the first of the
    objects), what steps make, what the arena lends. `writes_from`: the first step that writes an input."""

    inputs: int
    constants: int
    arena: int
    arena_bytes: int
    consuming: bool
    output: Annotated[tuple[Any, ...], Mark.ITEM]
    writes_from: Annotated[int | None, Index("steps")] = None


Step = Allocate | Launch | Copy | Call | Drop


class ProgramTable(NamedTuple):
    """A whole program of a process. `constants`: the first of the objects beside it."""

    name: str
    tensors: tuple[Tensor, ...]
    kernels: tuple[Kernel, ...]
    steps: tuple[Step, ...]
    program: Program
    constants: tuple[Any, ...] = ()

# --- what a file runs -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Dim:
    """A dimension of a register: any size from `low` to `high`; a fixed one where they are equal."""

    low: int
    high: int = LARGEST
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Register:
    """`data`: where its bytes begin in WEIGHTS (CONSTANT) or STATE, and `bytes`: how many there are (`span_bytes`);
    registers may share them. `strides`: of what has data, in elements; () where it is contiguous. `optional`: the
    caller may leave it out. `written`: programs write the caller's memory. `choices`: strings that an int64 stands
    for."""

    name: str
    kind: RegisterKind
    dtype: Annotated[str, Mark.DTYPE]
    dims: tuple[Dim, ...] = ()
    data: int = -1
    bytes: int = 0
    optional: bool = False
    written: bool = False
    choices: tuple[str, ...] = ()
    strides: tuple[int, ...] = ()


def span_bytes(dtype: str, sizes: Sequence[int], strides: Sequence[int] = ()) -> int:
    """From the first element of a tensor to the last, both counted."""
    if not strides:
        return math.prod(sizes) * DTYPES[dtype]
    last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    return (1 + last) * DTYPES[dtype] if all(sizes) else 0


@dataclass(frozen=True, slots=True)
class Output:
    """`dtype`: None where returns differ in dtype or rank; there are no `dims` then."""

    name: str
    dtype: Annotated[str | None, Mark.DTYPE]
    dims: tuple[Dim, ...] = ()


@dataclass(frozen=True, slots=True)
class Symbol:
    """An integer that a variant reads of a register when it is tried; out of its bounds the variant does not hold."""

    name: str
    bind: Bind
    register: RegisterNumber
    dimension: int = 0
    low: int = -LARGEST - 1
    high: int = LARGEST


@dataclass(frozen=True, slots=True)
class Check:
    """An expression that must not be 0, and what it says, for messages."""

    expression: Expression
    text: str


@dataclass(frozen=True, slots=True)
class Produced:
    """A LOCAL register that the variant makes anew, with these sizes."""

    register: RegisterNumber
    dims: tuple[Expression, ...] = ()


@dataclass(frozen=True, slots=True)
class RegisterValue:
    """`bytes` of a register as it was when the variant began, from `offset` on."""

    register: RegisterNumber
    bytes: Expression
    offset: Expression = ZERO
    writes: bool = False


@dataclass(frozen=True, slots=True)
class ProducedValue:
    """`bytes` of a register that the variant produces, by its place among those."""

    place: int
    bytes: Expression
    offset: Expression = ZERO
    writes: bool = True


@dataclass(frozen=True, slots=True)
class ArenaValue:
    """`bytes` of the arena, from `offset` on, which is a multiple of 64."""

    offset: Expression
    bytes: Expression
    writes: bool = True


@dataclass(frozen=True, slots=True)
class SizesValue:
    """An array of int64 that is computed when the variant begins."""

    numbers: tuple[Expression, ...]


Value = RegisterValue | ProducedValue | ArenaValue | SizesValue


@dataclass(frozen=True, slots=True)
class Returned:
    """What an output is: a register, or None. With an offset, a strided view of its elements, which counts elements
    from the register's first."""

    register: Annotated[int | None, Index("registers")]
    dims: tuple[Expression, ...] = ()
    strides: tuple[Expression, ...] = ()
    offset: Expression | None = None


@dataclass(frozen=True, slots=True)
class Return:
    """The artifact's outputs."""

    outputs: tuple[Returned, ...]


@dataclass(frozen=True, slots=True)
class Branch:
    """Go on in one of two states, by whether a register of one bool holds true."""

    register: RegisterNumber
    if_true: StateNumber
    if_false: StateNumber


@dataclass(frozen=True, slots=True)
class Jump:
    """Go on in a state."""

    state: StateNumber


@dataclass(frozen=True, slots=True)
class Raise:
    """The call fails, as the function would: `error` is the name of Python's exception."""

    error: str
    message: str


Next = Return | Branch | Jump | Raise


def successors(following: object) -> tuple[int, ...]:
    """The states that may come next."""
    if isinstance(following, Branch):
        return following.if_true, following.if_false
    return (following.state,) if isinstance(following, Jump) else ()


@dataclass(frozen=True, slots=True)
class Variant:
    """A program of a state, and what it is for."""

    name: str
    next: Next
    symbols: tuple[Symbol, ...] = ()
    checks: tuple[Check, ...] = ()
    produced: tuple[Produced, ...] = ()
    values: tuple[Value, ...] = ()
    steps: tuple[Step, ...] = ()
    arena_bytes: Expression = ZERO


@dataclass(frozen=True, slots=True)
class State:
    name: str
    variants: tuple[Variant, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """The state machine of one target. Its inputs are the INPUT registers, in order; state 0 is the entry."""

    name: str
    registers: tuple[Register, ...]
    outputs: tuple[Output, ...]
    kernels: tuple[Kernel, ...]
    states: tuple[State, ...]


# --- sections -------------------------------------------------------------------------------------------------------

# Records of several types that stand in one section, or in one field, and the kind that each is.
KINDS: dict[Any, dict[type, IntEnum]] = {
    Step: {
        Allocate: StepKind.ALLOCATE, Launch: StepKind.LAUNCH, Copy: StepKind.COPY, Call: StepKind.CALL,
        Drop: StepKind.DROP,
    },
    Value: {
        RegisterValue: ValueKind.REGISTER, ProducedValue: ValueKind.PRODUCED, ArenaValue: ValueKind.ARENA,
        SizesValue: ValueKind.SIZES,
    },
    Next: {Return: NextKind.RETURN, Branch: NextKind.BRANCH, Jump: NextKind.JUMP, Raise: NextKind.RAISE},
}  # fmt: skip

# In the order in which they stand in a table.
SECTIONS: dict[str, Any] = {
    "strings": String, "instructions": Instruction, "expressions": PostfixCode, "dims": Dim, "registers": Register,
    "outputs": Output, "references": Reference, "kernels": Kernel, "grids": Grid, "products": Product,
    "operands": Operand, "symbols": Symbol, "checks": Check, "produced": Produced, "values": Value, "dtypes": Dtype,
    "devices": Device, "numbers": Number, "tensors": Tensor,
    "items": Item, "launches": Launch, "copies": Copy, "natives": Native, "calls": Call, "drops": Drop, "steps": Step,
    "returned": Returned, "variants": Variant, "states": State, "programs": Program,
}  # fmt: skip
