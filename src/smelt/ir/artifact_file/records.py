"""An artifact as plain records, as its file holds it: what `write` takes and `read` gives.

    relu of x[n, 4]:
      Register("x", RegisterKind.INPUT, "float32", (Dim(2, 4096, "n"), Dim(4, 4)))
      Register("y", RegisterKind.LOCAL, "float32", (Dim(0), Dim(4, 4)))
      Variant("relu", symbols=(Symbol("n", Bind.SIZE, 0, 0),), produced=(Produced(1, (symbol(0), number(4))),),
              values=(RegisterValue(0, bytes=…), ProducedValue(0, bytes=…, writes=True)),
              steps=(Launch(0, (0, 1)),), next=Return((1,)))

Registers, states and kernels are referred to by their place in the `Table`; symbols, produced registers and values by
their place in the `Variant`. See the package for what each means.
"""

from collections.abc import Mapping
from typing import Any

from smelt.base.fast_dataclass import dataclass
from smelt.ir.artifact_file.code import Code as Code
from smelt.ir.artifact_file.code import CodeSlot as CodeSlot
from smelt.ir.artifact_file.layout import Machine
from smelt.ir.table.layout import Bind, RegisterKind
from smelt.symbolic.expressions import LARGEST
from smelt.symbolic.postfix import Expression as Expression
from smelt.symbolic.postfix import Instruction as Instruction
from smelt.symbolic.postfix import apply as apply
from smelt.symbolic.postfix import floating as floating
from smelt.symbolic.postfix import number as number
from smelt.symbolic.postfix import symbol as symbol

ZERO = number(0)


@dataclass(frozen=True, slots=True)
class Dim:
    """A dimension of a register: any size from `low` to `high`; a fixed one where they are equal."""

    low: int
    high: int = LARGEST
    name: str = ""


@dataclass(frozen=True, slots=True)
class Register:
    """`data`: its key in `ArtifactFile.weights`, for CONSTANT and STATE, and `offset`: where in those bytes it begins.
    Registers of one kind may share data. `strides`: of what has data, in elements; None where it is contiguous."""

    name: str
    kind: RegisterKind
    dtype: str
    dims: tuple[Dim, ...] = ()
    data: str | None = None
    optional: bool = False
    written: bool = False
    choices: tuple[str, ...] = ()
    offset: int = 0
    strides: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """`dtype`: None where returns differ in dtype or rank; there are no `dims` then."""

    name: str
    dtype: str | None
    dims: tuple[Dim, ...] = ()


@dataclass(frozen=True, slots=True)
class Grid:
    """A function of a GPU's code. `slot`: which of the kernel's sizes says how many blocks there are; -1: `blocks`."""

    name: str
    blocks: int
    slot: int
    threads: int
    shared_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Kernel:
    """`buffers`: how many values it takes, sizes included. Of a GPU's: how many numbers those sizes are, and its grids.
    It is called with a pointer for each buffer, one to its workspace, and the sizes; what is an array of numbers among
    the other buffers is given by its first number."""

    name: str
    buffers: int
    sizes: int = 0
    grids: tuple[Grid, ...] = ()


@dataclass(frozen=True, slots=True)
class Symbol:
    """An integer that a variant reads of a register when it is tried; out of its bounds the variant does not hold."""

    name: str
    bind: Bind
    register: int
    dimension: int = 0
    low: int = -LARGEST - 1
    high: int = LARGEST


@dataclass(frozen=True, slots=True)
class Check:
    """An expression that must not be 0."""

    expression: Expression
    text: str


@dataclass(frozen=True, slots=True)
class RegisterValue:
    """`bytes` of a register as it was when the variant began, from `offset` on."""

    register: int
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
class Launch:
    """A kernel on values of the variant. Workspace: `fixed` bytes, and `per_thread` for each thread."""

    kernel: int
    values: tuple[int, ...]
    fixed: Expression = ZERO
    per_thread: Expression = ZERO


@dataclass(frozen=True, slots=True)
class Copy:
    """`bytes` from the start of value `source` to that of value `to`."""

    to: int
    source: int
    bytes: Expression


Step = Launch | Copy


@dataclass(frozen=True, slots=True)
class Produced:
    """A LOCAL register that the variant makes anew, with these sizes."""

    register: int
    dims: tuple[Expression, ...] = ()


@dataclass(frozen=True, slots=True)
class RegisterView:
    """A strided view of a register's elements; `offset` counts elements from the register's first."""

    register: int
    dims: tuple[Expression, ...]
    strides: tuple[Expression, ...]
    offset: Expression = ZERO


@dataclass(frozen=True, slots=True)
class Return:
    """The artifact's outputs: of each the number of a register, a view of one, or None."""

    outputs: tuple[int | RegisterView | None, ...]


@dataclass(frozen=True, slots=True)
class Branch:
    """Go on in one of two states, by whether a register of one bool holds true."""

    register: int
    if_true: int
    if_false: int


@dataclass(frozen=True, slots=True)
class Jump:
    """Go on in a state."""

    state: int


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


@dataclass(frozen=True, slots=True)
class TargetPart:
    """A target: what it needs (`layout.feature_mask`), its state machine and its machine code."""

    machine: Machine
    features: int
    table: Table
    code: Code


@dataclass(frozen=True, slots=True)
class ArtifactFile:
    """All that a file holds. `weights`: bytes, or anything with a buffer of them, by the keys of registers."""

    manifest: Mapping[str, Any]
    targets: tuple[TargetPart, ...]
    weights: Mapping[str, Any]
