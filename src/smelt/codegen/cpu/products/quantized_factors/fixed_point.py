"""Few rows times quantized weights by dot products of bytes: x becomes integers of 24 bits, three bytes each.

    x[k] = (65536 · a[k] + 256 · b[k] + c[k]) · 2^-n      a, b, c: signed bytes; n: of a group of a row of x
    sum of weight[k] · x[k] over a group: three dot products of bytes, exact, then one multiplication by 2^-n · scale

The largest element of a group keeps 22 bits or more, so products are as exact as those in float32. Weights become
unsigned bytes; what is subtracted from all of them is subtracted from the sums, as an integer. The right factor is read
in order, a row at a time, and scales by whole vectors. Infinite and undefined elements of x have no such form; nor have
groups of very large or very small elements, as steps times scales may have no float32. Nor have groups with an outlier:
other elements would be rounded more than in float32.

If x itself is bytes with a scale for each group, each is the only digit of an integer, and n is the scale.
"""

from collections.abc import Callable
from functools import partial

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu.entry_points import params
from smelt.codegen.cpu.products.dot import store_totals
from smelt.codegen.cpu.products.problem import Problem
from smelt.codegen.cpu.products.quantized_factors.layout import Beside, Layout, left_vectors
from smelt.codegen.loops.arrays import Array
from smelt.codegen.loops.builder import Builder
from smelt.device import Target
from smelt.ir.kernel import Quantized
from smelt.ir.loops import Function, Value
from smelt.symbolic.symsize import hint, known_equal

_DIGITS = 3  # bytes of an integer that was a float32
_MOST_ROWS, _MOST_ROWS_OF_BYTES = 2, 4
_PIECE_VECTORS = 16  # of the right factor that are written one after the other
_LONG_COLS = 4  # times rows: their sums stay in registers
# Ahead of one row of the right factor, and of several. Sapphire Rapids reads 4-bit weights at 0.95 of a plain read with
# 4,096, at 0.83 with 1,024 and 0.65 without; 8-bit weights of four rows at 0.9 to 1 with all of them.
_PREFETCH_BYTES, _PREFETCH_BYTES_OF_EACH = 4096, 1024
_LARGEST_MANTISSA = 2 * (0x7F7F7F - (1 << 22))  # of a float32 that, times 2^22, rounds to at most three bytes of 127
_LEAST_EXPONENT, _END_EXPONENT = 127 - 80, 127 + 100  # of the largest element of a group, as float32 has it
_OUTLIER = 16  # times the mean magnitude of a group: then elements are rounded by about 4 ulp of a sum of random ones
_TO_BYTES = 0x808080  # makes all three bytes unsigned


@dataclass(frozen=True, slots=True)
class FixedPoint:
    """How a tile is multiplied. `lanes`: of 4 bytes, in a vector of the right factor. `moved`: what is subtracted from
    the unsigned bytes. `digits`: bytes of an integer of x. `is_short`: a vector's sum of such integers fits in 32 bits.
    `scale_step`: from one group to the next in what is read beside the weights."""

    rows: int
    lanes: int
    groups: int
    units: int
    parts: int
    moved: int
    digits: int
    is_short: bool
    has_sums: bool
    scale_step: int

    @property
    def width(self) -> int:
        """Bytes of a vector."""
        return 4 * self.lanes

    @property
    def vectors(self) -> int:
        """Vectors of the right factor in a row."""
        return self.groups * self.units // self.width

    @property
    def steps(self) -> int:
        """Vectors of a group; 1 where a vector has one or several groups."""
        return max(1, self.units // self.width)

    @property
    def is_long(self) -> bool:
        """Whether a group is a loop of its own."""
        return self.steps > _PIECE_VECTORS

    @property
    def cols(self) -> int:
        """Rows of the right factor side by side. Memory is read faster from several; pieces need many registers."""
        return max(1, _LONG_COLS // self.rows) if self.is_long else 1

    # A tile of the left factor, in elements of 4 bytes: bytes of x for each vector; what is subtracted from the sums
    # of each vector or group; steps 2^-n of each group; sums of each group.

    @property
    def vector_elements(self) -> int:
        return self.rows * self.parts * self.digits * self.lanes

    @property
    def correction_elements(self) -> int:
        """Of each vector, or of each group of several."""
        return self.rows * (1 if self.is_short else self.digits) * self.lanes if self.moved else 0

    @property
    def corrections_at(self) -> int:
        return self.vectors * self.vector_elements

    @property
    def steps_at(self) -> int:
        return self.corrections_at + self.vectors // self.steps * self.correction_elements

    @property
    def sums_at(self) -> int:
        return self.steps_at + self.rows * self.groups

    @property
    def elements(self) -> int:
        return self.sums_at + (self.rows * self.groups if self.has_sums else 0)


def fixed_point_of(problem: Problem, layout: Layout, target: Target) -> FixedPoint | None:
    """The form, if the target multiplies bytes, and a product has few rows and groups that make up whole vectors."""
    quantized, rows = problem.contract.right.quantized, hint(problem.rows)
    assert quantized is not None
    digits = _DIGITS if problem.contract.left.quantized is None else 1
    if digits == 1:
        rows = min(rows, _MOST_ROWS_OF_BYTES)
    if not target.dots_bytes or (digits > 1 and rows > _MOST_ROWS):
        return None
    scale_step = 0 if digits == 1 and all(known_equal(step, 0) for step in layout.scales) else 1
    if layout.groups > 1 and any(not known_equal(step, scale_step) for step in layout.scales):
        return None
    for lanes in (16, 8):
        width = 4 * lanes
        together = layout.units % width == 0 or (width % layout.units == 0 and layout.group_right == layout.units)
        is_whole = layout.groups * layout.units % width == 0 and layout.units % lanes == 0
        if lanes * 32 <= target.vector_bits and together and is_whole:
            break
    else:
        return None
    moved = moved_by(quantized)
    parts, steps = len(layout.parts), max(1, layout.units // width)
    largest = max((15 if quantized.is_packed else 255) - moved, moved)
    terms = 4 * parts * largest
    if terms * steps * 128 >= 1 << 31:
        return None
    has_sums = quantized.zero is not None or quantized.low is not None
    is_short = digits == 1 or (steps == 1 and terms << 23 <= 1 << 31)
    return FixedPoint(
        rows, lanes, layout.groups, layout.units, parts, moved, digits, is_short, has_sums, scale_step
    )


def moved_by(quantized: Quantized) -> int:
    """What is subtracted from the integers of a factor after they became unsigned."""
    return quantized.offset + {"i4": 8, "i8": 128, "u4": 0, "u8": 0}[quantized.kind]


# The left factor.


def pack_fixed(
    b: Builder, form: FixedPoint, layout: Layout, dtype: torch.dtype, lines: list[Array], place: Array, flag: Array
) -> None:
    """Pack the `lines` of a tile of the left factor; 0 becomes the `flag` if a group has no such form."""
    steps, sums = place.at(form.steps_at), place.at(form.sums_at)
    for row, line in enumerate(lines):
        with b.loop(0, form.groups) as group:
            start = line.at(b.mul(group, layout.group_left))
            size = group_size(b, layout, dtype, start, form.lanes)
            with b.when(size.is_uneven):
                flag.store(flag.zero())
            largest = size.largest
            exponent = b.smax(b.lshr(b.add(largest, (1 << 23) - 1 - _LARGEST_MANTISSA), 23), _LEAST_EXPONENT)
            exponent = b.smin(exponent, 255)
            factor = b.from_bits(b.shl(b.sub(276, exponent), 23))  # 2^n: 127 + 22 - (exponent - 127)
            where = b.add(group, row * form.groups)
            steps.store(b.from_bits(b.shl(b.sub(exponent, 22), 23)), where)
            if form.has_sums:
                sums.store(b.reduce_lanes("fadd", size.sums, b.const("f32", 0.0), "reassoc"), where)
            _pack_group(b, form, layout, dtype, start, place, (row, group), partial(_bytes_of, b, factor=factor))
    if form.moved:
        _pack_corrections(b, form, place)


def pack_bytes(
    b: Builder, form: FixedPoint, layout: Layout, lines: list[Array], scales: list[Array], place: Array
) -> None:
    """Pack the `lines` of a tile of a left factor of bytes."""
    steps, sums = place.at(form.steps_at), place.at(form.sums_at)
    for row, line in enumerate(lines):
        with b.loop(0, form.groups) as group:
            start, where = line.at(b.mul(group, layout.group_left)), b.add(group, row * form.groups)
            scale = scales[row].load_as(torch.float32, b.mul(group, layout.left_scale))
            steps.store(scale, where)
            if form.has_sums:
                total = sum_of_bytes(b, layout, start, form.lanes)
                sums.store(b.fmul(b.convert("sitofp", total, "f32"), scale), where)
            _pack_group(b, form, layout, torch.int8, start, place, (row, group), lambda digit: [digit])
    if form.moved:
        _pack_corrections(b, form, place)


def sum_of_bytes(b: Builder, layout: Layout, start: Array, lanes: int) -> Value:
    """Of a group of a row of bytes."""
    loop = b.begin(0, layout.units, lanes, [b.const("i32", 0, lanes)])
    (total,) = loop.values
    for vector in left_vectors(b, torch.int8, start, layout, loop.index, lanes):
        total = b.add(total, b.convert("sext", vector, "i32"))
    (total,) = loop.end(total)
    return b.reduce_lanes("add", total)


def _pack_group(
    b: Builder, form: FixedPoint, layout: Layout, dtype: torch.dtype, start: Array, place: Array,
    where: tuple[int, Value], digits_of: Callable[[Value], list[Value]],
) -> None:  # fmt: skip
    """The digits of a group of a row."""
    row, group = where
    first = b.mul(group, form.units)
    with b.loop(0, form.units, form.lanes) as unit:
        vectors = left_vectors(b, dtype, start, layout, unit, form.lanes)
        at = b.add(first, unit)
        vector = b.udiv(at, form.width)
        inside = b.udiv(b.urem(at, form.width), 4)
        to = place.at(b.add(b.mul(vector, form.vector_elements), inside))
        for part, numbers in enumerate(vectors):
            for number, digits in enumerate(digits_of(numbers)):
                offset = ((row * form.parts + part) * form.digits + number) * form.lanes
                b.store(digits, to.at(offset).pointer)


@dataclass(frozen=True, slots=True)
class GroupSize:
    """Of a group of a row of x. `largest`: the bits of the largest magnitude. `sums`: of the elements of each lane.
    `is_uneven`: elements are very large or very small, or one is an outlier."""

    largest: Value
    sums: Value
    is_uneven: Value


def group_size(b: Builder, layout: Layout, dtype: torch.dtype, start: Array, lanes: int) -> GroupSize:
    zeros = b.const("f32", 0.0, lanes)
    loop = b.begin(0, layout.units, lanes, [b.const("i32", 0, lanes), zeros, zeros])
    largest, sums, magnitudes = loop.values
    for vector in left_vectors(b, dtype, start, layout, loop.index, lanes):
        magnitude = b.and_(b.bits(vector), 0x7FFFFFFF)
        largest = b.smax(largest, magnitude)
        sums = b.fadd(sums, vector)
        magnitudes = b.fadd(magnitudes, b.from_bits(magnitude))
    largest, sums, magnitudes = loop.end(largest, sums, magnitudes)
    largest = b.reduce_lanes("smax", largest)
    total = b.reduce_lanes("fadd", magnitudes, b.const("f32", 0.0), "reassoc")
    is_small = b.and_(b.icmp("ne", largest, 0), b.icmp("slt", largest, _LEAST_EXPONENT << 23))
    share = b.fmul(b.from_bits(largest), layout.units * len(layout.parts) / _OUTLIER)
    is_uneven = b.or_(b.or_(is_small, b.fcmp("ogt", share, total)), b.icmp("sge", largest, _END_EXPONENT << 23))
    return GroupSize(largest, sums, is_uneven)


def _bytes_of(b: Builder, floats: Value, factor: Value) -> list[Value]:
    """Three vectors of signed bytes, the highest first."""
    scaled = b.fmul(floats, factor)
    whole = b.add(b.saturated_integer(b.intrinsic("roundeven", scaled), "i32"), _TO_BYTES)
    return [b.xor(b.convert("trunc", b.lshr(whole, shift), "i8"), -128) for shift in (16, 8, 0)]


def _pack_corrections(b: Builder, form: FixedPoint, place: Array) -> None:
    """What is subtracted from the unsigned bytes, times the sums of x that meet in each lane."""
    corrections = place.at(form.corrections_at)
    ones = b.const("i32", 0x01010101, form.lanes)
    with b.loop(0, form.vectors // form.steps) as number:
        first = place.at(b.mul(number, form.steps * form.vector_elements))
        to = corrections.at(b.mul(number, form.correction_elements))
        for row in range(form.rows):
            loop = b.begin(0, form.steps, 1, [b.const("i32", 0, form.lanes)] * form.digits)
            here = first.at(b.mul(loop.index, form.vector_elements))
            sums = list(loop.end(*_dotted(b, form, here, row, [ones] * form.parts, list(loop.values))))
            if form.is_short:
                sums = [_joined(b, sums)]
            for place_of, total in enumerate(sums):
                offset = (row * len(sums) + place_of) * form.lanes
                b.store(b.mul(total, -form.moved), to.at(offset).pointer)


def _joined(b: Builder, sums: list[Value]) -> Value:
    total, *others = sums
    for each in others:
        total = b.add(b.shl(total, 8), each)
    return total


def _dotted(
    b: Builder, form: FixedPoint, here: Array, row: int, weights: list[Value], sums: list[Value]
) -> list[Value]:
    """The sums of each digit with the products of a vector more."""
    sums = list(sums)
    for part, weight in enumerate(weights):
        for number in range(form.digits):
            sums[number] = b.dotted_bytes(sums[number], weight, _bytes_at(b, form, here, row, part, number))
    return sums


def _bytes_at(b: Builder, form: FixedPoint, here: Array, row: int, part: int, number: int) -> Value:
    """A vector of one of the bytes of elements of x."""
    place = here.at(((row * form.parts + part) * form.digits + number) * form.lanes)
    return b.load(place.pointer, "i32", form.lanes)


# The sums.

_TAKEN = params("ptr left, ptr right, i64 apart, ptr sums, i64 pitch, i64 rows, i64 cols")
_LEFT, _RIGHT, _APART, _SUMS, _PITCH, _ROW_COUNT, _WIDTH = _TAKEN


class FixedPointDots:
    """The function that computes a block: rows of a packed left factor by rows of bytes, `apart` from each other."""

    def __init__(self, target: Target, form: FixedPoint, layout: Layout, beside: Beside) -> None:
        self.form, self.layout, self.beside, self.quantized = form, layout, beside, beside.quantized
        self.b = Builder(target)

    @property
    def name(self) -> str:
        form, quantized = self.form, self.quantized
        shape = f"{form.rows}x{form.lanes}.{form.groups}x{form.units}.{self.layout.group_right}"
        shape += f".digits{form.digits}.step{form.scale_step}"
        return f"smelt.fixed_point_dot.{quantized.kind}.less{quantized.offset}.{self.beside.text}.{shape}"

    def write(self) -> Function:
        b, form = self.b, self.form
        left, sums = (Array(b, each, torch.float32) for each in (_LEFT, _SUMS))
        right = Array(b, _RIGHT, torch.uint8)
        with b.loop(0, _WIDTH, form.cols) as column:
            cols = [b.smin(b.add(column, number), b.sub(_WIDTH, 1)) for number in range(form.cols)]
            lines = [right.at(b.mul(col, _APART)) for col in cols]
            elements = [[array for (array,) in self.beside.arrays(b, [col])] for col in cols]
            with b.loop(0, _ROW_COUNT, form.rows) as row:
                panel = left.at(b.mul(b.udiv(row, form.rows), form.elements))
                totals = self._along(lines, elements, panel)
                corner = sums.at(b.add(b.mul(row, _PITCH), column))
                for number in range(form.rows):
                    store_totals(totals[number :: form.rows], corner.at(b.mul(_PITCH, number)))
        return b.function(self.name, (*_TAKEN, *self.beside.all_params), "shared")

    def _along(self, lines: list[Array], elements: list[list[Array]], panel: Array) -> list[Value]:
        """The products of some rows of the right factor, those of the first one first: a loop over pieces of many
        groups, then smaller pieces."""
        b, form = self.b, self.form
        totals = [b.const("f32", 0.0, form.lanes)] * (form.rows * form.cols)
        piece = self._long_group if form.is_long else self._piece
        done, groups = 0, 1
        while 2 * groups <= min(form.lanes, form.groups) and 2 * groups * form.units <= _PIECE_VECTORS * form.width:
            groups *= 2
        least = max(1, form.width // form.units)
        while done < form.groups:
            count = (form.groups - done) // groups
            if count > 1:
                loop = b.begin(0, count, 1, totals)
                first, values = b.mul(loop.index, groups), list(loop.values)
                totals = list(loop.end(*piece(lines, elements, panel, first, groups, values)))
            elif count:
                totals = piece(lines, elements, panel, b.const("i64", done), groups, totals)
            done += count * groups
            assert groups >= least
            groups //= 2
        return totals

    def _scales(
        self, elements: list[Array], panel: Array, first: Value, groups: int, totals: list[Value]
    ) -> list[Value]:
        """The scales of some groups of a row of the right factor, for each row of x in units of 2^-n. What zero points
        and minima are multiplied with is added to the totals."""
        b, form = self.b, self.form
        scale, zero, low = self.beside.apart([self._numbers(each, first, groups) for each in elements])
        added = b.fneg(b.fmul(scale, zero)) if zero is not None else None
        if low is not None:
            added = low if added is None else b.fadd(added, low)
        scales = []
        for row in range(form.rows):
            at = b.add(first, row * form.groups)
            scales.append(b.fmul(scale, panel.at(form.steps_at).load(at, groups)))
            if added is not None:
                product = b.fmul(added, panel.at(form.sums_at).load(at, groups))
                totals[row] = b.fadd(totals[row], self._widened(product))
        return scales

    def _numbers(self, element: Array, first: Value, groups: int) -> Value:
        """Scales or the like of some groups."""
        if self.form.scale_step:
            return element.load_as(torch.float32, first, groups)
        number = element.load_as(torch.float32)
        return number if groups == 1 else self.b.splat(number, groups)

    def _piece(
        self, lines: list[Array], elements: list[list[Array]], panel: Array, first: Value, groups: int,
        totals: list[Value],
    ) -> list[Value]:  # fmt: skip
        """The totals with the products of some groups more, written one after the other."""
        b, form = self.b, self.form
        scales = self._scales(elements[0], panel, first, groups, totals)
        start = b.udiv(b.mul(first, form.units), form.width)
        here = panel.at(b.mul(start, form.vector_elements))
        corrections = panel.at(form.corrections_at).at(b.mul(b.udiv(start, form.steps), form.correction_elements))
        for number in range(0, groups * form.units // form.width, form.steps):
            group = number * form.width // form.units
            taken = lines[0].at(b.mul(b.add(first, group), self.layout.group_right))
            sums = self._starts(corrections.at(number // form.steps * form.correction_elements))
            for step in range(form.steps):
                weights = self._weights(taken.at(step * form.width))
                place = here.at((number + step) * form.vector_elements)
                sums = [_dotted(b, form, place, row, weights, sums[row]) for row in range(form.rows)]
            for row in range(form.rows):
                total = self._finished(sums[row])
                totals[row] = b.fma(total, self._spread(scales[row], group), totals[row])
        return totals

    def _long_group(
        self, lines: list[Array], elements: list[list[Array]], panel: Array, group: Value, groups: int,
        totals: list[Value],
    ) -> list[Value]:  # fmt: skip
        """The totals with a group more, of many vectors, for several rows of the right factor side by side."""
        b, form = self.b, self.form
        starts = self._starts(panel.at(form.corrections_at).at(b.mul(group, form.correction_elements)))
        begins = [line.at(b.mul(group, self.layout.group_right)) for line in lines]
        here = panel.at(b.mul(group, form.steps * form.vector_elements))
        loop = b.begin(0, form.steps, 1, [each for row in starts for each in row] * form.cols)
        sums = list(loop.values)
        weights = [self._weights(line.at(b.mul(loop.index, form.width))) for line in begins]
        place = here.at(b.mul(loop.index, form.vector_elements))
        for number in range(form.cols * form.rows):
            col, row = divmod(number, form.rows)
            part = slice(number * form.digits, (number + 1) * form.digits)
            sums[part] = _dotted(b, form, place, row, weights[col], sums[part])
        sums = list(loop.end(*sums))
        for col in range(form.cols):
            of_col = totals[col * form.rows : (col + 1) * form.rows]
            scales = self._scales(elements[col], panel, group, groups, of_col)
            for row in range(form.rows):
                number = col * form.rows + row
                total = self._finished(sums[number * form.digits : (number + 1) * form.digits])
                totals[number] = b.fma(total, self._spread(scales[row], 0), of_col[row])
        return totals

    def _starts(self, corrections: Array) -> list[list[Value]]:
        """What the sums of each row begin with. Sums of bytes do not wait for each other."""
        b, form = self.b, self.form
        zeros = [b.const("i32", 0, form.lanes)] * form.digits
        if not form.moved:
            return [zeros] * form.rows
        count = 1 if form.is_short else form.digits
        place = [corrections.at(number * form.lanes).pointer for number in range(form.rows * count)]
        loaded = [b.load(each, "i32", form.lanes) for each in place]
        return [zeros[count:] + loaded[row * count : (row + 1) * count] for row in range(form.rows)]

    def _finished(self, sums: list[Value]) -> Value:
        """The sum of products as floats, in units of 2^-n."""
        b, form = self.b, self.form
        if form.is_short:
            return b.convert("sitofp", _joined(b, sums), "f32")
        high, middle, low = (b.convert("sitofp", each, "f32") for each in sums)
        return b.fma(high, 65536.0, b.fma(middle, 256.0, low))

    def _weights(self, line: Array) -> list[Value]:
        """A vector of the right factor as unsigned bytes: one, or those of the lower and of the upper halves."""
        b, form = self.b, self.form
        b.prefetch(line.at(_PREFETCH_BYTES if form.cols == 1 else _PREFETCH_BYTES_OF_EACH).pointer)
        return unsigned_bytes(b, self.quantized, b.load(line.pointer, "i32", form.lanes, align=1))

    def _spread(self, scales: Value, group: int) -> Value:
        """The scale of each lane of a vector whose first group is `group`."""
        b, form = self.b, self.form
        if scales.lanes == 1:
            return b.splat(scales, form.lanes)
        return b.permute(scales, [group + 4 * lane // form.units for lane in range(form.lanes)])

    def _widened(self, some: Value) -> Value:
        """As many lanes as a total has, zeros behind."""
        b, form = self.b, self.form
        if some.lanes == 1:
            some = b.gathered([some, b.const("f32", 0.0)])
        if some.lanes == form.lanes:
            return some
        zeros = b.const("f32", 0.0, some.lanes)
        return b.permute(some, [min(lane, some.lanes) for lane in range(form.lanes)], zeros)


def unsigned_bytes(b: Builder, quantized: Quantized, words: Value) -> list[Value]:
    """Words of a quantized factor as unsigned bytes: themselves, or those of the lower and of the upper halves."""
    if quantized.kind in ("i4", "i8"):
        words = b.xor(words, -0x77777778 if quantized.kind == "i4" else -0x7F7F7F80)  # 0x88888888, 0x80808080
    if not quantized.is_packed:
        return [words]
    return [b.and_(each, 0x0F0F0F0F) for each in (words, b.lshr(words, 4))]
