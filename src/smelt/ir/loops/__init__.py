"""The loop form: a scheduled kernel as typed statements, between the schedules and the printers.

    kernel  →  schedule  →  functions of statements  →  printer: LLVM, SPIR-V, C

    function @softmax.part(ptr %buffers, i64 %first, i64 %last)        a `Function`: parameters and a body
      for %i in %first … %last:                                        `For`; loops and branches are nested bodies
        %m = for %j in 0 … 1024 step 8, carry %a = -inf f32x8:         values that a loop carries
          %p = address %x + %j f32
          %v = load f32x8 %p align 4
          yield maximum %a, %v

Values are in SSA form: each has one definition, is named once in its function, and is visible in the bodies below its
definition. A body returns values through the results of its loop or branch, never by name. `kind` is the element's type
and `lanes` the length of a vector, 1 for a scalar. Printers decide nothing: every vector, tile, mask, and alignment is
a node or a field.
"""

from collections.abc import Iterator
from dataclasses import field

from smelt.base.fast_dataclass import dataclass

Number = float | bool

BITS = {
    "f64": 64, "f32": 32, "f16": 16, "bf16": 16, "i128": 128, "i64": 64, "i32": 32, "i16": 16, "i8": 8, "i1": 1,
}  # fmt: skip
POINTER, GLOBAL, SHARED, CLUSTER = "ptr", "ptr1", "ptr3", "ptr7"
"""Kinds of addresses: of a processor, of a GPU's global and shared memory, and of another block's shared memory."""

# fmt: off
BINARY = frozenset((
    "add", "sub", "mul", "udiv", "sdiv", "urem", "srem", "shl", "lshr", "ashr", "and", "or", "xor", "fadd", "fsub",
    "fmul", "fdiv",
))
MATH = frozenset((
    "fma", "fabs", "sqrt", "floor", "ceil", "trunc", "roundeven", "copysign", "minimum", "maximum", "smin", "smax",
    "umin", "umax",
))
# fmt: on


@dataclass(slots=True)
class Value:
    """A register, by a name that is unique in its function; a constant, which has a `number` and no name; or, with a
    name that begins with `@`, the address of a function or table. `number`: one for all lanes, or one for each.
    `order` counts registers. Never changed: it is not frozen, as that takes twice as long to create."""

    name: str
    kind: str
    lanes: int = 1
    order: int = 0
    number: "Number | tuple[Number, ...] | None" = None

    def __hash__(self) -> int:
        return hash((self.name, self.kind, self.lanes))

    @property
    def is_constant(self) -> bool:
        return self.number is not None


@dataclass(slots=True, eq=False)
class Compute:
    """`op` of `args`: one of `BINARY` or `MATH`, "icmp slt" and its like, "fcmp olt" and its like, "select", "fneg"."""

    out: Value
    op: str
    args: tuple[Value, ...]
    flags: str = ""  # what may be ignored, as LLVM calls it: "nsz"


@dataclass(slots=True, eq=False)
class Convert:
    """A conversion by LLVM's name, such as "zext" or "fptosi.sat"; a "bitcast" may change the number of lanes."""

    out: Value
    op: str
    value: Value


@dataclass(slots=True, eq=False)
class Splat:
    """A scalar in all lanes."""

    out: Value
    value: Value


@dataclass(slots=True, eq=False)
class Pack:
    """Scalars as the lanes of one vector."""

    out: Value
    values: tuple[Value, ...]


@dataclass(slots=True, eq=False)
class Permute:
    """Lanes of `a`, and of `b` behind them, by their numbers."""

    out: Value
    a: Value
    b: Value | None
    lanes: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Extract:
    """One lane."""

    out: Value
    vector: Value
    lane: int | Value


@dataclass(slots=True, eq=False)
class Reduce:
    """All lanes as one scalar, by an operator as LLVM's `vector.reduce` calls it; `start` comes first in order."""

    out: Value
    op: str
    value: Value
    start: Value | None = None
    flags: str = ""


@dataclass(slots=True, eq=False)
class Address:
    """The address `offset` elements of `kind` past `base`; a vector of addresses where the offset is one. Then the
    base may be one as well."""

    out: Value
    base: Value
    kind: str
    offset: Value


@dataclass(slots=True, eq=False)
class Alloc:
    """`length` elements on the stack, for the whole function."""

    out: Value
    kind: str
    length: int
    align: int


@dataclass(slots=True, eq=False)
class Load:
    """Elements side by side. `invariant`: nobody writes there while the function runs. From a vector of addresses, one
    element from each."""

    out: Value
    pointer: Value
    align: int
    invariant: bool = False


@dataclass(slots=True, eq=False)
class Store:
    """Elements side by side, or one to each of a vector of addresses. `mask`: where it is true. `nontemporal`: past the
    caches; a `Fence` must follow before others read."""

    value: Value
    pointer: Value
    align: int
    nontemporal: bool = False
    mask: Value | None = None


@dataclass(slots=True, eq=False)
class Prefetch:
    """Ask for memory that is read soon. Any address will do."""

    pointer: Value


@dataclass(slots=True, eq=False)
class Fence:
    """Make nontemporal stores visible."""


@dataclass(slots=True, eq=False)
class Atomic:
    """Change an element of global memory, by an operator as LLVM's `atomicrmw` calls it. No order with others."""

    op: str
    pointer: Value
    value: Value


@dataclass(slots=True, eq=False)
class CompareExchange:
    """Store `new` where memory holds `expected`. `seen`: what it held; `stored`: whether it was stored."""

    seen: Value
    stored: Value
    pointer: Value
    expected: Value
    new: Value


@dataclass(slots=True, eq=False)
class Call:
    """A function by name, or by an address that is a value."""

    out: Value | None
    callee: "str | Value"
    args: tuple[Value, ...]


@dataclass(slots=True, eq=False)
class Id:
    """Where a thread is: "lane" of its warp, "warp" of its block, "thread", "block"; "parameter": launch parameter
    number `at`."""

    out: Value
    what: str
    at: Value | None = None


@dataclass(slots=True, eq=False)
class Shuffle:
    """32 bits of another lane of the warp: the lane whose number is "xor" `lane`, `lane` "up" from this one, or it."""

    out: Value
    value: Value
    mode: str  # "xor", "up", "from"
    lane: Value


@dataclass(slots=True, eq=False)
class Barrier:
    """Threads wait for each other, and see what all stored: of a "warp", a "block", or a "cluster"; "leave": at the end
    of a cluster's blocks. "earlier": they wait for earlier launches; "later": the next launch may begin."""

    scope: str


@dataclass(slots=True, eq=False)
class Remote:
    """The address of another block's shared memory that corresponds to `pointer` in this one."""

    out: Value
    pointer: Value
    rank: Value


@dataclass(slots=True, eq=False)
class Mma:
    """The product of two matrices of `kind`, 16 × 16 and 16 × 8, added to 16 × 8 sums: by a warp of 32. In lane 4·g + t
    a word has two elements of a row of `a`, or of a column of `b`, from 2·t on. The words of `a` are of row g and of
    row g + 8, then of both from 2·t + 8 on; those of `b` of column g, alike. The sums are of row g, columns 2·t and
    2·t + 1, then of row g + 8."""

    results: tuple[Value, ...]
    kind: str  # "bf16" or "f16"
    a: tuple[Value, ...]
    b: tuple[Value, ...]
    sums: tuple[Value, ...]


@dataclass(slots=True, eq=False)
class LoadMatrix:
    """Four 8 × 8 matrices of 16-bit elements from shared memory: by a warp of 32. Lane 8·n + r has the address of row r
    of matrix n, a multiple of 16 bytes. In lane 4·g + t the word of each matrix has the elements 2·t and 2·t + 1 of row
    g; `transposed`: of column g."""

    results: tuple[Value, ...]
    pointer: Value
    transposed: bool


@dataclass(slots=True, eq=False)
class CopyAsync:
    """Begin to copy 16 bytes of global memory to shared memory, both at multiples of 16; where `mask` is false, zeros,
    and nothing is read. The copy is done after a `CopyWait` of this thread."""

    to: Value
    source: Value
    mask: Value | None = None


@dataclass(slots=True, eq=False)
class CopyCommit:
    """End a group of copies."""


@dataclass(slots=True, eq=False)
class CopyWait:
    """Wait for all groups of copies of this thread but the last `pending` ones."""

    pending: int = 0


@dataclass(slots=True, eq=False)
class For:
    """Runs `body` for `index` from `first` up to `last`. `carried` are `starts`, then what the last run of the body
    yields. The results are `yields` of the last run. `may_skip`: the range may be empty; the results are then
    `starts`."""

    index: Value
    first: Value
    last: Value
    step: int
    carried: tuple[Value, ...]
    starts: tuple[Value, ...]
    body: "list[Node]"
    yields: tuple[Value, ...]
    results: tuple[Value, ...]
    may_skip: bool


@dataclass(slots=True, eq=False)
class If:
    """Runs one of two bodies. The results are `then_values` or `else_values`."""

    condition: Value
    then: "list[Node]"
    otherwise: "list[Node]"
    results: tuple[Value, ...] = ()
    then_values: tuple[Value, ...] = ()
    else_values: tuple[Value, ...] = ()


@dataclass(slots=True, eq=False)
class Repeat:
    """Runs `body` until `condition`, a value of the body, is false. The results are the last `yields`."""

    carried: tuple[Value, ...]
    starts: tuple[Value, ...]
    body: "list[Node]"
    condition: Value
    yields: tuple[Value, ...]
    results: tuple[Value, ...]


@dataclass(slots=True, eq=False)
class Return:
    """The last node of a function with a result."""

    value: Value


Node = (
    Compute | Convert | Splat | Pack | Permute | Extract | Reduce | Address | Alloc | Load | Store | Prefetch
    | Fence | Atomic | CompareExchange | Call | Id | Shuffle | Barrier | Remote | Mma | LoadMatrix
    | CopyAsync | CopyCommit | CopyWait | For | If | Repeat | Return
)  # fmt: skip


@dataclass(slots=True, eq=False)
class Table:
    """Constants in memory under a name. `fixed`: printers may take them for constants."""

    name: str
    values: tuple[Value, ...]
    fixed: bool = True
    align: int = 0


@dataclass(slots=True, eq=False)
class SharedArray:
    """Elements that the threads of a block share, under a name."""

    name: str
    kind: str
    length: int


@dataclass(slots=True, eq=False)
class Function:
    """`kind`: "entry", which callers of the module use; "internal"; "shared", which other modules may have too;
    "support", which LLVM calls in place of an instruction; or "grid", which a GPU launches. Names of parameters begin
    with `%`."""

    name: str
    params: tuple[Value, ...]
    body: list[Node]
    kind: str = "internal"
    result: str = ""  # kind of its result
    inlined: bool = True
    tune_cpu: str = ""
    tables: tuple[Table, ...] = ()
    shared: tuple[SharedArray, ...] = ()
    threads: int = 0  # of a grid: of each block
    resident: int = 0  # of a grid: blocks to be at work side by side in one processor
    cluster: int = 1  # of a grid: blocks of a cluster
    features: str = ""
    parameters: int = 0  # of a grid that reads its parameters by number: how many there are
    text: str = field(default="", repr=False)  # its LLVM text, once printed, and what that declares
    declared: frozenset[str] = frozenset()


@dataclass(slots=True, eq=False)
class Module:
    """Functions that are compiled together. `helpers`: those that other modules may have too, each once."""

    functions: tuple[Function, ...]
    helpers: tuple[Function, ...] = ()

    @property
    def entries(self) -> tuple[str, ...]:
        """Names of the functions that are called or launched from outside."""
        return tuple(each.name for each in self.functions if each.kind in ("entry", "grid"))


def walk(body: list[Node]) -> Iterator[Node]:
    """All nodes, those in nested bodies after the node that has them."""
    for node in body:
        yield node
        if isinstance(node, If):
            yield from walk(node.then)
            yield from walk(node.otherwise)
        elif isinstance(node, For | Repeat):
            yield from walk(node.body)


def called(function: Function) -> set[str]:
    """Names of the functions that a function calls."""
    return {node.callee for node in walk(function.body) if isinstance(node, Call) and isinstance(node.callee, str)}
