"""The layout of an artifact's file: header, directory, and the records of a TABLE and a CODE section, field by field.

Every field is a signed 64-bit word, little-endian. Records refer to each other by number. A field's rule, in `RULES`,
is what a file must keep to: the number of a record of a section (INDEX; OPTIONAL: or -1), or the first of several
(SPAN: the next field says how many). csrc/deploy/format/records.h declares the same, and a test compares them.
"""

from enum import IntEnum, IntFlag
from typing import Any, NamedTuple

MAGIC = int.from_bytes(b"smeltart", "little")
TABLE_MAGIC = int.from_bytes(b"smelttab", "little")
VERSION = 1
PAGE = 4096  # what CODE, WEIGHTS and STATE are aligned to
ALIGN = 64  # what the other sections and each tensor are aligned to
MOST_CODE = 4096  # instructions of an expression
MOST_BUFFERS = 4096  # of a kernel, and numbers of an array
MOST_CAPABILITY = 999  # of a GPU
MOST_BLOCKS = 2**31 - 1  # of a grid
MOST_GRID_THREADS = 1024  # of a block
MOST_SHARED = 2**20  # bytes of a block
LARGEST = 2**63 - 1
MOST_BYTES = 2**47  # of anything in memory


class Kind(IntEnum):
    """Of a section."""

    MANIFEST = 1
    TABLE = 2
    CODE = 3
    WEIGHTS = 4
    STATE = 5


class Machine(IntEnum):
    """What a target's code runs on."""

    ANY = 0  # sections that are not of one target
    X86_64 = 1
    AARCH64 = 2
    RISCV64 = 3
    CUDA = 4  # PTX; what it needs is no mask of features but a compute capability: 90 for 9.0


# What code may need of a processor beyond what every one of its machine has: bit 0, 1, … by LLVM's names.
FEATURES: dict[Machine, tuple[str, ...]] = {
    Machine.X86_64: (
        "sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "cx16", "sahf", "avx", "avx2", "bmi", "bmi2", "f16c", "fma",
        "lzcnt", "movbe", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512vnni", "avx512bf16",
        "avx512fp16", "avxvnni", "avx512vbmi", "avx512vbmi2", "avx512ifma", "avx512bitalg", "avx512vpopcntdq",
        "gfni", "vaes", "vpclmulqdq", "aes", "pclmul",
    ),
    Machine.AARCH64: (
        "crc", "lse", "rdm", "fullfp16", "fp16fml", "dotprod", "bf16", "i8mm", "sve", "sve2", "rcpc", "jsconv",
        "complxnum", "aes", "sha2", "sha3", "flagm",
    ),
    Machine.RISCV64: ("v", "zba", "zbb", "zbs", "zfh", "zvfh"),
    Machine.CUDA: (),
}  # fmt: skip


def feature_mask(machine: Machine, names: Any) -> int:
    """The features of these names as bits; a KeyError for one that has no bit."""
    places = {name: place for place, name in enumerate(FEATURES.get(machine, ()))}
    return sum({1 << places[name] for name in names})


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


class StepKind(IntEnum):
    """What a step does; `place` is the number of a launch or a copy."""

    LAUNCH = 0
    COPY = 1


class NextKind(IntEnum):
    """What comes after a variant."""

    RETURN = 0  # `outputs`: a record of `returned` for each output
    BRANCH = 1  # `register`: one bool, then `if_true` or `if_false`
    JUMP = 2  # `if_true`
    RAISE = 3  # `error` and `message`: strings


class FileHeader(NamedTuple):
    """What a file begins with."""

    magic: int
    version: int
    bytes: int
    sections: int
    reserved: int  # 0
    checksum: int


class SectionRecord(NamedTuple):
    """A section of the file. `target`: -1 where it is not of one target."""

    kind: int
    target: int
    machine: int
    features: int
    offset: int
    bytes: int
    checksum: int


class TableHeader(NamedTuple):
    """What a TABLE begins with; behind it are, of each section, (first word, records, words of a record)."""

    magic: int
    version: int
    bytes: int
    blob: int  # where the bytes of strings begin
    name: int


class StringRecord(NamedTuple):
    """UTF-8 in the blob, with a zero byte behind it."""

    offset: int
    length: int


class InstructionRecord(NamedTuple):
    op: int
    operand: int


class ExpressionRecord(NamedTuple):
    """Postfix code: what is on the stack in the end is its value."""

    code: int
    code_count: int


class DimRecord(NamedTuple):
    """A dimension: its size is from `low` to `high`. `name`: of a dynamic one, -1: it has none."""

    name: int
    low: int
    high: int


class RegisterRecord(NamedTuple):
    """`data`: where its bytes are in WEIGHTS (CONSTANT) or STATE; -1. `choices`: strings that an int64 stands for.
    `strides`: of what has data, in elements; none where it is contiguous."""

    name: int
    kind: int
    dtype: int
    dims: int
    rank: int
    flags: int
    choices: int
    choice_count: int
    strides: int
    stride_count: int
    data: int
    bytes: int


class OutputRecord(NamedTuple):
    """`dtype`: -1 where returns differ in dtype or rank; then there are no dims."""

    name: int
    dtype: int
    dims: int
    rank: int


class ReferenceRecord(NamedTuple):
    """A number in a list: of a value of the variant, a register, an expression or a string."""

    number: int


class KernelRecord(NamedTuple):
    """A CPU's is a function, a GPU's are grids that run one after the other; it has an array of `sizes` numbers as its
    last buffer, if there are any."""

    name: int
    buffers: int
    sizes: int
    grids: int
    grid_count: int


class GridRecord(NamedTuple):
    """`name`: of the function. It has so many `blocks`, or as many as the size of number `slot` says; -1: as it is."""

    name: int
    blocks: int
    slot: int
    threads: int
    shared_bytes: int


class SymbolRecord(NamedTuple):
    name: int
    bind: int
    register: int
    dimension: int
    low: int
    high: int


class CheckRecord(NamedTuple):
    """`text`: what it says, for messages."""

    expression: int
    text: int


class ValueRecord(NamedTuple):
    """`offset` and `bytes`: expressions. `writes`: whether a step writes it."""

    kind: int
    place: int
    number_count: int
    offset: int
    bytes: int
    writes: int


class ProducedRecord(NamedTuple):
    """A register, and references to the expressions of its sizes."""

    register: int
    dims: int
    rank: int


class LaunchRecord(NamedTuple):
    """A kernel on values (references, counted from the variant's first). It gets `fixed` bytes of workspace and
    `per_thread` for each thread, both expressions."""

    kernel: int
    values: int
    value_count: int
    fixed: int
    per_thread: int


class CopyRecord(NamedTuple):
    """`bytes` (an expression) from the start of one value to the start of another, counted from the variant's first."""

    to: int
    source: int
    bytes: int


class StepRecord(NamedTuple):
    kind: int
    place: int


class VariantRecord(NamedTuple):
    """Of a state: see the package. `next` says which of the fields behind it count."""

    name: int
    symbols: int
    symbol_count: int
    checks: int
    check_count: int
    produced: int
    produced_count: int
    values: int
    value_count: int
    steps: int
    step_count: int
    arena_bytes: int
    next: int
    register: int
    if_true: int
    if_false: int
    error: int
    message: int
    outputs: int
    output_count: int


class ReturnedRecord(NamedTuple):
    """What an output is: a register, -1: None. `offset` is -1 for all of it; else a view of it, all expressions: its
    sizes, as many strides, and the offset of its first element, counted in elements."""

    register: int
    dims: int
    rank: int
    strides: int
    stride_count: int
    offset: int


class StateRecord(NamedTuple):
    name: int
    variants: int
    variant_count: int


# In the order in which they stand in a table.
TABLE_SECTIONS: dict[str, type[Any]] = {
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
    "launches": LaunchRecord,
    "copies": CopyRecord,
    "steps": StepRecord,
    "returned": ReturnedRecord,
    "variants": VariantRecord,
    "states": StateRecord,
}

# Of a field: its rule, and the section it refers to. The others have rules of their own (`check`).
RULES: dict[str, dict[str, tuple[str, str]]] = {
    "expressions": {"code": ("SPAN", "instructions")},
    "dims": {"name": ("OPTIONAL", "strings")},
    "registers": {
        "name": ("INDEX", "strings"),
        "dims": ("SPAN", "dims"),
        "choices": ("SPAN", "references"),
        "strides": ("SPAN", "references"),
    },
    "outputs": {"name": ("INDEX", "strings"), "dims": ("SPAN", "dims")},
    "kernels": {"name": ("INDEX", "strings"), "grids": ("SPAN", "grids")},
    "grids": {"name": ("INDEX", "strings")},
    "symbols": {"name": ("INDEX", "strings"), "register": ("INDEX", "registers")},
    "checks": {"expression": ("INDEX", "expressions"), "text": ("INDEX", "strings")},
    "produced": {"register": ("INDEX", "registers"), "dims": ("SPAN", "references")},
    "values": {"offset": ("OPTIONAL", "expressions"), "bytes": ("OPTIONAL", "expressions")},
    "launches": {
        "kernel": ("INDEX", "kernels"),
        "values": ("SPAN", "references"),
        "fixed": ("INDEX", "expressions"),
        "per_thread": ("INDEX", "expressions"),
    },
    "copies": {"bytes": ("INDEX", "expressions")},
    "variants": {
        "name": ("INDEX", "strings"),
        "symbols": ("SPAN", "symbols"),
        "checks": ("SPAN", "checks"),
        "produced": ("SPAN", "produced"),
        "values": ("SPAN", "values"),
        "steps": ("SPAN", "steps"),
        "arena_bytes": ("INDEX", "expressions"),
        "register": ("OPTIONAL", "registers"),
        "if_true": ("OPTIONAL", "states"),
        "if_false": ("OPTIONAL", "states"),
        "error": ("OPTIONAL", "strings"),
        "message": ("OPTIONAL", "strings"),
        "outputs": ("SPAN", "returned"),
    },
    "returned": {
        "register": ("OPTIONAL", "registers"),
        "dims": ("SPAN", "references"),
        "strides": ("SPAN", "references"),
        "offset": ("OPTIONAL", "expressions"),
    },
    "states": {"name": ("INDEX", "strings"), "variants": ("SPAN", "variants")},
}


class CodeHeader(NamedTuple):
    """What a CODE section begins with; then an entry for each kernel, slots, the bytes of names, the image.

    An entry is where in the image a kernel's function begins. All offsets count bytes from the start of the section.
    """

    kernels: int
    slots: int
    blob: int
    image: int  # a multiple of PAGE
    image_bytes: int


class SlotRecord(NamedTuple):
    """Eight bytes of the image, at `offset`, that get the address of something outside, by name, plus `addend`; of the
    image itself where the name is empty. `name`: where in the blob it begins."""

    offset: int
    name: int
    length: int
    addend: int
