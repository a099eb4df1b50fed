"""Writes the scalar code of a group: every element is loaded, or computed where it is read.

    store y at point ← mul ← load x at point · load w at (point mod cols)

A value in memory becomes a load. A member of the group is computed at the requested place from what it reads there. A
reduction over cols becomes a `reduce`. Members that are not INLINE are only requested at their own point or row.
"""

from collections.abc import Sequence
from typing import Any

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.device.fusion_limits import Limits
from smelt.fuse.expressions import (
    Expr,
    Expressions,
    FactorPlace,
    NeedsCut,
    Place,
    QuantizedPlace,
    Space,
    Unbuildable,
    combine,
)
from smelt.fuse.groups import Group, GroupLevel, Groups
from smelt.fuse.lowering.rules import (
    ContractRule,
    FactorRead,
    PointRule,
    QuantizedRead,
    ReductionRule,
    ScanRule,
    ScatterRule,
    Slot,
)
from smelt.fuse.lowering.values import FusionRead, FusionValue
from smelt.ir.kernel import Reduction
from smelt.ir.scalar import SCALAR_OPS
from smelt.ops.promote import widened
from smelt.ops.record import Number, OperandMemory, Scalar
from smelt.symbolic.shapes import Shape, Size
from smelt.symbolic.symsize import hint, known_equal


@dataclass(frozen=True, slots=True)
class Effect:
    """Something a kernel stores: `value[place] = expr`, or with `fold` its reduction over the missing rows. With `by`,
    it goes to data-dependent places, (expression, stride, extent) each, combined with the old element."""

    value: FusionValue
    place: Place
    expr: Expr
    looped: bool  # once per point, else once per row
    fold: Reduction | None = None
    by: tuple[tuple[Expr, Size, Size], ...] = ()
    unordered: bool = False

    @property
    def needs(self) -> tuple[Expr, ...]:
        return (*(place for place, _, _ in self.by), self.expr)

    @property
    def ready(self) -> int:
        """The first pass in which all of its operands are available."""
        return max(expr.ready for expr in self.needs)

    @property
    def stores(self) -> bool:
        """Whether it only writes each point to a separate place."""
        return self.fold is None and not self.by


@dataclass(frozen=True, slots=True)
class Pulled:
    """The scalar code of a kernel, unordered."""

    space: Space
    effects: list[Effect]


def inline(groups: Groups, group: Group, stored: set[FusionValue]) -> Pulled:
    """The scalar code of `group`, which leaves the values in `stored` in memory."""
    axis_boundaries = set(group.axis_boundaries)
    cols = _cols(group, group.limits)
    while True:
        space = Space.of_boundaries(group.points, cols, axis_boundaries)
        try:
            return Pulled(space, _Puller(groups, group, space, stored).run())
        except NeedsCut as finer:
            if finer.boundary in axis_boundaries:
                raise Unbuildable(str(finer)) from None
            axis_boundaries.add(finer.boundary)


def _cols(group: Group, limits: Limits) -> Size:
    """Points per row. Without reductions all points are alike; a reduction of everything works with any rows."""
    if group.cols is not None:
        return group.cols
    if not group.folds or group.points <= limits.row_elements:
        return group.points
    bounds = sorted({*group.axis_boundaries, group.points}, key=hint)
    fitting = [each for each in bounds if each <= limits.row_elements]
    best = max(fitting, default=1, key=hint)
    above = next(each for each in bounds if hint(each) > hint(best))
    ratio = above // best
    growth = range(1, limits.row_elements // hint(best) + 1)
    grown = max((d for d in growth if known_equal(ratio % d, 0)), default=1)
    return best * grown if best * grown >= 64 else group.points


class _Puller:
    def __init__(self, groups: Groups, group: Group, space: Space, stored: set[FusionValue]) -> None:
        self.groups = groups
        self.group = group
        self.space = space
        self.exprs = Expressions(space)
        self.members = {*group.members, *group.recomputed}
        self.stored = stored
        self._memo: dict[tuple[FusionValue, Place], Expr] = {}
        self._splits: dict[tuple[Place, Shape, Shape], list[Place]] = {}

    def run(self) -> list[Effect]:
        effects: list[Effect] = []
        for value in sorted(self.group.members, key=lambda value: value.id):
            level = self.group.levels[value]
            if level is GroupLevel.GRID:
                effects.append(self._scattered(value) if isinstance(value.rule, ScatterRule) else self._total(value))
                continue
            if level is GroupLevel.INLINE:
                continue
            place = self.space.row if level is GroupLevel.ROW else self.space.point
            expr = self.element(value, place)
            if value in self.stored:
                looped = level is GroupLevel.FULL
                effects.append(Effect(value, place, self.exprs.cast(expr, value.spec.dtype), looped))
        return effects

    def element(self, value: FusionValue, place: Place) -> Expr:
        """The element of `value` at a position in its memory."""
        element = self._memo.get((value, place))
        if element is None:
            element = self._element(value, place)
            if value in self.stored:  # rounded for all that read it, as others find it in memory
                element = self.exprs.cast(self.exprs.cast(element, value.spec.dtype), widened(value.spec.dtype))
            self._memo[(value, place)] = element
        return element

    def _element(self, value: FusionValue, place: Place) -> Expr:
        if value not in self.members and value not in self.groups.inlined:
            return self.exprs.load(value, place)
        if isinstance(value.rule, ReductionRule):
            if self.group.levels[value] is not GroupLevel.ROW or place != self.space.row:
                raise Unbuildable(f"{value.name} is read at other places than its row")
            return self.exprs.reduce(value.rule.call.fold, self._folded(value, value.rule))
        if isinstance(value.rule, ScanRule):
            return self._scanned(value, value.rule, place)
        if isinstance(value.rule, ScatterRule):
            raise Unbuildable(f"{value.name} is read before all of it is written")
        if isinstance(value.rule, ContractRule):
            return self._contracted(value, value.rule, place)
        assert isinstance(value.rule, PointRule)
        return _Emitter(self, value, value.rule.common, place).run(value.rule)

    def _folded(self, value: FusionValue, rule: ReductionRule) -> Expr:
        """The operand of a reduction, at each point."""
        reading = value.readings[0]
        element = self.element(reading.value, self.moved(value, reading, self.space.point))
        return self.exprs.cast(element, rule.call.dtype)

    def _scanned(self, value: FusionValue, rule: ScanRule, place: Place) -> Expr:
        """The result of a scan at its own point, along the axis of its dim."""
        if place != self.space.point:
            raise Unbuildable(f"{value.name} is read at other points than its own")
        axes = zip(self.space.steps, self.space.sizes, strict=True)
        scan_axes = [n for n, axis in enumerate(axes) if axis == (rule.step, rule.size) and n >= self.space.row_axes]
        if not scan_axes:
            raise Unbuildable(f"the dimension that {value.name} runs along is split in parts")
        reading = value.readings[0]
        element = self.element(reading.value, self.moved(value, reading, place))
        return self.exprs.scan(
            rule.call.fold, self.exprs.cast(element, rule.call.dtype), scan_axes[0], rule.call.backwards
        )

    def _contracted(self, value: FusionValue, rule: ContractRule, place: Place) -> Expr:
        """The sums of a product at their own point."""
        if place != self.space.point:
            raise Unbuildable(f"{value.name} is read at other points than its own")
        indices, axes = self.split(place, *value.loop), len(self.space.sizes)
        values = dict(zip(map(id, rule.reads), (reading.value for reading in value.readings), strict=True))

        def placed(factor: FactorRead) -> FactorPlace:
            quantized = factor.quantized
            return FactorPlace(
                values[id(factor)],
                combine(indices, factor.stride, factor.offset, axes),
                factor.along,
                tuple(
                    (combine(indices, bound.stride, bound.offset, axes), bound.along, bound.extent)
                    for bound in factor.bounds
                ),
                None if quantized is None else of_integers(quantized),
            )

        def of_integers(quantized: QuantizedRead) -> QuantizedPlace:
            zero, low = (None if each is None else placed(each) for each in (quantized.zero, quantized.low))
            return QuantizedPlace(quantized.kind, placed(quantized.scale), zero, low, quantized.offset)

        left, right = map(placed, rule.factors)
        return self.exprs.contract(rule.axes, left, right, value.spec.dtype)

    def _total(self, value: FusionValue) -> Effect:
        """A reduction over rows: of each row's own reduction, or of the element in each col."""
        rule = value.rule
        assert isinstance(rule, ReductionRule)
        folded, fold = self._folded(value, rule), rule.call.fold
        indices = self.split(self.space.point, *value.loop)
        place = combine(indices, rule.result, 0, len(self.space.sizes))
        looped = self.space.varies(place)
        if not looped:
            folded = self.exprs.reduce(fold, folded)
        rows = zip(place[1:], self.space.sizes[: self.space.row_axes], strict=False)
        if all(step or size == 1 for step, size in rows):
            return Effect(value, place, self.exprs.cast(folded, value.spec.dtype), looped)
        return Effect(value, place, folded, looped, fold)

    def _scattered(self, value: FusionValue) -> Effect:
        rule = value.rule
        assert isinstance(rule, ScatterRule)
        indices = self.split(self.space.point, *value.loop)
        place = combine(indices, rule.result, rule.offset, len(self.space.sizes))
        put, places = _Emitter(self, value, value.spec.dtype, self.space.point).scattered(rule)
        by = tuple((at, *reach) for at, reach in zip(places, rule.by, strict=True))
        dtype = value.spec.dtype if rule.call.fold is None else put.dtype
        unordered = rule.call.unordered
        return Effect(value, place, self.exprs.cast(put, dtype), True, rule.call.fold, by, unordered)

    def split(self, place: Place, shape: Shape, stride: Shape) -> list[Place]:
        key = (place, shape, stride)
        indices = self._splits.get(key)
        if indices is None:
            indices = self._splits[key] = self.space.split(place, shape, stride)
        return indices

    def moved(self, value: FusionValue, reading: FusionRead, place: Place) -> Place:
        """The position at which `reading` finds the element that `value` needs at `place`."""
        if reading.identity_read:
            return place
        if not any(reading.stride):
            return (reading.offset, *([0] * len(self.space.sizes)))
        indices = self.split(place, *value.loop)
        return combine(indices, reading.stride, reading.offset, len(self.space.sizes))


class _Emitter:
    """The `ops.record.Emitter` of one element of one value."""

    def __init__(self, puller: _Puller, value: FusionValue, common: torch.dtype, place: Place) -> None:
        self.puller = puller
        self.exprs = puller.exprs
        self.value = value
        self.place = place
        self.dtype = value.spec.dtype
        self.result = widened(self.dtype)
        self.common = common
        self.shape = value.spec.shape

    def run(self, rule: PointRule) -> Expr:
        elements = [self._read(number, reading) for number, reading in enumerate(self.value.readings)]
        args = [_filled(argument, elements) for argument in rule.args]
        kwargs = {name: _filled(argument, elements) for name, argument in rule.kwargs.items()}
        scalar = rule.lowering.emit(self, *args, **kwargs)
        return self.exprs.cast(self.exprs.list[scalar.id], self.result)

    def scattered(self, rule: ScatterRule) -> tuple[Expr, tuple[Expr, ...]]:
        """The element that a scatter writes at a point, and its places."""
        elements = [self._read(number, reading) for number, reading in enumerate(self.value.readings)]
        first = rule.first_index
        put = elements[1] if first == 2 else self.const(rule.call.source, self.result)  # type: ignore[arg-type]
        assert isinstance(put, Scalar)
        put = self.cast(put, self.result)
        if rule.call.scale != 1:
            put = self.op("mul", put, self.const(rule.call.scale, self.result))
        places = rule.call.emit(self, lambda *places: places, *elements[first:])
        return self.exprs.list[put.id], tuple(self.exprs.list[place.id] for place in places)

    def _read(self, number: int, reading: FusionRead) -> Scalar | OperandMemory:
        if reading.indirect:
            return OperandMemory(number)
        element = self.puller.element(reading.value, self.puller.moved(self.value, reading, self.place))
        return Scalar(element.id, element.dtype)

    def const(self, value: Number, dtype: torch.dtype) -> Scalar:
        return self.exprs.scalar(self.exprs.const(value, dtype))

    def op(self, name: str, *args: Scalar) -> Scalar:
        operands = tuple(self.exprs.list[arg.id] for arg in args)
        dtype = torch.bool if SCALAR_OPS[name].result == "bool" else operands[-1].dtype
        return self.exprs.scalar(self.exprs.compute(name, operands, dtype))

    def cast(self, value: Scalar, dtype: torch.dtype) -> Scalar:
        return self.exprs.scalar(self.exprs.cast(self.exprs.list[value.id], dtype))

    def position(self, dim: int) -> Scalar:
        index = self.puller.split(self.place, *self.value.loop)[dim]
        return self.exprs.scalar(self.exprs.position(index))


    def gather(self, memory: OperandMemory, by: Sequence[tuple[Scalar, Size, Size]]) -> Scalar:
        reading = self.value.readings[memory.number]
        place = self.puller.moved(self.value, reading, self.place)
        args = tuple(self.exprs.list[index.id] for index, _, _ in by)
        reach = tuple((stride, extent) for _, stride, extent in by)
        return self.exprs.scalar(self.exprs.gather(reading.value, place, args, reach))


def _filled(argument: Any, elements: Sequence[Scalar | OperandMemory]) -> Any:
    return elements[argument.number] if isinstance(argument, Slot) else argument
