"""The kernel form: loops over buffers, the same for every target.

A kernel visits every point of `rows`; rows are independent of each other and may run in any order, on any thread or
block. For each row it runs its `stages` in order. A loop stage visits every point of `cols`; a row stage runs once.
Values are in SSA form and typed; a value of a loop stage is visible only in that stage (pass it on through a scratch
buffer), a value of a row stage and the result of a `Reduce` are visible in all later stages of the row.

    kernel softmax rows(i:2048) cols(j:1024)          text form, see `ir.text`
      in x: f32[2097152]
      out y: f32[2097152]
      scratch e: f32[1024]
      loop:
        v0 = load x[1024*i + j]
        m = reduce max v0
      loop:
        v1 = load x[1024*i + j]
        v2 = sub v1, m : f32
        v3 = exp v2 : f32
        store e[j] = v3
        s = reduce sum v3
      loop:
        v4 = load e[j]
        v5 = div v4, s : f32
        store y[1024*i + j] = v5

`Reduce` folds over the cols of one row, `Scan` over those up to each point. `Accumulate` folds over rows: the buffer
element at an index that leaves some row axes out becomes the fold of all values sent to it (no prior contents, no
zero-fill needed). How a fold is kept accurate and shared between threads is the target's business; sums of f32 and
narrower are to be kept so that their error does not grow with the number of rows. `Scatter` changes what is in a
buffer, at places that depend on data; points that meet at one place take turns in the order of their rows, then
cols, and elsewhere the buffer stays as it is. `Contract` multiplies two buffers and sums over axes of its own; it is a
value of a loop stage as others are, and what follows it is its epilogue:

    kernel linear rows(i:128) cols(j:3072)
      in x: f32[98304]
      in w: f32[2359296]
      in b: f32[3072]
      out y: f32[393216]
      loop:
        p = contract (k:768) x[768*i + k], w[768*j + k] : f32
        v1 = load b[j]
        v2 = add p, v1 : f32
        store y[3072*i + j] = v2

A factor may be quantized: integers, of which two may share a byte, with a scale for each group along the sum.

      p = contract (g:12, k:64) x[768*i + 64*g + k], (u4 w[768*j + 64*g + k] - 8) * s[12*j + g] : f32

`WeightedSum` multiplies values of a loop with a buffer and sums over the rows or the cols. Between contractions and
weighted sums, with a `Softmax` among them, rows and cols are the scores of an attention, which is never in memory:

    kernel attention rows(h:12, i:128) cols(j:128)
      in q: f32[98304]
      in k: f32[98304]
      in v: f32[98304]
      out y: f32[98304]
      out l: f32[1536]
      loop:
        s = contract (e:64) q[8192*h + 64*i + e], k[8192*h + 64*j + e] : f32
        c = const 0.125 : f32
        t = mul s, c : f32
        p, m = softmax t
        weighted sum (d:64) y[8192*h + 64*i + d] = p * v[8192*h + 64*j + d] : f32
      row:
        store l[128*h + i] = m

A stage may run once per step of an axis of its own, in order. Stores to scratch are visible from the next step on, and
contractions may read scratch. One kernel computes all steps of a recurrent layer; its scratch is the state.

    kernel rnn rows(b:8) cols(j:64)
      in x: f32[25600]
      in w: f32[4096]
      out y: f32[25600]
      scratch h: f32[64]
      loop:
        c = const 0.0 : f32
        store h[j] = c
      steps(t:50):
        p = contract (k:64) h[k], w[64*j + k] : f32
        v0 = load x[64*b + 512*t + j]
        v1 = add v0, p : f32
        v2 = tanh v1 : f32
        store y[64*b + 512*t + j] = v2
        store h[j] = v2
"""

from enum import Enum
from typing import Literal

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.symbolic.shapes import Size, product

SIZES = "sizes"  # the last buffer of a kernel whose sizes vary: a table of them in the host's memory, for its launcher
HOST = "cpu"  # the target that kernels are for unless they say otherwise

Reduction = Literal["sum", "prod", "max", "min", "any", "all"]
IntegerKind = Literal["i8", "u8", "i4", "u4"]  # signed or not, of 8 or 4 bits
Running = Reduction | Literal["logaddexp"]  # what scans fold by: log(exp(a) + exp(b)) too


def neutral(op: Running, dtype: torch.dtype) -> float | bool:
    """What a fold of nothing gives."""
    if op in ("any", "all"):
        return op == "all"
    if op in ("sum", "prod"):
        return 0 if op == "sum" else 1
    if dtype.is_floating_point:
        return float("inf") if op == "min" else float("-inf")
    limits = torch.iinfo(dtype)
    return limits.min if op == "max" else limits.max


class Role(Enum):
    """How a kernel uses a buffer."""

    INPUT = "in"
    OUTPUT = "out"  # every element the kernel is responsible for is written; prior contents are not read
    INOUT = "inout"  # read and then overwritten at the same index, for updates in place; or scattered to
    SCRATCH = "scratch"  # private to a row in progress; index over cols only; contents do not outlive the row


@dataclass(frozen=True, slots=True)
class Axis:
    name: str
    size: Size


@dataclass(frozen=True, slots=True)
class Index:
    """An affine position in a buffer: `offset + Σ stride · axis`. Terms follow axis order; no stride is zero."""

    terms: tuple[tuple[str, Size], ...] = ()
    offset: Size = 0

    @property
    def axes(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.terms)

    def stride(self, axis: str) -> Size:
        """How far one step along `axis` moves; zero where the index does not depend on it."""
        return next((stride for name, stride in self.terms if name == axis), 0)


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory a kernel touches: `size` elements of `dtype`, addressed by plain element positions. `on_host`: one element
    that the host has, of a kernel for another device; it is read when the kernel is launched."""

    name: str
    dtype: torch.dtype
    size: Size
    role: Role
    on_host: bool = False


@dataclass(frozen=True, slots=True)
class Const:
    """`out = value`, of `dtype`."""

    out: str
    value: float | int | bool
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Load:
    """`out = buffer[index]`, of the buffer's dtype."""

    out: str
    buffer: str
    index: Index


@dataclass(frozen=True, slots=True)
class Gather:
    """`out = buffer[index + Σ stride · value]`, at places that depend on data.

    Each of `by` is (value, stride, extent): an int64 that counts from 0 to below its extent. One outside of that is
    taken for the last within, or if it is a position for any element of the buffer, of which nothing may depend then:
    nothing outside of the buffer is ever read, whatever the values are.
    """

    out: str
    buffer: str
    index: Index
    by: tuple[tuple[str, Size, Size], ...]


@dataclass(frozen=True, slots=True)
class Position:
    """`out = index`, the position itself as an int64 value (arange, one-hot, triangular masks)."""

    out: str
    index: Index


@dataclass(frozen=True, slots=True)
class Compute:
    """`out = op(args)`, one of `ir.scalar.SCALAR_OPS`; `dtype` is the result's."""

    out: str
    op: str
    args: tuple[str, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Cast:
    """`out = value` converted to `dtype`, as `Tensor.to` converts."""

    out: str
    value: str
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Store:
    """`buffer[index] = value`; the value already has the buffer's dtype."""

    buffer: str
    index: Index
    value: str


@dataclass(frozen=True, slots=True)
class Reduce:
    """`out` = the fold of `value` over the cols of this row; of `value`'s dtype; visible in later stages."""

    out: str
    op: Reduction
    value: str


@dataclass(frozen=True, slots=True)
class Scan:
    """`out` = the fold of `value` over all points of this row up to its own along the col axis `axis`, which is then
    visited in order; or with `backwards`, from its own on. Of `value`'s dtype; every other col axis is kept."""

    out: str
    op: Running
    value: str
    axis: str
    backwards: bool = False


@dataclass(frozen=True, slots=True)
class Accumulate:
    """`buffer[index]` = the fold of `value` over all rows (and cols) that `index` does not name."""

    buffer: str
    op: Reduction
    index: Index
    value: str


@dataclass(frozen=True, slots=True)
class Scatter:
    """`buffer[index + Σ stride · place]` = what is there folded with `value`, or `value` itself where `op` is None.

    Each of `by` is (place, stride, extent) as in a gather, but a point with a place outside of its extent leaves
    nothing. A value of f32 may go to a narrower buffer: it is rounded each time. With `unordered`, points that meet
    may take turns in any order, another one each time: eager does so too.
    """

    buffer: str
    op: Reduction | None
    index: Index
    by: tuple[tuple[str, Size, Size], ...]
    value: str
    unordered: bool = False


@dataclass(frozen=True, slots=True)
class Element:
    """`buffer[index]`."""

    buffer: str
    index: Index


@dataclass(frozen=True, slots=True)
class Quantized:
    """How the integers of a factor become numbers: `(integer - offset - zero) · scale + low`, in the dtype of the sum.

    `kind`: the integers. An "i8" or "u8" is an element of the buffer. Two "i4" or "u4" share a byte; the index of the
    factor counts them, the lower half of each byte first. `offset` is the same for all of them; `scale`, `zero` and
    `low` are read over the same axes as the factor.
    """

    kind: IntegerKind
    scale: Element
    zero: Element | None = None
    low: Element | None = None
    offset: int = 0

    @property
    def elements(self) -> tuple[Element, ...]:
        """Everything that is read beside the integers."""
        return tuple(each for each in (self.scale, self.zero, self.low) if each is not None)

    @property
    def is_packed(self) -> bool:
        """Whether two integers share a byte."""
        return self.kind in ("i4", "u4")


@dataclass(frozen=True, slots=True)
class Factor:
    """`buffer[index]`, one of the two things a contraction multiplies; zero where a position is out of its bounds.

    `index` is over rows, cols and the contraction's own axes. Each of `bounds` is (position, extent): where a position
    is not one of 0 … extent - 1 nothing is read and the factor is zero (padding). `quantized`: the buffer has integers.
    """

    buffer: str
    index: Index
    bounds: tuple[tuple[Index, Size], ...] = ()
    quantized: Quantized | None = None

    @property
    def elements(self) -> tuple[Element, ...]:
        """Everything that is read: the factor, then the scale and the rest of a quantized one."""
        return (Element(self.buffer, self.index), *(self.quantized.elements if self.quantized else ()))

    @property
    def indices(self) -> tuple[Index, ...]:
        """Those of its elements and of its bounds."""
        return (*(each.index for each in self.elements), *(position for position, _ in self.bounds))


@dataclass(frozen=True, slots=True)
class Contract:
    """`out` = the sum over all points of `axes` of `left · right`, each converted to `dtype` first and summed in it.

    Axes of rows and cols that only one factor names count what it has of its own (M and N of a product), those that
    both name are a batch. The sum may be taken in any order, but in the same one whatever the number of threads: f32
    for f32 and narrower, f64 for f64. What a factor out of its bounds is multiplied with may be left unread, as eager's
    convolutions do or do not: whether 0 · inf is in the sum is not said. With no points to sum over it is zero.
    A kernel has one contraction at most, and then one stage, a loop, with no other folds in it; or several, if what
    they give is weighed (see `WeightedSum`), or in a stage of several steps.
    """

    out: str
    axes: tuple[Axis, ...]
    left: Factor
    right: Factor
    dtype: torch.dtype

    @property
    def factors(self) -> tuple[Factor, Factor]:
        return self.left, self.right


@dataclass(frozen=True, slots=True)
class Softmax:
    """`out` = exp(value) over the sum of exp(value) of this row's cols, at every point; of `value`'s dtype.

    `sums`, if it is not "", is the logarithm of that sum: one for the row, visible in later stages. Where all values of
    a row are -inf, or there are none, nothing has weight: `out` is zero and so is `sums`; with `nan`, `out` is NaN.
    """

    out: str
    value: str
    sums: str = ""
    nan: bool = False


@dataclass(frozen=True, slots=True)
class WeightedSum:
    """`buffer[index]` = the sum of `value · factor` over the rows and cols that `index` does not name.

    At each point of `axes`, which are its own: `index` names them all, and `factor` may. Summed in `dtype`, which is
    the value's, in any order that is the same for every number of threads; rounded once if the buffer is narrower.
    Such a kernel has one loop and after it one row stage at most, and no other folds than contractions and a softmax.
    """

    buffer: str
    index: Index
    axes: tuple[Axis, ...]
    value: str
    factor: Factor
    dtype: torch.dtype

    @property
    def factors(self) -> tuple[Factor]:
        return (self.factor,)


Instruction = (
    Const
    | Load
    | Gather
    | Position
    | Compute
    | Cast
    | Store
    | Reduce
    | Scan
    | Accumulate
    | Scatter
    | Contract
    | Softmax
    | WeightedSum
)
Access = Load | Gather | Store | Accumulate | Scatter  # has a buffer and an index


@dataclass(frozen=True, slots=True)
class Stage:
    """A loop over cols, or (`loop=False`) straight-line code run once per row."""

    loop: bool
    body: tuple[Instruction, ...]
    steps: Axis | None = None  # of a loop that runs once for each, in order

    def axes(self, kernel: "Kernel") -> tuple[Axis, ...]:
        """Those that run in it: rows, then steps, then cols."""
        return (*kernel.rows, *((self.steps,) if self.steps else ()), *(kernel.cols if self.loop else ()))


def indices_of(instruction: Instruction) -> tuple[Index, ...]:
    """All indices of an instruction, those of its factors last."""
    own = (instruction.index,) if isinstance(instruction, Access | Position | WeightedSum) else ()
    factors = instruction.factors if isinstance(instruction, Contract | WeightedSum) else ()
    return (*own, *(index for factor in factors for index in factor.indices))


@dataclass(frozen=True, slots=True)
class Kernel:
    """One loop nest. `buffers` are its parameters, in order, scratch ones excepted."""

    name: str
    rows: tuple[Axis, ...]
    cols: tuple[Axis, ...]
    buffers: tuple[Buffer, ...]
    stages: tuple[Stage, ...]
    target: str = HOST  # what it is to run on, by the name it has in `device.registry`
    # It may be launched before earlier launches have ended, and waits for them. These buffers, which no launch of the
    # program writes, it may read before. None: earlier launches have ended.
    early: tuple[str, ...] | None = None

    @property
    def parameters(self) -> tuple[Buffer, ...]:
        """The buffers a caller passes, in order."""
        return tuple(buffer for buffer in self.buffers if buffer.role is not Role.SCRATCH)

    @property
    def row_count(self) -> Size:
        return product(axis.size for axis in self.rows)

    @property
    def col_count(self) -> Size:
        return product(axis.size for axis in self.cols)

    @property
    def stepped(self) -> Stage | None:
        """The stage that runs several times for a row, if there is one."""
        return next((stage for stage in self.stages if stage.steps is not None), None)

    def buffer(self, name: str) -> Buffer:
        for candidate in self.buffers:
            if candidate.name == name:
                return candidate
        raise KeyError(f"kernel {self.name} has no buffer {name!r}")

    def instructions(self) -> tuple[Instruction, ...]:
        """Every instruction, in order, across stages."""
        return tuple(instruction for stage in self.stages for instruction in stage.body)


@dataclass(frozen=True, slots=True)
class KernelGroup:
    """Kernels for one target that are launched as one. None writes what another reads or writes: they may run in any
    order, or side by side. Its parameters are those of its kernels, one kernel's after the other's."""

    name: str
    kernels: tuple[Kernel, ...]

    @property
    def target(self) -> str:
        return self.kernels[0].target

    @property
    def parameters(self) -> tuple[Buffer, ...]:
        return tuple(buffer for kernel in self.kernels for buffer in kernel.parameters)

    def instructions(self) -> tuple[Instruction, ...]:
        """Those of all its kernels."""
        return tuple(instruction for kernel in self.kernels for instruction in kernel.instructions())


AnyKernel = Kernel | KernelGroup  # what a step of a program launches


def members(kernel: AnyKernel) -> tuple[Kernel, ...]:
    """The kernels that a launch runs."""
    return kernel.kernels if isinstance(kernel, KernelGroup) else (kernel,)
