"""Builds a `Kernel` from ordered scalar code: merges and names axes, lists buffers, writes instructions.

    axes 8 × 16 × 64, all accesses contiguous in the first two   →   rows(i:128) cols(j:64)

Names inside a kernel are positional (`in0`, `out0`, `v3`), so that equal loops in different layers are equal kernels.
"""

from dataclasses import field

from smelt.base.fast_dataclass import dataclass
from smelt.fuse.expressions import Expr, FactorPlace, Place, Space
from smelt.fuse.inline_exprs import Effect
from smelt.fuse.lowering.values import FusionKind, FusionValue
from smelt.fuse.stage_split import Line, Ordered
from smelt.ir.kernel import (
    Accumulate,
    Axis,
    Buffer,
    Cast,
    Compute,
    Const,
    Contract,
    Element,
    Factor,
    Gather,
    Index,
    Instruction,
    Kernel,
    Load,
    Position,
    Quantized,
    Reduce,
    Role,
    Scan,
    Scatter,
    Stage,
    Store,
)
from smelt.symbolic.shapes import Shape, Size, span


@dataclass(frozen=True, slots=True)
class Assembled:
    """A kernel and the values its parameters stand for, in order."""

    kernel: Kernel
    values: tuple[FusionValue, ...]


def assemble(name: str, ordered: Ordered) -> Assembled:
    """Write out a kernel."""
    return _Assembler(name, ordered).run()


class _Axes:
    """The merged axes: which of the old ones lead each new one, and their names."""

    def __init__(self, space: Space, places: set[Place], alone: set[int], plain: bool) -> None:
        runs: list[list[int]] = []
        for axis, size in enumerate(space.sizes):
            if size == 1 and len(space.sizes) > 1:
                continue
            same_side = bool(runs) and (runs[-1][-1] < space.row_axes) == (axis < space.row_axes)
            apart = bool(runs) and not alone.isdisjoint((runs[-1][-1], axis))
            if same_side and not apart and all(_continues(place, space, runs[-1][-1], axis) for place in places):
                runs[-1].append(axis)
            else:
                runs.append([axis])
        sizes = []
        for run in runs:
            total = 1
            for axis in run:
                total *= space.sizes[axis]
            sizes.append(total)
        rows = len(runs) - 1 if plain else sum(run[0] < space.row_axes for run in runs)
        self.rows = tuple(Axis(_name("i", n, rows), size) for n, size in enumerate(sizes[:rows]))
        self.cols = tuple(Axis(_name("j", n, len(runs) - rows), size) for n, size in enumerate(sizes[rows:]))
        self._leaders = [(axis.name, run[-1]) for axis, run in zip(self.rows + self.cols, runs, strict=True)]

    def index(self, place: Place) -> Index:
        terms = tuple((name, place[1 + axis]) for name, axis in self._leaders if place[1 + axis])
        return Index(terms, place[0])

    def within(self, place: Place, along: Shape, axes: tuple[Axis, ...]) -> Index:
        """A position that runs along further axes, too."""
        index = self.index(place)
        inner = tuple((axis.name, step) for axis, step in zip(axes, along, strict=True) if step)
        return Index((*index.terms, *inner), index.offset)

    def name(self, axis: int) -> str:
        """Of an axis that leads one."""
        return next(name for name, leader in self._leaders if leader == axis)


def _continues(place: Place, space: Space, outer: int, inner: int) -> bool:
    return place[1 + outer] == place[1 + inner] * space.sizes[inner]


def _name(letter: str, number: int, count: int) -> str:
    return letter if count == 1 else f"{letter}{number}"


@dataclass(slots=True)
class _Names:
    """Names of values: permanent for rows and reductions, until the end of a loop for its values."""

    count: int = 0
    lasting: dict[Expr, str] = field(default_factory=dict)
    here: dict[Expr, str] = field(default_factory=dict)

    def new(self, expr: Expr, lasting: bool) -> str:
        name = f"v{self.count}"
        self.count += 1
        (self.lasting if lasting else self.here)[expr] = name
        return name

    def of(self, expr: Expr) -> str:
        return self.here.get(expr) or self.lasting[expr]


class _Assembler:
    def __init__(self, name: str, ordered: Ordered) -> None:
        self.name = name
        self.ordered = ordered
        places = {
            place
            for _, lines in ordered.stages
            for line in lines
            for place in _places(line)
        }
        scanned = {line.expr.axis for _, lines in ordered.stages for line in lines if line.expr.op == "scan"}
        self.plain = all(loop for loop, _ in ordered.stages) and not any(
            line.expr.op in ("reduce", "scan") or (line.effect is not None and line.effect.fold is not None)
            for _, lines in ordered.stages
            for line in lines
        )
        if ordered.scratch:
            places.add(_column(ordered.space))
        self.axes = _Axes(ordered.space, places, scanned, self.plain and ordered.space.row_axes == 0)
        self.inputs: dict[FusionValue, Buffer] = {}
        self.outputs: dict[FusionValue, Buffer] = {}
        self.scratch = [
            Buffer(f"keep{n}", dtype, ordered.space.cols, Role.SCRATCH) for n, dtype in enumerate(ordered.scratch)
        ]
        self.names = _Names()

    def run(self) -> Assembled:
        stages = []
        for loop, lines in self.ordered.stages:
            self.names.here = {}
            pending: list[tuple[Expr, str]] = []
            body = [self._write(line, loop, pending) for line in lines]
            self.names.lasting.update(pending)
            stages.append(Stage(loop, tuple(body)))
        values = (*self.inputs, *self.outputs)
        buffers = (*self.inputs.values(), *self.outputs.values(), *self.scratch)
        return Assembled(Kernel(self.name, self.axes.rows, self.axes.cols, buffers, tuple(stages)), values)

    def _write(self, line: Line, loop: bool, pending: list[tuple[Expr, str]]) -> Instruction:
        expr = line.expr
        if line.effect is not None:
            return self._effect(line.effect)
        if line.scratch is not None or line.from_output is not None:
            return self._staged(line)
        index = self.axes.index(expr.place) if expr.place else Index()
        args = [self.names.of(arg) for arg in expr.args]
        if expr.op == "reduce":
            assert expr.fold != "logaddexp"
            name = f"v{self.names.count}"
            self.names.count += 1
            pending.append((expr, name))
            return Reduce(name, expr.fold, args[0])
        out = self.names.new(expr, lasting=not loop)
        if expr.op == "scan":
            return Scan(out, expr.fold, args[0], self.axes.name(expr.axis), expr.backwards)
        if expr.op == "contract":
            axes = tuple(Axis(_name("k", n, len(expr.axes)), size) for n, size in enumerate(expr.axes))
            left, right = (self._factor(factor, axes) for factor in expr.factors)
            return Contract(out, axes, left, right, expr.dtype)
        if expr.op == "load":
            assert expr.source is not None
            return Load(out, self._input(expr.source), index)
        if expr.op == "gather":
            assert expr.source is not None
            by = tuple((arg, *reach) for arg, reach in zip(args, expr.reach, strict=True))
            return Gather(out, self._input(expr.source), index, by)
        if expr.op == "const":
            return Const(out, expr.number, expr.dtype)
        if expr.op == "position":
            return Position(out, index)
        if expr.op == "cast":
            return Cast(out, args[0], expr.dtype)
        return Compute(out, expr.op, tuple(args), expr.dtype)

    def _factor(self, factor: FactorPlace, axes: tuple[Axis, ...]) -> Factor:
        bounds = tuple((self.axes.within(place, along, axes), extent) for place, along, extent in factor.bounds)
        at, quantized = self._element(factor, axes), factor.quantized
        if quantized is None:
            return Factor(at.buffer, at.index, bounds)
        scale, zero, low = (None if each is None else self._element(each, axes) for each in quantized.all)
        assert scale is not None
        return Factor(at.buffer, at.index, bounds, Quantized(quantized.kind, scale, zero, low, quantized.offset))

    def _element(self, factor: FactorPlace, axes: tuple[Axis, ...]) -> Element:
        return Element(self._input(factor.source), self.axes.within(factor.place, factor.along, axes))

    def _staged(self, line: Line) -> Instruction:
        """Store a value for a later pass, or load it there."""
        if line.from_output is not None:
            out = self.names.new(line.expr, lasting=False)
            effect = line.from_output
            return Load(out, self._output(effect.value), self.axes.index(effect.place))
        assert line.scratch is not None
        index = self.axes.index(_column(self.ordered.space))
        if line.reload:
            return Load(self.names.new(line.expr, lasting=False), self.scratch[line.scratch].name, index)
        return Store(self.scratch[line.scratch].name, index, self.names.of(line.expr))

    def _effect(self, effect: Effect) -> Instruction:
        buffer, index = self._output(effect.value), self.axes.index(effect.place)
        value = self.names.of(effect.expr)
        if effect.by:
            by = tuple((self.names.of(place), stride, extent) for place, stride, extent in effect.by)
            return Scatter(buffer, effect.fold, index, by, value, effect.unordered)
        if effect.fold is None:
            return Store(buffer, index, value)
        return Accumulate(buffer, effect.fold, index, value)

    def _input(self, value: FusionValue) -> str:
        if value not in self.inputs:
            self.inputs[value] = _buffer(f"in{len(self.inputs)}", value, Role.INPUT)
        return self.inputs[value].name

    def _output(self, value: FusionValue) -> str:
        if value not in self.outputs:
            role = Role.INOUT if value.kind is FusionKind.SCATTER else Role.OUTPUT
            self.outputs[value] = _buffer(f"out{len(self.outputs)}", value, role)
        return self.outputs[value].name


def _buffer(name: str, value: FusionValue, role: Role) -> Buffer:
    return Buffer(name, value.spec.dtype, span(value.spec.shape, value.spec.stride), role)


def _places(line: Line) -> list[Place]:
    if line.effect is not None:
        return [line.effect.place]
    if line.from_output is not None:
        return [line.from_output.place]
    if line.expr.factors:
        return [place for factor in line.expr.factors for place in factor.places]
    return [line.expr.place] if line.expr.place and line.scratch is None else []


def _column(space: Space) -> Place:
    """The number of a col within its row."""
    steps: list[Size] = [0] * (1 + space.row_axes) + list(space.steps[space.row_axes :])
    return tuple(steps)
