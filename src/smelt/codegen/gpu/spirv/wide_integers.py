"""128-bit integers as pairs of 64-bit ones, for the reduction of large angles. SPIR-V has none.

    shl i128 %z, %n    →    low << n, (high << n) | (low >> 1 >> (63 - n))        where n is below 64

A shift is by a constant, or by less than 64.
"""

from collections.abc import Callable

from smelt.base.errors import SmeltError
from smelt.codegen.gpu.spirv.module_words import ModuleWords, Op

Pair = tuple[int, int]  # low and high


class WideIntegers:
    """Writes instructions for a function by `op`."""

    def __init__(self, m: ModuleWords, op: Callable[..., int]) -> None:
        self.m, self._op = m, op

    def _do(self, op: int, *operands: int) -> int:
        return self._op(op, "i64", *operands)

    def _shift(self, op: int, value: int, count: int) -> int:
        return self._do(op, value, self.m.integer(64, count))

    def number(self, value: int) -> Pair:
        return self.m.integer(64, value), self.m.integer(64, value >> 64)

    def compute(self, what: str, a: Pair, b: Pair, constant: int | None) -> Pair:
        """`constant`: the second operand, if it is known."""
        match what:
            case "or":
                return self._do(Op.BITWISE_OR, a[0], b[0]), self._do(Op.BITWISE_OR, a[1], b[1])
            case "add":
                low = self._do(Op.IADD, a[0], b[0])
                over = self._op(Op.U_LESS, "i1", low, a[0])
                carry = self._do(Op.SELECT, over, *self.number(1))
                return low, self._do(Op.IADD, self._do(Op.IADD, a[1], b[1]), carry)
            case "mul":
                low, high = self._product(a[0], b[0])
                high = self._do(Op.IADD, high, self._do(Op.IMUL, a[1], b[0]))
                return low, self._do(Op.IADD, high, self._do(Op.IMUL, a[0], b[1]))
            case "shl":
                return self._left(a, b[0], constant)
            case "lshr" | "ashr" if constant is not None:
                return self._right(Op.SHIFT_RIGHT_LOGICAL if what == "lshr" else Op.SHIFT_RIGHT_SIGNED, a, constant)
        raise SmeltError("SM030", f"SPIR-V has no {what} of 128 bits")

    def _left(self, a: Pair, count: int, constant: int | None) -> Pair:
        if constant is not None and constant >= 64:
            return self.m.integer(64, 0), self._shift(Op.SHIFT_LEFT, a[0], constant - 64)
        # What leaves the low half, in two steps: no shift is by 64.
        rest = self._do(Op.ISUB, self.m.integer(64, 63), count)
        moved = self._do(Op.SHIFT_RIGHT_LOGICAL, self._shift(Op.SHIFT_RIGHT_LOGICAL, a[0], 1), rest)
        high = self._do(Op.BITWISE_OR, self._do(Op.SHIFT_LEFT, a[1], count), moved)
        return self._do(Op.SHIFT_LEFT, a[0], count), high

    def _right(self, right: Op, a: Pair, count: int) -> Pair:
        if count >= 64:
            above = self.m.integer(64, 0) if right is Op.SHIFT_RIGHT_LOGICAL else self._shift(right, a[1], 63)
            return self._shift(right, a[1], count - 64), above
        low, moved = self._shift(Op.SHIFT_RIGHT_LOGICAL, a[0], count), self._shift(Op.SHIFT_LEFT, a[1], 64 - count)
        return self._do(Op.BITWISE_OR, low, moved), self._shift(right, a[1], count)

    def _product(self, a: int, b: int) -> Pair:
        """All 128 bits of a product, from products of 32: not every device has the instruction for more."""
        (a0, a1), (b0, b1) = self._halves(a), self._halves(b)
        first = self._do(Op.IMUL, a0, b0)
        middle = self._do(Op.IADD, self._do(Op.IMUL, a1, b0), self._shift(Op.SHIFT_RIGHT_LOGICAL, first, 32))
        middle_low, middle_high = self._halves(middle)
        other = self._do(Op.IADD, self._do(Op.IMUL, a0, b1), middle_low)
        top = self._do(Op.IADD, self._do(Op.IMUL, a1, b1), middle_high)
        return self._do(Op.IMUL, a, b), self._do(Op.IADD, top, self._shift(Op.SHIFT_RIGHT_LOGICAL, other, 32))

    def _halves(self, value: int) -> Pair:
        low = self._do(Op.BITWISE_AND, value, self.m.integer(64, 0xFFFFFFFF))
        return low, self._shift(Op.SHIFT_RIGHT_LOGICAL, value, 32)
