"""`Machine`: an exported function as a state machine of programs over registers.

    registers   r0 input x: f32[batch, 4]     r1 constant weight: f32[4, 4]     r2 state count: i64[]     r3 local: f32
    state 0     the first variant whose checks hold runs: its program reads registers and fills others,
                then Return(r3)  |  Branch(r4, state 1, state 2)  |  Jump(state 1)  |  Raise("...")

A straight line is one state with one variant; several variants of a state are for sizes and values that one program
does not do for, as guards are in Python. State 0 is where a call begins.

Sizes that differ from call to call are symbols of a variant, bound from shapes of registers when its state is entered;
sizes in its program, its checks and what it returns are expressions over them (`SymSize`). Arguments name such sizes
(`Dimension`), with bounds, for whoever calls.
"""

from dataclasses import field
from enum import Enum

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.ir.artifact.tree import Tree
from smelt.ir.program import Program
from smelt.ir.table.records import Branch as Branch
from smelt.ir.table.records import Jump as Jump
from smelt.ir.table.records import Raise as Raise
from smelt.ir.table.records import RegisterKind as RegisterKind
from smelt.symbolic.expressions import LARGEST, Expression, SizeGuard, Symbol
from smelt.symbolic.shapes import Shape, Size
from smelt.symbolic.symnode import Formula

# A Python value that an argument may have, a check may ask for, or a call may return.
Plain = bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class Dimension:
    """A dynamic size: its name and bounds. Dimensions of one name are equal."""

    name: str
    least: int = 0
    most: int = LARGEST


@dataclass(frozen=True, slots=True)
class Storage:
    """Bytes that registers show, each a view: weights that share memory in Python share it here. `origin`: PyTorch's
    storage that they are of, from byte `begin` on, by which entry points of one file share them."""

    name: str
    data: torch.Tensor  # of bytes, one dimension, on the host
    origin: torch.UntypedStorage | None = field(default=None, compare=False, repr=False)
    begin: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Register:
    """A tensor, or a number as a tensor without dimensions (i64, f64 or bool).

    Sizes of an input are integers or names of dimensions. A local one has a shape only while a call runs: `shape` is
    None. `stride` counts elements; None is contiguous. What is state or constant is at `offset` bytes of a storage.
    """

    name: str
    kind: RegisterKind
    dtype: torch.dtype
    shape: tuple[int | str, ...] | None = None
    stride: tuple[int, ...] | None = None
    storage: int | None = None
    offset: int = 0


class ArgumentKind(Enum):
    """What a leaf of the arguments is."""

    TENSOR = "tensor"
    NUMBER = "number"  # an int, float or bool of any value, in a register
    VALUE = "value"  # one of `choices`: variants check which


@dataclass(frozen=True, slots=True)
class Argument:
    """One leaf of what the function takes."""

    name: str
    kind: ArgumentKind
    register: int | None = None
    choices: tuple[Plain, ...] = ()


@dataclass(frozen=True, slots=True)
class NumberOf:
    """A number made of the variant's symbols, as a tensor without dimensions: f64 of a formula, i64 of an expression.
    Floats of a formula that are given are symbols too, by their texts."""

    what: Expression | Formula | int | float

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64 if isinstance(self.what, Formula | float) else torch.int64

    @property
    def leaves(self) -> list[Symbol | Formula]:
        """The symbols and given floats that it is made of."""
        if isinstance(self.what, Formula):
            return sorted(self.what.leaves(), key=lambda leaf: str(leaf.text))
        return sorted(self.what.symbols(), key=lambda leaf: leaf.text) if isinstance(self.what, Expression) else []


@dataclass(frozen=True, slots=True)
class Binding:
    """A symbol of a variant: what size `dim` of a register is when the state is entered, or without a dimension, the
    number that the register holds. It does not hold for an integer out of its bounds."""

    symbol: str
    register: int
    dim: int | None = None
    least: int = -LARGEST - 1
    most: int = LARGEST


@dataclass(frozen=True, slots=True)
class SizeCheck:
    """The guard holds of the variant's symbols."""

    guard: SizeGuard


@dataclass(frozen=True, slots=True)
class ValueCheck:
    """Argument number `argument` is this value, of this type."""

    argument: int
    value: Plain


@dataclass(frozen=True, slots=True)
class NumberCheck:
    """`left relation right` is so, of floats; or, if not `holds`, is not."""

    relation: str
    left: NumberOf
    right: NumberOf
    holds: bool = True


Check = SizeCheck | ValueCheck | NumberCheck


@dataclass(frozen=True, slots=True)
class RegisterView:
    """A strided view of a register's elements as a tensor; `offset` counts elements from the register's first."""

    register: int
    shape: Shape
    stride: Shape
    offset: Size = 0


@dataclass(frozen=True, slots=True)
class Scalar:
    """The Python number that a register of one element holds."""

    register: int


@dataclass(frozen=True, slots=True)
class Literal:
    """A value that is always the same, or an integer made of the variant's symbols."""

    value: Plain | Size


Value = RegisterView | Scalar | Literal


@dataclass(frozen=True, slots=True)
class Return:
    """The call ends: `tree` is made of `values`, a value for each leaf."""

    values: tuple[Value, ...]
    tree: Tree


Next = Return | Branch | Jump | Raise


@dataclass(frozen=True, slots=True)
class Variant:
    """What a state does where the checks hold.

    `inputs`: what each input of the program is, a view of a register or a number. `results`: the register that each
    output of the program goes to: a local one becomes that output, into one of state it is copied, unless the program
    has written it there itself (its output is None). None for an output nobody needs. `written`: registers of state
    that the program writes through its inputs, or that results are copied to. `numbers`: registers that get a number
    once all else is done, made of what symbols were at first. `required`: registers of one bool that the program
    fills; where one holds false, the call fails.
    """

    program: Program | None
    inputs: tuple[RegisterView | NumberOf, ...]
    results: tuple[int | None, ...]
    next: Next
    symbols: tuple[Binding, ...] = ()
    checks: tuple[Check, ...] = ()
    written: tuple[int, ...] = ()
    numbers: tuple[tuple[int, NumberOf], ...] = ()
    required: tuple[tuple[int, Raise], ...] = ()


@dataclass(frozen=True, slots=True)
class State:
    """Variants in the order they are tried."""

    name: str
    variants: tuple[Variant, ...]


@dataclass(frozen=True, slots=True)
class Machine:
    """An exported function. `parameters` is a tuple of the positional arguments and a dict of those by keyword;
    `arguments` are its leaves. `notes` tell people what export decided: what was folded, what became state."""

    name: str
    parameters: Tree
    arguments: tuple[Argument, ...]
    dimensions: tuple[Dimension, ...]
    storages: tuple[Storage, ...]
    registers: tuple[Register, ...]
    states: tuple[State, ...]
    notes: tuple[str, ...] = ()
