"""Arithmetic of the loop form as SPIR-V instructions.

    Compute(%t3, "fadd", (%t1, %t2))    →    %9 = OpFAdd %float %7 %8, decorated: not contracted with another operation

float16 is held as its bits: it is only moved and converted.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

from smelt.base.errors import SmeltError
from smelt.codegen.gpu.spirv.module_words import ModuleWords, Op, instruction
from smelt.ir.loops import BITS, Compute, Convert, Value

_ROUNDED = {"fadd": 129, "fsub": 131, "fmul": 133, "fdiv": 136}
_OPS = {
    "add": 128, "sub": 130, "mul": 132, "udiv": 134, "sdiv": 135, "urem": 137, "srem": 138, "lshr": 194, "ashr": 195,
    "shl": 196, "or": 197, "xor": 198, "and": 199, "select": 169, **_ROUNDED,
    "icmp eq": 170, "icmp ne": 171, "icmp ugt": 172, "icmp sgt": 173, "icmp uge": 174, "icmp sge": 175,
    "icmp ult": 176, "icmp slt": 177, "icmp ule": 178, "icmp sle": 179,
    "fcmp oeq": 180, "fcmp ueq": 181, "fcmp one": 182, "fcmp une": 183, "fcmp olt": 184, "fcmp ult": 185,
    "fcmp ogt": 186, "fcmp ugt": 187, "fcmp ole": 188, "fcmp ule": 189, "fcmp oge": 190, "fcmp uge": 191,
}  # fmt: skip
_OF_BOOLS = {"and": 167, "or": 166, "xor": 165, "icmp eq": 164, "icmp ne": 165}
_CONVERSIONS = {
    "sitofp": 111, "uitofp": 112, "zext": 113, "trunc": 113, "sext": 114, "fpext": 115, "fptrunc": 115,
    "bitcast": 124, "ptrtoint": 124, "inttoptr": 124,
}  # fmt: skip
_MATH = {"fabs": 4, "floor": 8, "ceil": 9, "trunc": 3, "roundeven": 2, "sqrt": 31}  # of GLSL.std.450
_INFINITY = {"f32": 0xFF << 23, "f64": 0x7FF << 52}  # its bits


class Arithmetic(ABC):
    """Instructions that compute, in the code of one function."""

    def __init__(self, m: ModuleWords) -> None:
        self.m = m
        self.code: list[int] = []
        self.values: dict[str, int] = {}

    @abstractmethod
    def parameter(self, name: str) -> int:
        """A parameter that is used for the first time."""

    def op(self, op: int, kind: str | int, *operands: int) -> int:
        """An instruction with a result of a kind, or of a type by its number."""
        into, result = self.m.type_of(kind) if isinstance(kind, str) else kind, self.m.new_id()
        self.code += instruction(op, into, result, *operands)
        return result

    def value(self, value: Value) -> int:
        if value.is_constant:
            return self.m.constant_of(value)
        if value.name not in self.values:
            self.values[value.name] = self.parameter(value.name)
        return self.values[value.name]

    def compute(self, node: Compute) -> int:
        op, out, first = node.op, node.out.kind, node.args[0].kind
        operands = [self.value(each) for each in node.args]
        if op in _OPS:
            result = self.op(_OF_BOOLS.get(op, _OPS[op]) if first == "i1" else _OPS[op], out, *operands)
            if op in _ROUNDED:
                self.m.decorations += instruction(Op.DECORATE, result, 42)  # NoContraction
            return result
        if op in _MATH:
            return self.op(Op.EXT_INST, out, self.m.math, _MATH[op], *operands)
        if op in _COMPOSED:
            return _COMPOSED[op](self, op, first, *operands)
        raise SmeltError("SM030", f"SPIR-V has no {op} of {first}")

    # Of floats, by their bits where a compiler that takes all numbers for finite could leave something out.

    def _masked(self, op: int, kind: str, value: int, mask: int) -> int:
        """The bits of a float, changed by those of a mask."""
        whole = f"i{BITS[kind]}"
        return self.op(op, whole, self.op(Op.BITCAST, whole, value), self.m.number(whole, mask))

    def _is_nan(self, kind: str, value: int) -> int:
        size = self._masked(Op.BITWISE_AND, kind, value, (1 << (BITS[kind] - 1)) - 1)
        return self.op(_OPS["icmp ugt"], "i1", size, self.m.integer(BITS[kind], _INFINITY[kind]))

    def _ordered(self, op: str, kind: str, a: int, b: int) -> int:
        either = self.op(Op.LOGICAL_OR, "i1", self._is_nan(kind, a), self._is_nan(kind, b))
        return either if op == "fcmp uno" else self.op(Op.LOGICAL_NOT, "i1", either)

    def _negated(self, op: str, kind: str, value: int) -> int:
        return self.op(Op.BITCAST, kind, self._masked(_OPS["xor"], kind, value, 1 << (BITS[kind] - 1)))

    def _copysign(self, op: str, kind: str, size: int, sign: int) -> int:
        top = 1 << (BITS[kind] - 1)
        rest, mark = (self._masked(_OPS["and"], kind, *each) for each in ((size, top - 1), (sign, top)))
        return self.op(Op.BITCAST, kind, self.op(Op.BITWISE_OR, f"i{BITS[kind]}", rest, mark))

    def _extreme(self, op: str, kind: str, a: int, b: int) -> int:
        """NaN if either is."""
        first = self.op(_OPS["fcmp olt" if op == "minimum" else "fcmp ogt"], "i1", a, b)
        return self.op(Op.SELECT, kind, self.op(Op.LOGICAL_OR, "i1", first, self._is_nan(kind, a)), a, b)

    def _integer_extreme(self, op: str, kind: str, a: int, b: int) -> int:
        less = self.op(_OPS[f"icmp {op[0]}lt"], "i1", a, b)
        return self.op(Op.SELECT, kind, less, *((a, b) if op.endswith("min") else (b, a)))

    # Conversions.

    def convert(self, node: Convert) -> int:
        m, op, kind, out = self.m, node.op, node.value.kind, node.out.kind
        value, into = self.value(node.value), m.type_of(out, node.out.lanes)
        if kind == "i1":
            one = m.number(out, -1 if op in ("sext", "sitofp") else 1)
            return self.op(Op.SELECT, out, value, one, m.number(out, 0))
        if out == "i1":
            bit = self.op(Op.BITWISE_AND, kind, value, m.number(kind, 1))
            return self.op(_OPS["icmp ne"], "i1", bit, m.number(kind, 0))
        if op == "fptosi.sat":
            return self._saturated(out, kind, value)
        if op not in _CONVERSIONS:
            raise SmeltError("SM030", f"SPIR-V has no {op} of {kind}")
        if _CONVERSIONS[op] == Op.BITCAST and m.type_of(kind, node.value.lanes) == into:
            return value
        if op in ("sext", "zext") and (kind, out) == ("i32", "i64"):
            return self.lengthened(value, signed=op == "sext")
        return self.op(_CONVERSIONS[op], into, value)

    def lengthened(self, value: int, *, signed: bool) -> int:
        """32 bits as 64, put together of two words: where a conversion is compared with a constant, Mesa 22.3 compares
        wrongly."""
        high = self.op(_OPS["ashr"], "i32", value, self.m.word(31)) if signed else self.m.word(0)
        return self.op(Op.BITCAST, "i64", self.op(Op.COMPOSITE_CONSTRUCT, self.m.type_of("i32", 2), value, high))

    def _saturated(self, kind: str, source: str, value: int) -> int:
        """Saturates large values; NaN becomes zero."""
        m, top = self.m, 1 << (BITS[kind] - 1)
        above = self.op(_OPS["fcmp oge"], "i1", value, m.number(source, float(top)))
        below = self.op(_OPS["fcmp olt"], "i1", value, m.number(source, -float(top)))
        outside = self.op(Op.LOGICAL_OR, "i1", self.op(Op.LOGICAL_OR, "i1", above, below), self._is_nan(source, value))
        inside = self.op(Op.SELECT, source, outside, m.number(source, 0.0), value)
        result = self.op(Op.CONVERT_F_TO_S, kind, inside)
        result = self.op(Op.SELECT, kind, above, m.number(kind, top - 1), result)
        return self.op(Op.SELECT, kind, below, m.number(kind, top), result)


_COMPOSED: dict[str, Callable[..., int]] = {
    "fneg": Arithmetic._negated, "copysign": Arithmetic._copysign, "fcmp uno": Arithmetic._ordered,
    "fcmp ord": Arithmetic._ordered, "minimum": Arithmetic._extreme, "maximum": Arithmetic._extreme,
    **dict.fromkeys(("smin", "smax", "umin", "umax"), Arithmetic._integer_extreme),
}  # fmt: skip
