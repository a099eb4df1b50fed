"""Few rows of quantized weights: `Units`, how a sum runs over bytes of integers, and two bodies that write it.

    p = contract (g:64, k:64) x[4096*i + 64*g + k], (u4 w[4096*j + 64*g + k] - 8) * s[64*j + g]
    →  2048 bytes a col, 32 a group; a lane takes sixteen of them, and x at twice their number and after that

Four bits become a float32 in two instructions: as the first bits behind the point of 1 + q / 16. So Σ x · q is
16 · (Σ x · (1 + q / 16) - Σ x), where Σ x is there once for all cols. A scale is multiplied with a lane's sum.

Matrix units take 1 + q / 16 as bfloat16 or float16: two instructions for two of them. Eight bits are two times four.
Σ x is a product, too, with ones.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.gpu.products.few_rows_body import AlongBody, MatrixBody
from smelt.codegen.gpu.simt import MOST_BYTES, Mask
from smelt.codegen.gpu.vector_width import is_multiple
from smelt.codegen.loops.scalars import cast, from_memory, memory_kind
from smelt.ir.kernel import Contract, Element, Factor, Index, Kernel, Quantized
from smelt.ir.loops import Value

_ONE, _POINT = 0x3F800000, 19  # 1.0 as a float32, and the lowest of its first four bits behind the point
_NIBBLE = 0xF << _POINT
_SIGNS = -0x77777778  # the upper bit of every four
_BYTE_SIGNS = -0x7F7F7F80  # the upper bit of every eight
_ONES = {"bf16": (0x3F803F80, 3), "f16": (0x3C003C00, 6)}  # 1.0 twice, and the lowest of its first four bits
_WORD = 4  # bytes


@dataclass(frozen=True, slots=True)
class Units:
    """`count` bytes of each col, `group` of which have a scale. What the first integer of a byte is multiplied with is
    `step` elements from one byte to the next, and `group_step` from one group to the next; the others are `parts`
    elements behind it."""

    quantized: Quantized
    count: int
    group: int
    group_axis: str
    step: int
    group_step: int
    parts: tuple[int, ...]


def units_of(contract: Contract, left: Factor, right: Factor) -> Units | str:
    """How the sum runs, or why it does not."""
    quantized = right.quantized
    assert quantized is not None
    axes = {axis.name: axis for axis in contract.axes}
    halves = 2 if quantized.is_packed else 1
    along = [name for name in axes if right.index.stride(name) == 1]
    if len(along) != 1:
        return "integers do not lie side by side"
    name, step = along[0], 1
    parts: tuple[int, ...]
    if halves == 2 and axes[name].size == 2 and len(axes) > 1:  # the halves of a byte are elements apart
        parts = (0, int(left.index.stride(name)))
        del axes[name]
        name = next((each for each in axes if right.index.stride(each) == 2), "")
        count = int(axes[name].size) if name else 0
        step = 2 if name and parts[1] == 1 and left.index.stride(name) == 2 else 1
    else:
        count = int(axes[name].size) // halves
        parts, step = tuple(range(halves)), halves  # neighbours
        if axes[name].size % halves:
            return "a byte has integers of two groups"
    if not name or left.index.stride(name) != (1 if name == along[0] else step):
        return "terms do not lie side by side"
    del axes[name]
    if len(axes) > 1 or any(each.index.stride(name) for each in quantized.elements):
        return "scales are for other groups than those of its sum"
    for axis in axes.values():
        if right.index.stride(axis.name) != count * halves or count & (count - 1):
            return "groups do not follow each other"
        return Units(
            quantized, count * int(axis.size), count, axis.name, step, int(left.index.stride(axis.name)), parts
        )
    return Units(quantized, count, count, "", step, 0, parts)


def in_bytes(right: Factor, contract: Contract) -> Factor | None:
    """The factor as bytes at its rows, without the terms."""
    assert right.quantized is not None
    halves, names = (2 if right.quantized.is_packed else 1), {axis.name for axis in contract.axes}
    terms = [term for term in right.index.terms if term[0] not in names]
    if not all(is_multiple(each, halves) for each in (right.index.offset, *(step for _, step in terms))):
        return None
    index = Index(tuple((name, step // halves) for name, step in terms), right.index.offset // halves)
    return replace(right, index=index)


def bytes_at_once(kernel: Kernel, left: Factor, right: Factor, units: Units, contract: Contract) -> int:
    """Of a lane: all of one group, and both factors begin at multiples of what is read."""
    names = {axis.name for axis in contract.axes}
    rows = [step for name, step in left.index.terms if name not in names]
    of_left = [left.index.offset, *rows, *([units.group_step] if units.group_axis else [])]
    of_left += units.parts if units.step == 1 else []
    width, size = MOST_BYTES, kernel.buffer(left.buffer).dtype.itemsize
    of_right = [right.index.offset, *(step for _, step in right.index.terms), units.group]
    while width > 1 and not (
        all(is_multiple(each, width) for each in of_right)
        and all(is_multiple(each, min(width * units.step, MOST_BYTES // size)) for each in of_left)
    ):
        width //= 2
    return width


@dataclass(frozen=True, slots=True)
class Scales:
    """Of a col: the `factor` of its products, that of Σ x, and what is `subtracted` from its integers one after the
    other."""

    factor: Value
    of_sum: Value | None
    subtracted: tuple[Value, ...] = ()


class QuantizedBody(AlongBody):
    """A grid with quantized weights being written. Terms are bytes."""

    def multiplied(self, first: Value, of_right: int, masks: Sequence[Mask], sums: list[Value]) -> list[Value]:
        b, grid, cols = self.b, self.grid, self.grid.split.cols
        firsts = [b.add(first, number * grid.step) if number else first for number in range(of_right)]
        places = list(zip(firsts, masks, strict=True))
        words = [[self.words_of(b.add(base, at), mask) for base in self.bases] for at, mask in places]
        scales = [[self.scales(b.add(at, self.term), mask, col) for col in range(cols)] for at, mask in places]
        b.wait_for_launches()
        sums = list(sums)
        for at, mask, of_cols, scaled in zip(firsts, masks, words, scales, strict=True):
            ours = [self._numbers(each, of_col) for each, of_col in zip(of_cols, scaled, strict=True)]
            for row in range(grid.row_count):
                theirs = self._given(b.add(at, self.term), row, mask)
                whole = reduce(b.fadd, theirs)
                for col, (own, of_col) in enumerate(zip(ours, scaled, strict=True)):
                    dot = b.fmul(theirs[0], own[0])
                    for x, w in zip(theirs[1:], own[1:], strict=True):
                        dot = b.fma(x, w, dot)
                    total = sums[row * cols + col]
                    total = total if of_col.of_sum is None else b.fma(of_col.of_sum, whole, total)
                    sums[row * cols + col] = b.fma(of_col.factor, dot, total)
        return sums

    @property
    def subtracts(self) -> bool:
        """Whether offsets and zero points are subtracted from each integer, rather than their product with Σ x from the
        sum: an element of x that is far larger than the others would leave its rounding there, even if its weight is
        zero, and an infinite one NaN. What is read in 16 bits has results of 16 bits, which are rounded more."""
        return bool(self.kernel.buffer(self.grid.left.buffer).dtype.itemsize > 2)

    @property
    def unit(self) -> float:
        """What one step between integers is of the numbers that are multiplied."""
        return 16.0 if self.units.quantized.is_packed else 1.0

    @property
    def raised(self) -> int:
        """How many steps the numbers that are multiplied are above the integers."""
        kind = self.units.quantized.kind
        return {"u4": 16, "i4": 24}.get(kind, 0)

    @property
    def units(self) -> Units:
        assert isinstance(self.grid.units, Units)
        return self.grid.units

    def words_of(self, at: Value, mask: Mask) -> list[Value]:
        """A lane's bytes, four in each word."""
        b, vector = self.b, self.grid.vector
        if b.aligned and vector >= _WORD:
            return self.read(self.grid.right, b.lshr(at, 2), mask, "i32", vector // _WORD)
        each = [b.convert("zext", byte, "i32") for byte in self.read(self.grid.right, at, mask, "i8")]
        words = []
        for place in range(0, vector, _WORD):
            word = each[place]
            for number, byte in enumerate(each[place + 1 : place + _WORD], 1):
                word = b.or_(word, b.shl(byte, 8 * number))
            words.append(word)
        return words

    def _numbers(self, words: Sequence[Value], scales: Scales) -> list[Value]:
        """Bytes as float32, those of four bits each as 1 + q / 16, in the order of `_given`; less what is subtracted
        from each."""
        b, kind, vector = self.b, self.units.quantized.kind, self.grid.vector
        if kind == "i4":
            words = [b.xor(each, _SIGNS) for each in words]
        numbers = []
        for part in range(len(self.units.parts)):
            for number in range(vector):
                word, place = words[number // _WORD], 8 * (number % _WORD)
                if kind in ("i4", "u4"):
                    shift = _POINT - place - 4 * part
                    moved = b.shl(word, shift) if shift >= 0 else b.lshr(word, -shift)
                    numbers.append(b.from_bits(b.or_(b.and_(moved, _NIBBLE), _ONE)))
                elif kind == "i8":
                    numbers.append(b.convert("sitofp", b.ashr(b.shl(word, 24 - place), 24), "f32"))
                else:
                    numbers.append(b.convert("uitofp", b.and_(b.lshr(word, place), 0xFF), "f32"))
        for away in scales.subtracted:
            numbers = [b.fsub(each, away) for each in numbers]
        return numbers

    def _given(self, unit: Value, row: int, mask: Mask) -> list[Value]:
        """What a lane's integers are multiplied with: for the first of each byte, then for the second."""
        b, grid, units = self.b, self.grid, self.units
        at = b.add(self.place_of(unit), self.row_base(row))
        if units.step == 1:
            raw = [self.read(grid.left, b.add(at, part), mask) for part in units.parts]
        else:
            every = self.read(grid.left, at, mask, width=grid.vector * units.step)
            raw = [every[part :: units.step] for part in units.parts]
        return [x for each in raw for x in self.wide(grid.left, each, mask)]

    def place_of(self, unit: Value) -> Value:
        """Where the left factor has what the first integer of a byte is multiplied with."""
        b, units = self.b, self.units
        if not units.group_axis or units.group_step == units.group * units.step:
            return b.mul(unit, units.step) if units.step > 1 else unit
        within = b.mul(b.and_(unit, units.group - 1), units.step)
        return b.add(b.mul(b.lshr(unit, units.group.bit_length() - 1), units.group_step), within)

    def scales(self, unit: Value, mask: Mask, col: int | Value) -> Scales:
        b, quantized = self.b, self.units.quantized
        scale, zero, low = (
            self._beside(each, unit, mask, col) if each is not None else None
            for each in (quantized.scale, quantized.zero, quantized.low)
        )
        assert scale is not None
        factor = b.fmul(scale, self.unit) if self.unit != 1 else scale
        offset = float(quantized.offset + self.raised)
        if self.subtracts:
            offsets = [b.const("f32", offset / self.unit)] if offset else []
            return Scales(factor, low, (*offsets, *([b.fmul(zero, 1 / self.unit)] if zero is not None else [])))
        away = b.const("f32", offset) if zero is None else b.fadd(zero, offset)
        of_sum = b.fneg(b.fmul(scale, away))
        return Scales(factor, of_sum if low is None else b.fadd(of_sum, low))

    def _beside(self, element: Element, unit: Value, mask: Mask, col: int | Value) -> Value:
        """A scale, or what is read like one, as float32."""
        b, units, grid = self.b, self.units, self.grid
        at = self.own_base(element, grid.cols, b.add(self.first, col))
        step = int(element.index.stride(units.group_axis)) if units.group_axis else 0
        if step:
            unit = unit if mask is None else b.select(mask, unit, 0)
            at = b.add(at, b.mul(b.lshr(unit, units.group.bit_length() - 1), step))
        dtype = self.kernel.buffer(element.buffer).dtype
        if element.buffer not in (self.kernel.early or ()):
            b.wait_for_launches()
        (raw,) = b.load_global(b.pointer(element.buffer), at, memory_kind(dtype), constant=True)
        return cast(b, from_memory(b, raw, dtype), dtype, self.contract.dtype)


class QuantizedMatrixBody(MatrixBody, QuantizedBody):
    """The same by matrix units. A warp's tile is in one group: its products are added up before they are scaled."""

    @property
    def unit(self) -> float:
        return 16.0

    @property
    def raised(self) -> int:
        return {"u4": 16, "i4": 24, "u8": 17 * 16, "i8": 17 * 16 + 128}[self.units.quantized.kind]

    def places(self) -> None:
        super().places()
        b, ones = self.b, _ONES[self.kind][0]
        self.ones = b.const("i32", ones)
        if b.target.approximates:
            # The assembler makes one instruction of `x & mask | ones` if it knows one number only. No chip has so many
            # multiprocessors that this adds something.
            multiprocessor = b.call("llvm.nvvm.read.ptx.sreg.smid", result="i32")
            self.ones = b.add(self.ones, b.lshr(multiprocessor, 24))

    def multiplied(self, first: Value, steps: int, masks: Sequence[Mask], sums: list[Value]) -> list[Value]:
        b, grid = self.b, self.grid
        places = list(zip(self.firsts(first, steps), masks, strict=True))
        words = [[self.words_of(b.add(base, at), mask) for base in self.bases] for at, mask in places]
        scales = [self._scales_of(b.add(at, self.term), mask) for at, mask in places]
        b.wait_for_launches()
        lefts = [[self._lefts(b.add(at, self.term), base, mask) for base in self.lefts] for at, mask in places]
        sums, zeros = list(sums), [self.zero] * 4
        for of_cols, scaled, of_rows in zip(words, scales, lefts, strict=True):
            weights = [self._weights(each) for each in of_cols]
            for tile, pairs in enumerate(of_rows):
                dots, whole = [zeros] * len(weights[0]), zeros
                for place in range(0, len(pairs), 2):
                    right = pairs[place : place + 2]
                    whole = b.mma(self.kind, [self.ones] * 4, right, whole)
                    for number in range(len(dots)):
                        a = [each[number][place + more] for more in (0, 1) for each in weights]
                        dots[number] = b.mma(self.kind, a, right, dots[number])
                for c in range(0, 4, 2 if grid.row_count == 1 else 1):
                    of_col = scaled[c // 2]
                    dot = dots[0][c] if len(dots) == 1 else b.fma(dots[1][c], b.const("f32", 16.0), dots[0][c])
                    assert of_col.of_sum is not None
                    total = b.fma(of_col.of_sum, whole[c], sums[4 * tile + c])
                    sums[4 * tile + c] = b.fma(of_col.factor, dot, total)
        return sums

    def _scales_of(self, unit: Value, mask: Mask) -> list[Scales]:
        """Those of a lane's two cols."""
        b = self.b
        return [self.scales(unit, mask, b.add(self.group, more) if more else self.group) for more in (0, 8)]

    def _weights(self, words: Sequence[Value]) -> list[list[Value]]:
        """Words of two numbers, in the order of `_lefts`; of eight bits those of the lower four, then of the upper."""
        b, kind = self.b, self.units.quantized.kind
        ones, point = self.ones, _ONES[self.kind][1]
        if kind in ("i4", "i8"):
            words = [b.xor(each, _SIGNS if kind == "i4" else _BYTE_SIGNS) for each in words]

        def numbers(word: Value, nibble: int) -> Value:
            shift = point - 4 * nibble
            moved = b.shl(word, shift) if shift >= 0 else b.lshr(word, -shift)
            return b.or_(b.and_(moved, 0x000F000F << point), ones)

        if self.units.quantized.is_packed:
            return [[numbers(word, nibble) for word in words for nibble in range(4)]]
        return [[numbers(word, 2 * byte + part) for word in words for byte in range(2)] for part in range(2)]

    def _lefts(self, unit: Value, base: Value, mask: Mask) -> list[Value]:
        """Words of two terms that a word's numbers are multiplied with: bytes 0 and 2, then 1 and 3."""
        b, grid, units = self.b, self.grid, self.units
        at = b.add(self.place_of(unit), base)
        if units.step == 1:
            terms = [self.pairs(grid.left, b.add(at, part), mask, grid.vector // 2) for part in units.parts]
        else:
            terms = [self.pairs(grid.left, at, mask, grid.vector)]
        pairs = []
        for byte in range(0, grid.vector, _WORD):
            for first in (byte, byte + 1):
                for part in range(len(units.parts)):
                    of_part = terms[part if units.step == 1 else 0]
                    one, other = (each * units.step + (part if units.step > 1 else 0) for each in (first, first + 2))
                    pairs.append(self._pair(of_part[one // 2], of_part[other // 2], one % 2))
        return pairs

    def _pair(self, one: Value, other: Value, half: int) -> Value:
        """One half of two words."""
        b = self.b
        if half:
            return b.or_(b.lshr(one, 16), b.and_(other, -0x10000))
        return b.or_(b.and_(one, 0xFFFF), b.shl(other, 16))
