"""Copies the steps of some points into a panel, where the points of each step are contiguous.

    panel of 4 points x, for steps k = 0, 1, …     x0 x1 x2 x3 (k=0)  x0 x1 x2 x3 (k=1)  …

Points that are contiguous are copied as vectors. Contiguous steps are transposed in registers, 4 × 4 elements at a
time. Points in any order are copied one by one.
"""

import functools
from collections.abc import Callable

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu.entry_points import params
from smelt.codegen.loops.arrays import Array
from smelt.codegen.loops.builder import Builder, Term
from smelt.device import Target
from smelt.ir.loops import Function, Value
from smelt.ir.tensorspec import short_name
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import known_equal

ACROSS = 4  # numbers of a row that are taken at once


def transposed(b: Builder, rows: list[Value]) -> list[Value]:
    """Of four numbers each, one, two or four rows → four columns. Of longer rows, each four numbers by themselves."""
    if len(rows) == 1:
        return [b.extract(rows[0], lane) for lane in range(ACROSS)]
    lanes = rows[0].lanes

    def paired(one: Value, other: Value, order: tuple[int, ...]) -> Value:
        places = [place % ACROSS + place // ACROSS * lanes for place in order]
        return b.permute(one, [first + place for first in range(0, lanes, ACROSS) for place in places], other)

    if len(rows) == 2:
        return [b.permute(rows[0], [lane, ACROSS + lane], rows[1]) for lane in range(ACROSS)]
    low, high = ([paired(rows[n], rows[n + 1], order) for n in (0, 2)] for order in ((0, 4, 1, 5), (2, 6, 3, 7)))
    return [paired(one, other, order) for one, other in (low, high) for order in ((0, 1, 4, 5), (2, 3, 6, 7))]


def store_transposed(rows: list[Value], to: Array, width: int) -> None:
    """A column of the rows after the other, `width` elements apart."""
    for step, column in enumerate(transposed(to.b, rows)):
        to.store(column, step * width)


@dataclass(frozen=True, slots=True)
class PanelCopy:
    """Of the steps `first` … `last` to a panel `to` of `points`, which has room for `width`."""

    to: Array
    width: int
    points: int
    first: Value
    last: Value

    def _read(self, source: Array, offset: Term, lanes: int = 1) -> Value:
        if source.dtype is self.to.dtype:
            return source.load(offset, lanes)
        return source.load_as(self.to.dtype, offset, lanes)

    def vectors(self, source: Array, offset_of: Callable[[Value], Value]) -> None:
        """Points that begin side by side at `source`; each step is `offset_of` it further."""
        b = self.to.b
        with b.loop(self.first, self.last, guard=True) as step:
            self.to.at(b.mul(step, self.width)).store(self._read(source, offset_of(step), self.width))

    def one_by_one(self, source_of: Callable[[Value], Array], offset_of: Callable[[Value], Value]) -> None:
        b = self.to.b
        with b.loop(0, self.points) as point:
            source, to = source_of(point), self.to.at(point)
            with b.loop(self.first, self.last, guard=True) as step:
                to.store(self._read(source, offset_of(step)), b.mul(step, self.width))

    def along(self, source_of: Callable[[Value], Array]) -> None:
        """Points whose steps are contiguous."""
        b, whole, rest = self.to.b, self.points // ACROSS * ACROSS, self.points % ACROSS
        rest = ACROSS if rest == ACROSS - 1 else rest  # three are transposed as four, where there is room for them
        for first, count, points in ((0, whole // ACROSS, ACROSS), (whole, 1, rest)):
            if not count or not points:
                continue
            with b.loop(0, count) as group:
                start = b.add(b.mul(group, ACROSS), first)
                self._transposed([source_of(b.add(start, n)) for n in range(points)], self.to.at(start))

    def _transposed(self, sources: list[Array], to: Array) -> None:
        """All steps of a few points."""
        b = to.b
        whole = b.and_(self.last, -ACROSS)
        with b.loop(self.first, whole, ACROSS, guard=True) as step:
            rows = [self._read(each, step, ACROSS) for each in sources]
            store_transposed(rows, to.at(b.mul(step, self.width)), self.width)
        with b.loop(whole, self.last, guard=True) as step:
            place = to.at(b.mul(step, self.width))
            for number, each in enumerate(sources):
                place.store(self._read(each, step), number)


# Panels of a matrix with any strides. Points past the last one repeat it; their results are ignored.

_FROM, _POINTS, _POINT, _STEPS, _STEP, _TO = params("ptr from, i64 points, i64 point, i64 steps, i64 step, ptr to")


def pack_matrix(
    source: Array, strides: tuple[Size, Size], counts: tuple[Term, Term], to: Array, width: int, points: int = 0
) -> None:
    """Panels of so many points and steps, one behind the other. A panel has room for `width` points, and has all of
    them, or `points`."""
    point, step = strides
    across, along = (known_equal(stride, 1) for stride in strides)
    how = "across" if across else "along" if along else "any"
    packer = _matrix_packer(how, source.dtype, to.dtype, width, points or width, to.b.target)
    to.b.call_helper(packer, source.pointer, counts[0], point, counts[1], step, to.pointer)


@functools.cache
def _matrix_packer(
    how: str, source: torch.dtype, dtype: torch.dtype, width: int, points: int, target: Target
) -> Function:
    """`(from, points, elements from one to the next, steps, elements from one to the next, to)`. `how` says what is
    contiguous: steps of the sum, points of a panel, or neither."""
    name = f"product.pack_matrix.{how}.{short_name(source)}.{short_name(dtype)}.{width}.{points}"
    b = Builder(target, name)
    matrix, panels = Array(b, _FROM, source), Array(b, _TO, dtype)
    with b.loop(0, _POINTS, points, guard=True) as begin:
        first = begin if points == width else b.mul(b.udiv(begin, points), width)
        copy = PanelCopy(panels.at(b.mul(first, _STEPS)), width, points, b.const("i64", 0), _STEPS)

        def source_of(point: Value) -> Array:
            return matrix.at(b.mul(b.smin(b.add(begin, point), b.sub(_POINTS, 1)), _POINT))

        def offset_of(step: Value) -> Value:
            return b.mul(step, _STEP)

        def one_by_one() -> None:
            copy.one_by_one(source_of, offset_of)

        if how == "along":
            copy.along(source_of)
        elif how == "across":
            is_whole = b.icmp("sle", b.add(begin, width), _POINTS)
            b.choice(is_whole, lambda: copy.vectors(matrix.at(begin), offset_of), one_by_one)
        else:
            one_by_one()
    return b.function(name, (_FROM, _POINTS, _POINT, _STEPS, _STEP, _TO), "shared")
