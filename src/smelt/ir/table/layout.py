"""The layout of a table: the header, and the records of each section, field by field.

    bytes    header │ strings │ instructions │ … │ states │ the bytes of all strings
    header   magic, version, bytes, blob, name, then of each section (first word, records, words of a record)

Every field is a signed 64-bit word, little-endian. A record refers to others by number, to text by the number of a
string, and to Python's objects by their place in a tuple that comes beside the table. There are no addresses: the same
bytes are good in another process.

A field may have a rule, which every table must keep to: it is the number of a record of a section (INDEX; OPTIONAL: or
-1), the first of several (SPAN: the next field says how many), or where in `numbers` sizes, as many strides and an
offset begin (LAYOUT: the next field is the rank). `tools/table_header.py` writes all of this as C
(`csrc/executor/records.h`).

A table holds what a process runs (`ir/flat`: one program over tensors, with library calls) or what a file does
(`ir/artifact_file`: states of variants over registers); kernels, launches, steps, strings and references are the same.
"""

from enum import IntEnum, IntFlag
from typing import Annotated, Any, NamedTuple, get_type_hints

MAGIC = int.from_bytes(b"smelttab", "little")
VERSION = 2
MOST_CODE = 4096  # instructions of an expression
MOST_BUFFERS = 4096  # of a kernel, and numbers of an array
MOST_BLOCKS = 2**31 - 1  # of a grid
MOST_GRID_THREADS = 1024  # of a block
MOST_SHARED = 2**20  # bytes of a block
MOST_BYTES = 2**47  # of anything in memory

# Every dtype of a register: its name in PyTorch and NumPy, and the bytes of an element. Its number is its place here.
DTYPES: dict[str, int] = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "float16": 2, "bfloat16": 2, "float32": 4,
    "float64": 8, "complex64": 8, "complex128": 16, "uint16": 2, "uint32": 4, "uint64": 8, "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}  # fmt: skip
DTYPE_NAMES = tuple(DTYPES)


class RegisterKind(IntEnum):
    """Who fills a register."""

    INPUT = 0
    STATE = 1
    CONSTANT = 2
    LOCAL = 3


class RegisterFlag(IntFlag):
    """What else is true of a register."""

    OPTIONAL = 1  # INPUT: the caller may leave it out
    WRITTEN = 2  # INPUT: programs write it


class Bind(IntEnum):
    """What a symbol is read of."""

    SIZE = 0  # a dimension of a register
    VALUE = 1  # the element of a register of rank 0: bool, int64, or float64 by its bits
    GIVEN = 2  # 1 if the caller gave the register, else 0


class ValueKind(IntEnum):
    """Where the memory of a value is."""

    REGISTER = 0  # `place`: the register, as it was when the variant began
    PRODUCED = 1  # `place`: which of those that the variant produces
    ARENA = 2
    SIZES = 3  # an array of int64: `number_count` references from `place` on, each an expression


class Item(IntEnum):
    """What an item stands for."""

    OBJECT = 0  # `what`: the place of an object
    VALUE = 1  # `what`: a value; if `numbers` is not -1, a view of it, with its layout there and `length` the rank
    TUPLE = 2  # `length` items from `what` on, which come later in the table
    LIST = 3
    NONE = 4
    BOOL = 5  # `what`: the number, or the bits of a double
    INTEGER = 6
    DOUBLE = 7


class StepKind(IntEnum):
    """What a step does: `place` is the number of a tensor, a launch, a copy, a call or a drop."""

    ALLOCATE = 0
    LAUNCH = 1
    COPY = 2
    CALL = 3
    DROP = 4


class NextKind(IntEnum):
    """What comes after a variant."""

    RETURN = 0  # `outputs`: a record of `returned` for each output
    BRANCH = 1  # `register`: one bool, then `if_true` or `if_false`
    JUMP = 2  # `if_true`
    RAISE = 3  # `error` and `message`: strings


# --- records ------------------------------------------------------------------------------------------------------


class Rule(NamedTuple):
    """What a field must keep to, and the section that it refers to."""

    kind: str
    section: str


def _index(section: str) -> Rule:
    return Rule("INDEX", section)


def _optional(section: str) -> Rule:
    return Rule("OPTIONAL", section)


def _span(section: str) -> Rule:
    return Rule("SPAN", section)


_LAYOUT = Rule("LAYOUT", "numbers")
OBJECTS = "objects"  # not a section: Python's objects, beside the table


class TableHeader(NamedTuple):
    """What a table begins with; behind it are, of each section, (first word, records, words of a record)."""

    magic: int
    version: int
    bytes: int
    blob: int  # where the bytes of strings begin
    name: Annotated[int, _index("strings")]


class StringRecord(NamedTuple):
    """UTF-8 in the blob, with a zero byte behind it."""

    offset: int
    length: int


class InstructionRecord(NamedTuple):
    op: int
    operand: int


class ExpressionRecord(NamedTuple):
    """Postfix code: what is on the stack in the end is its value."""

    code: Annotated[int, _span("instructions")]
    code_count: int


class DimRecord(NamedTuple):
    """A dimension: its size is from `low` to `high`. `name`: of a dynamic one, -1: it has none."""

    name: Annotated[int, _optional("strings")]
    low: int
    high: int


class RegisterRecord(NamedTuple):
    """`data`: where its bytes are in WEIGHTS (CONSTANT) or STATE; -1. `choices`: strings that an int64 stands for.
    `strides`: of what has data, in elements; none where it is contiguous."""

    name: Annotated[int, _index("strings")]
    kind: int
    dtype: int
    dims: Annotated[int, _span("dims")]
    rank: int
    flags: int
    choices: Annotated[int, _span("references")]
    choice_count: int
    strides: Annotated[int, _span("references")]
    stride_count: int
    data: int
    bytes: int


class OutputRecord(NamedTuple):
    """`dtype`: -1 where returns differ in dtype or rank; then there are no dims."""

    name: Annotated[int, _index("strings")]
    dtype: int
    dims: Annotated[int, _span("dims")]
    rank: int


class ReferenceRecord(NamedTuple):
    """A number in a list: of a tensor (-1: a result that nobody reads), a value, an expression or a string."""

    number: int


class KernelRecord(NamedTuple):
    """Machine code by its name, and how many buffers it takes. In a process, `target` is what it runs on and `object`
    launches it. In a file, a CPU's is a function and a GPU's are grids that run one after the other; it has an array of
    `sizes` numbers as its last buffer, if there are any."""

    name: Annotated[int, _index("strings")]
    target: Annotated[int, _optional("strings")]
    object: Annotated[int, _optional(OBJECTS)]
    buffers: int
    sizes: int
    grids: Annotated[int, _span("grids")]
    grid_count: int


class GridRecord(NamedTuple):
    """`name`: of the function. It has so many `blocks`, or as many as the size of number `slot` says; -1: as it is."""

    name: Annotated[int, _index("strings")]
    blocks: int
    slot: int
    threads: int
    shared_bytes: int


class SymbolRecord(NamedTuple):
    name: Annotated[int, _index("strings")]
    bind: int
    register: Annotated[int, _index("registers")]
    dimension: int
    low: int
    high: int


class CheckRecord(NamedTuple):
    """`text`: what it says, for messages."""

    expression: Annotated[int, _index("expressions")]
    text: Annotated[int, _index("strings")]


class ProducedRecord(NamedTuple):
    """A register, and references to the expressions of its sizes."""

    register: Annotated[int, _index("registers")]
    dims: Annotated[int, _span("references")]
    rank: int


class ValueRecord(NamedTuple):
    """`offset` and `bytes`: expressions. `writes`: whether a step writes it."""

    kind: int
    place: int
    number_count: int
    offset: Annotated[int, _optional("expressions")]
    bytes: Annotated[int, _optional("expressions")]
    writes: int


class DtypeRecord(NamedTuple):
    """`code`: its number in PyTorch's C interface; -1: Python is to be asked."""

    name: Annotated[int, _index("strings")]
    code: int
    object: Annotated[int, _index(OBJECTS)]


class DeviceRecord(NamedTuple):
    """`kind`: the number of such devices in PyTorch's C interface; -1: Python is to be asked. `number`: which of them
    it is; -1: the current one."""

    name: Annotated[int, _index("strings")]
    kind: int
    number: int
    object: Annotated[int, _index(OBJECTS)]


class NumberRecord(NamedTuple):
    """A size, stride or offset, or a part of what a native call is given."""

    number: int


class TensorRecord(NamedTuple):
    """What a process computes with, in the layout that steps rely on: at `numbers` are `rank` sizes, as many strides,
    and an offset in elements. `arena_offset`: where its buffer begins in the arena, in bytes."""

    name: Annotated[int, _index("strings")]
    dtype: Annotated[int, _index("dtypes")]
    device: Annotated[int, _index("devices")]
    numbers: Annotated[int, _LAYOUT]
    rank: int
    arena_offset: int


class ItemRecord(NamedTuple):
    """A part of an argument list or of the results; see `Item` for what the fields mean."""

    kind: int
    what: int
    length: int
    numbers: int


class LaunchRecord(NamedTuple):
    """A kernel runs on tensors, or in a file on values, counted from the variant's first: references. In a file it gets
    `fixed` bytes of workspace and `per_thread` for each thread, both expressions."""

    kernel: Annotated[int, _index("kernels")]
    values: Annotated[int, _span("references")]
    value_count: int
    fixed: Annotated[int, _optional("expressions")]
    per_thread: Annotated[int, _optional("expressions")]


class CopyRecord(NamedTuple):
    """`bytes` (an expression) from the start of one value to the start of another, counted from the variant's first."""

    to: int
    source: int
    bytes: Annotated[int, _index("expressions")]


class NativeRecord(NamedTuple):
    """A library call without Python; see `NativeCall`. `beta` and `alpha` are the bits of doubles."""

    name: Annotated[int, _index("strings")]
    overload: Annotated[int, _optional("strings")]
    tensors: Annotated[int, _span("items")]
    tensor_count: int
    code: Annotated[int, _span("numbers")]
    code_count: int
    returns: int
    product: Annotated[int, _span("numbers")]
    product_count: int
    beta: int
    alpha: int


class CallRecord(NamedTuple):
    """A library call; see `CallStep`. Arguments are items, results references, `names` is an object."""

    name: Annotated[int, _index("strings")]
    function: Annotated[int, _index(OBJECTS)]
    arguments: Annotated[int, _span("items")]
    argument_count: int
    names: Annotated[int, _index(OBJECTS)]
    results: Annotated[int, _span("references")]
    result_count: int
    is_one: int
    native: Annotated[int, _optional("natives")]
    unless: Annotated[int, _optional("tensors")]


class DropRecord(NamedTuple):
    """Values that nobody needs any more: references."""

    values: Annotated[int, _span("references")]
    value_count: int


class StepRecord(NamedTuple):
    kind: int
    place: int


class ReturnedRecord(NamedTuple):
    """What an output is: a register, -1: None. `offset` is -1 for all of it; else a view of it, all expressions: its
    sizes, as many strides, and the offset of its first element, counted in elements."""

    register: Annotated[int, _optional("registers")]
    dims: Annotated[int, _span("references")]
    rank: int
    strides: Annotated[int, _span("references")]
    stride_count: int
    offset: Annotated[int, _optional("expressions")]


class VariantRecord(NamedTuple):
    """Of a state: see the package. `next` says which of the fields behind it count."""

    name: Annotated[int, _index("strings")]
    symbols: Annotated[int, _span("symbols")]
    symbol_count: int
    checks: Annotated[int, _span("checks")]
    check_count: int
    produced: Annotated[int, _span("produced")]
    produced_count: int
    values: Annotated[int, _span("values")]
    value_count: int
    steps: Annotated[int, _span("steps")]
    step_count: int
    arena_bytes: Annotated[int, _index("expressions")]
    next: int
    register: Annotated[int, _optional("registers")]
    if_true: Annotated[int, _optional("states")]
    if_false: Annotated[int, _optional("states")]
    error: Annotated[int, _optional("strings")]
    message: Annotated[int, _optional("strings")]
    outputs: Annotated[int, _span("returned")]
    output_count: int


class StateRecord(NamedTuple):
    name: Annotated[int, _index("strings")]
    variants: Annotated[int, _span("variants")]
    variant_count: int


class ProgramRecord(NamedTuple):
    """What a process runs, as a whole; a file has none. Tensors are numbered: inputs, constants (the first of the
    objects), what steps make, what the arena lends. `writes_from`: the first step that writes an input."""

    inputs: int
    constants: int
    arena: int
    arena_bytes: int
    consuming: int
    output: Annotated[int, _index("items")]
    writes_from: Annotated[int, _optional("steps")]


# In the order in which they stand in a table.
SECTIONS: dict[str, type[Any]] = {
    "strings": StringRecord,
    "instructions": InstructionRecord,
    "expressions": ExpressionRecord,
    "dims": DimRecord,
    "registers": RegisterRecord,
    "outputs": OutputRecord,
    "references": ReferenceRecord,
    "kernels": KernelRecord,
    "grids": GridRecord,
    "symbols": SymbolRecord,
    "checks": CheckRecord,
    "produced": ProducedRecord,
    "values": ValueRecord,
    "dtypes": DtypeRecord,
    "devices": DeviceRecord,
    "numbers": NumberRecord,
    "tensors": TensorRecord,
    "items": ItemRecord,
    "launches": LaunchRecord,
    "copies": CopyRecord,
    "natives": NativeRecord,
    "calls": CallRecord,
    "drops": DropRecord,
    "steps": StepRecord,
    "returned": ReturnedRecord,
    "variants": VariantRecord,
    "states": StateRecord,
    "programs": ProgramRecord,
}

HEADER_WORDS = len(TableHeader._fields) + 3 * len(SECTIONS)


def rules_of(record: Any) -> dict[str, Rule]:
    """The rules of a record's fields."""
    hints = get_type_hints(record, include_extras=True)
    return {field: hints[field].__metadata__[0] for field in record._fields if hasattr(hints[field], "__metadata__")}
