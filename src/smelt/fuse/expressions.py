"""Unordered scalar code of one kernel: expressions over points, each interned once.

    x at point - m of row, exp   →   load x, load m, sub, exp; if m is a reduction of pass 0, exp is ready in pass 1

A `Place` is an affine position over the kernel's axes. An expression `varies` if it differs between the cols of a row.
Its `ready` is the first pass over the cols in which it is available: a reduction of pass p from pass p + 1 on.
"""

from typing import TYPE_CHECKING, Any, cast

from smelt.base.fast_dataclass import dataclass
from smelt.base.torch_originals import BASE
from smelt.fuse.lowering.values import FusionValue
from smelt.ir.kernel import IntegerKind, Reduction, Running
from smelt.ops.promote import widened
from smelt.ops.record import CHEAP, LIBRARY_COST, ROOT, TRANSCENDENTAL, Number, Scalar
from smelt.symbolic.shapes import Shape, Size
from smelt.symbolic.symsize import hint, is_symsize, known_equal, varies

if TYPE_CHECKING:
    import torch
else:
    from smelt.base.torch_originals import pristine as torch

# Offset, then a stride per axis of the kernel, rows before cols.
Place = tuple[Size, ...]

_COSTS = {
    **dict.fromkeys(("div", "floordiv", "truncdiv", "remainder", "fmod", "sqrt", "rsqrt", "reciprocal"), ROOT),
    **dict.fromkeys(
        ("exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "tanh", "sigmoid", "erf", "pow", "ndtr"),
        TRANSCENDENTAL,
    ),
    "gelu_slope": 2 * TRANSCENDENTAL,
    "fma": 2 * CHEAP,
    "load": 1,
    "gather": ROOT,
    "scan": ROOT,
    "contract": LIBRARY_COST,
    "const": 0,
    "position": 1,
}


_MOVES = ("add", "sub", "mul")
_FAR = 1 << 48


class Unbuildable(Exception):
    """A group whose members' indices cannot be expressed; the text says why."""


class NeedsCut(Exception):
    """The axes are too coarse: the point numbers must also be split at `boundary`."""

    def __init__(self, boundary: Size) -> None:
        super().__init__(f"needs an axis boundary at {boundary}")
        self.boundary = boundary


@dataclass(frozen=True, slots=True)
class Space:
    """The axes of a kernel: extents, the distance of neighbours in point numbers, and how many axes are rows."""

    sizes: Shape
    steps: Shape
    row_axes: int
    cols: Size

    @classmethod
    def of_boundaries(cls, points: Size, cols: Size, axis_boundaries: set[Size]) -> "Space":
        """Axes between neighbouring boundaries, outermost first."""
        inside = {each for each in axis_boundaries if 1 < each < points}
        bounds = sorted(inside | ({cols} - {points, 1}), key=hint, reverse=True)
        sizes: list[Size] = []
        steps: list[Size] = []
        above = points
        for bound in [*bounds, 1]:
            if not known_equal(above % bound, 0):
                raise Unbuildable(f"{above} points cannot be split at {bound}")
            if above > bound or (bound == 1 and not sizes):
                sizes.append(above // bound)
                steps.append(bound)
            above = bound
        rows = sum(step >= cols and size > 1 for size, step in zip(sizes, steps, strict=True))
        return cls(tuple(sizes), tuple(steps), rows, cols)

    @property
    def point(self) -> Place:
        """The number of a point."""
        return (0, *self.steps)

    @property
    def row(self) -> Place:
        """The number of a row."""
        inner = len(self.steps) - self.row_axes
        return (0, *(step // self.cols for step in self.steps[: self.row_axes]), *([0] * inner))

    def varies(self, place: Place) -> bool:
        return any(place[1 + self.row_axes :])

    def split(self, place: Place, shape: Shape, stride: Shape) -> list[Place]:
        """The index along each dim of a dense value, from a position in its memory."""
        rest = list(place)
        indices: list[Place] = [(0,) * len(place)] * len(shape)
        dims = sorted((d for d in range(len(shape)) if shape[d] != 1), key=lambda d: -stride[d])
        for dim in dims:
            step = stride[dim]
            indices[dim] = tuple(-(-part // step) if part < 0 else part // step for part in rest)
            rest = [part - whole * step for part, whole in zip(rest, indices[dim], strict=True)]
            reaches = [part * (size - 1) for part, size in zip(rest[1:], self.sizes, strict=True)]
            highest = rest[0] + sum(reach for reach in reaches if reach > 0)
            lowest = rest[0] + sum(reach for reach in reaches if reach < 0)
            if highest >= step or lowest < 0:
                raise self._finer(rest, step)
        return indices

    def _finer(self, rest: list[Size], step: Size) -> Exception:
        for part, size, own in zip(rest[1:], self.sizes, self.steps, strict=True):
            part = abs(part)
            if part and step % part == 0 and size > step // part and size % (step // part) == 0:
                return NeedsCut(own * (step // part))
        return Unbuildable("an index is not affine in the axes of the kernel")


def combine(indices: list[Place], stride: Shape, offset: Size, axes: int) -> Place:
    """The position in memory of the element at `indices` under strides."""
    total = [0] * (axes + 1)
    total[0] = offset
    for index, step in zip(indices, stride, strict=True):
        if step:
            for axis, part in enumerate(index):
                if part:
                    total[axis] += part * step
    return tuple(total)


@dataclass(frozen=True, slots=True)
class FactorPlace:
    """The position of a factor of a contraction: a place, and strides along the summed axes. Each of `bounds` is such a
    position with its extent."""

    source: FusionValue
    place: Place
    along: Shape
    bounds: tuple[tuple[Place, Shape, Size], ...] = ()
    quantized: "QuantizedPlace | None" = None

    @property
    def places(self) -> tuple[Place, ...]:
        scales = self.quantized.elements if self.quantized else ()
        return (self.place, *(place for place, _, _ in self.bounds), *(each.place for each in scales))

    @property
    def key(self) -> object:
        """What tells it from others."""
        own = (self.source.id, self.place, self.along, self.bounds)
        if self.quantized is None:
            return own
        names = [None if each is None else each.key for each in self.quantized.all]
        return (*own, self.quantized.kind, self.quantized.offset, *names)


@dataclass(frozen=True, slots=True)
class QuantizedPlace:
    """As `ir.kernel.Quantized`."""

    kind: IntegerKind
    scale: FactorPlace
    zero: FactorPlace | None
    low: FactorPlace | None
    offset: int

    @property
    def all(self) -> tuple[FactorPlace | None, ...]:
        return self.scale, self.zero, self.low

    @property
    def elements(self) -> tuple[FactorPlace, ...]:
        return tuple(each for each in self.all if each is not None)


@dataclass(slots=True)
class Expr:
    """One scalar value. `op` is a scalar operation or const, load, gather, position, cast, reduce, scan, contract."""

    id: int
    op: str
    args: "tuple[Expr, ...]"
    dtype: torch.dtype
    number: Number = 0
    source: FusionValue | None = None
    place: Place = ()
    fold: Running = "sum"
    axis: int = 0  # of a scan: the axis it runs along, and whether backwards
    backwards: bool = False
    reach: tuple[tuple[Size, Size], ...] = ()  # of a gather: stride and extent for each place among `args`
    factors: tuple[FactorPlace, ...] = ()  # of a contraction, and the extents of the axes it sums over
    axes: Shape = ()
    varies: bool = False
    ready: int = 0
    cost: int = CHEAP

    def __hash__(self) -> int:
        return self.id

    def __eq__(self, other: object) -> bool:
        return self is other


class Expressions:
    """All expressions of a kernel; equal ones are one."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.list: list[Expr] = []
        self._known: dict[Any, Expr] = {}

    def _intern(self, key: Any, **fields: Any) -> Expr:
        expr = self._known.get(key)
        if expr is None:
            expr = self._known[key] = Expr(len(self.list), **fields)
            self.list.append(expr)
        return expr

    def const(self, number: Number, dtype: torch.dtype) -> Expr:
        number = _fitted(number, dtype)
        key = ("const", repr(number), dtype)
        return self._intern(key, op="const", args=(), dtype=dtype, number=number, cost=0)

    def load(self, source: FusionValue, place: Place) -> Expr:
        """The element at a place, widened for computing."""
        varies, dtype = self.space.varies(place), source.spec.dtype
        loaded = self._intern(
            ("load", source.id, place), op="load", args=(), dtype=dtype, source=source, place=place, varies=varies
        )
        return self.cast(loaded, widened(dtype))

    def gather(
        self, source: FusionValue, place: Place, args: tuple[Expr, ...], reach: tuple[tuple[Size, Size], ...]
    ) -> Expr:
        """The element at a data-dependent place, widened for computing."""
        element = self._intern(
            ("gather", source.id, place, tuple(arg.id for arg in args), reach),
            op="gather",
            args=args,
            dtype=source.spec.dtype,
            source=source,
            place=place,
            reach=reach,
            varies=self.space.varies(place) or any(arg.varies for arg in args),
            ready=max((arg.ready for arg in args), default=0),
            cost=_COSTS["gather"],
        )
        return self.cast(element, widened(source.spec.dtype))

    def position(self, place: Place) -> Expr:
        if not any(place[1:]):
            return self.const(place[0], torch.int64)
        varies = self.space.varies(place)
        return self._intern(("position", place), op="position", args=(), dtype=torch.int64, place=place, varies=varies)

    def cast(self, value: Expr, dtype: torch.dtype) -> Expr:
        if value.dtype is dtype:
            return value
        if value.op == "const":
            return self.const(value.number, dtype)
        if value.op == "cast" and value.args[0].dtype is dtype and widened(dtype) is value.dtype:
            return value.args[0]  # widening and narrowing back changes nothing
        return self._intern(
            ("cast", value.id, dtype), op="cast", args=(value,), dtype=dtype, varies=value.varies, ready=value.ready
        )

    def compute(self, op: str, args: tuple[Expr, ...], dtype: torch.dtype) -> Expr:
        if op in _MOVES and dtype is torch.int64 and (place := self._moved(op, *args)) is not None:
            return self.position(place)
        return self._intern(
            (op, tuple(arg.id for arg in args)),
            op=op,
            args=args,
            dtype=dtype,
            varies=any(arg.varies for arg in args),
            ready=max(arg.ready for arg in args),
            cost=_COSTS.get(op, CHEAP),
        )

    def _moved(self, op: str, left: Expr, right: Expr) -> Place | None:
        """Sums and multiples of positions are positions. None for other values, and for numbers so large that they
        might wrap."""
        if {left.op, right.op} not in ({"position"}, {"position", "const"}) or (op == "mul" and left.op == right.op):
            return None
        nowhere = (0,) * len(self.space.sizes)
        first, second = (
            each.place if each.op == "position" else cast(Place, (each.number, *nowhere)) for each in (left, right)
        )
        if op == "mul":
            factor, place = (first[0], second) if left.op == "const" else (second[0], first)
            position = tuple(factor * part for part in place)
        else:
            position = tuple(a + b if op == "add" else a - b for a, b in zip(first, second, strict=True))
        return position if all(abs(hint(part)) < _FAR for part in position) else None

    def reduce(self, fold: Reduction, value: Expr) -> Expr:
        """The reduction of a value over the cols of its row."""
        return self._intern(
            ("reduce", fold, value.id), op="reduce", args=(value,), dtype=value.dtype, fold=fold, ready=value.ready + 1
        )

    def scan(self, fold: Running, value: Expr, axis: int, backwards: bool) -> Expr:
        """The reduction of a value over the points of its row up to each along an axis."""
        return self._intern(
            ("scan", fold, value.id, axis, backwards),
            op="scan",
            args=(value,),
            dtype=value.dtype,
            fold=fold,
            axis=axis,
            backwards=backwards,
            varies=True,
            ready=value.ready,
            cost=_COSTS["scan"],
        )

    def contract(self, axes: Shape, left: FactorPlace, right: FactorPlace, dtype: torch.dtype) -> Expr:
        """The sum over its own axes of products of factors in memory."""
        return self._intern(
            ("contract", axes, left.key, right.key),
            op="contract",
            args=(),
            dtype=dtype,
            factors=(left, right),
            axes=axes,
            varies=True,
            cost=_COSTS["contract"],
        )

    def scalar(self, expr: Expr) -> Scalar:
        return Scalar(expr.id, expr.dtype)


def _fitted(number: Number, dtype: torch.dtype) -> Number:
    """A number as a constant of `dtype`: narrow floats rounded, integers wrapped as PyTorch wraps them."""
    if dtype is torch.bool:
        return bool(number)
    if is_symsize(number) or (varies(number) and dtype.is_floating_point):
        return number
    if dtype in (torch.float16, torch.bfloat16):
        return float(BASE.item(torch.tensor(float(number), dtype=dtype)))
    if dtype.is_floating_point:
        return float(number)
    whole, limits = int(number), torch.iinfo(dtype)
    span = limits.max - limits.min + 1
    return (whole - limits.min) % span + limits.min
