"""Kernels read from their text (`smelt.ir.text`): `parse_kernel(format_kernel(kernel)) == kernel`.

Where sizes vary, whoever reads a text says what the names are in the example: `parse_kernel(text, {"s0": 7})`.
"""

import ast
import re
from collections.abc import Callable, Mapping
from typing import cast, get_args

import torch

from smelt.base.errors import SpecError
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
    IntegerKind,
    Kernel,
    Load,
    Position,
    Quantized,
    Reduce,
    Reduction,
    Role,
    Running,
    Scan,
    Scatter,
    Softmax,
    Stage,
    Store,
    WeightedSum,
)
from smelt.ir.tensorspec import short_name
from smelt.symbolic.expressions import ZERO, Expression, ShapeEnv, Symbol
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import sym_size

_NAME = r"[A-Za-z_][\w.]*"
_HEADER = rf"kernel ({_NAME}) rows\((.*?)\) cols\((.*?)\)(?: early\((.*)\))?"
_AXIS = rf"({_NAME}):(.+)"
_BUFFER = rf"(in|out|inout|scratch) ({_NAME}): (\w+)\[(.+)\]"
_STEPS = r"steps\((.+)\):"
_TERM = rf"([+-]?)(?:(\d+)\*)?({_NAME}|\d+)"
_STORE = rf"store ({_NAME})\[([^\]]*)\] = ({_NAME})"
_ACCUMULATE = rf"accumulate (\w+) ({_NAME})\[([^\]]*)\] = ({_NAME})"
_LOAD = rf"load ({_NAME})\[([^\]]*)\]"
_SCATTER = rf"scatter (\w+) ({_NAME})\[([^\]]*)\] by (.+) = ({_NAME})( unordered)?"
_GATHER = rf"gather ({_NAME})\[([^\]]*)\] by (.+)"
_REACH = rf"(-?\d+|\(.+\))\*({_NAME}) below (.+)"
_REDUCE = rf"reduce (\w+) ({_NAME})"
_SCAN = rf"scan (\w+) ({_NAME}) along ({_NAME})( backwards)?"
_ELEMENT = rf"({_NAME})\[([^\]]*)\]"
_FACTOR_START = rf"(?=(?:\([iu][48] )?{_NAME}\[)"
_CONTRACT = rf"contract \((.*?)\) {_FACTOR_START}(.+) : (\w+)"
_FACTOR = rf"{_ELEMENT}(?: where (.+))?"
_QUANTIZED = rf"\(([iu][48]) {_ELEMENT}(?: ([+-]) (\d+))?(?: - {_ELEMENT})?\) \* {_ELEMENT}(?: \+ {_ELEMENT})?"
_BOUND = r"(.+) below (.+)"
_SOFTMAX = rf"({_NAME})(?:, ({_NAME}))? = softmax ({_NAME})( or nan)?"
_WEIGHTED_SUM = rf"weighted sum \((.*?)\) ({_NAME})\[([^\]]*)\] = ({_NAME}) \* (.+) : (\w+)"
_TYPED = r"(\w+) (.*) : (\w+)"

REDUCTIONS: tuple[str, ...] = get_args(Reduction)

_DTYPES: dict[str, torch.dtype] = {
    short_name(dtype): dtype
    for dtype in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16,
        torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
    )
}  # fmt: skip


def parse_kernel(text: str, sizes: Mapping[str, int] | None = None) -> Kernel:
    """The kernel that `text` describes; `SpecError` names the line that is no part of the form.

    `sizes` are those that vary by name, with their values in the example.
    """
    shape_env = ShapeEnv() if sizes else None
    for name, example in (sizes or {}).items():
        assert shape_env is not None
        shape_env.symbol(name, example)
    return _Parser(shape_env).kernel(text)


class _Parser:
    """Reads sizes as expressions over the symbols of a shape_env, or as plain numbers where there is none."""

    def __init__(self, shape_env: ShapeEnv | None) -> None:
        self.shape_env = shape_env
        self.symbols = {symbol.text: symbol for symbol in shape_env.symbols} if shape_env is not None else {}

    def kernel(self, text: str) -> Kernel:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        header = re.fullmatch(_HEADER, lines[0]) if lines else None
        if header is None:
            raise SpecError("SM022", f"not a kernel: {lines[0] if lines else 'empty text'!r}")
        buffers: list[Buffer] = []
        stages: list[tuple[bool, list[Instruction], Axis | None]] = []
        for line in lines[1:]:
            steps = re.fullmatch(_STEPS, line)
            if line in ("loop:", "row:") or steps:
                stages.append((line != "row:", [], self._axes(steps[1])[0] if steps else None))
            elif not stages:
                buffers.append(self._buffer(line))
            else:
                stages[-1][1].append(self._instruction(line))
        return Kernel(
            name=header[1],
            rows=self._axes(header[2]),
            cols=self._axes(header[3]),
            buffers=tuple(buffers),
            stages=tuple(Stage(loop, tuple(body), steps) for loop, body, steps in stages),
            early=None if header[4] is None else tuple(filter(None, header[4].split(", "))),
        )

    def _axes(self, text: str) -> tuple[Axis, ...]:
        parts = [part.strip() for part in re.split(r",(?![^()]*\))", text) if part.strip()]
        matches = [_need(re.fullmatch(_AXIS, part), "an axis", part) for part in parts]
        return tuple(Axis(match[1], self.size(match[2], f"{match[1]}:{match[2]}", "an axis")) for match in matches)

    def _buffer(self, text: str) -> Buffer:
        match = _need(re.fullmatch(_BUFFER, text), "a buffer", text)
        return Buffer(match[2], _parse_dtype(match[3]), self.size(match[4], text, "a buffer"), Role(match[1]))

    def size(self, text: str, whole: str, what: str) -> Size:
        """A number, or an expression over sizes that vary."""
        if text.isdigit():
            return int(text)
        if self.shape_env is None:
            raise SpecError("SM022", f"not {what}: {whole!r}")
        return cast(Size, sym_size(self.shape_env, self._expression(text, whole, what)))

    def _expression(self, text: str, whole: str, what: str, axes: Mapping[str, Symbol] | None = None) -> Expression:
        try:
            return self._value(ast.parse(text, mode="eval").body, {**self.symbols, **(axes or {})})
        except (SyntaxError, KeyError):
            raise SpecError("SM022", f"not {what}: {whole!r}") from None

    def _value(self, node: ast.expr, names: Mapping[str, Symbol]) -> Expression:
        assert self.shape_env is not None
        match node:
            case ast.Constant(value=int(value)):
                return Expression.of(value)
            case ast.Name(id=name):
                return Expression.of(names[name])
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self._value(operand, names)
            case ast.BinOp(left=left, op=op, right=right):
                return _OPERATIONS[type(op)](self.shape_env, self._value(left, names), self._value(right, names))
            case ast.Call(func=ast.Name(id=("max" | "min") as name), args=[left, right]):
                return self.shape_env.apply(name, self._value(left, names), self._value(right, names))
        raise KeyError(ast.dump(node))

    def index(self, text: str) -> Index:
        if self.shape_env is None:
            return parse_index(text)
        taken = set(self.symbols)
        axes = {name: Symbol(name, 2) for name in re.findall(_NAME, text) if name not in {*taken, "max", "min"}}
        terms = dict.fromkeys(axes, ZERO)
        offset = ZERO
        for monomial, factor in self._expression(text, text, "an index", axes).terms.items():
            named = [atom for atom in monomial if atom.text in axes]
            rest = tuple(atom for atom in monomial if atom.text not in axes)
            if len(named) > 1:
                raise SpecError("SM022", f"not an index: {text!r}")
            part = Expression({rest: factor})
            if named:
                terms[named[0].text] += part
            else:
                offset += part
        sizes = [(name, sym_size(self.shape_env, stride)) for name, stride in terms.items()]
        return Index(tuple(sizes), sym_size(self.shape_env, offset))

    def _reaches(self, text: str, whole: str) -> tuple[tuple[str, Size, Size], ...]:
        parts = re.split(r", (?=(?:-?\d+|\(.+\))\*)", text)
        return tuple(self._reach(part, whole) for part in parts)

    def _reach(self, text: str, whole: str) -> tuple[str, Size, Size]:
        match = _need(re.fullmatch(_REACH, text), "an instruction", whole)
        stride = int(match[1]) if re.fullmatch(r"-?\d+", match[1]) else self.size(match[1], whole, "an instruction")
        return match[2], stride, self.size(match[3], whole, "an instruction")

    def _factor(self, text: str, whole: str) -> Factor:
        if match := re.fullmatch(_QUANTIZED, text):
            return self._quantized(*match.groups())
        match = _need(re.fullmatch(_FACTOR, text), "an instruction", whole)
        bounds = []
        for part in match[3].split(" and ") if match[3] else ():
            bound = _need(re.fullmatch(_BOUND, part), "an instruction", whole)
            bounds.append((self.index(bound[1]), self.size(bound[2], whole, "an instruction")))
        return Factor(match[1], self.index(match[2]), tuple(bounds))

    def _quantized(self, kind: str, buffer: str, index: str, sign: str, offset: str, *others: str) -> Factor:
        zero, scale, low = (
            Element(name, self.index(at)) if name else None for name, at in zip(others[::2], others[1::2], strict=True)
        )
        assert scale is not None
        moved = int(offset or 0) * (-1 if sign == "+" else 1)
        quantized = Quantized(cast(IntegerKind, kind), scale, zero, low, moved)
        return Factor(buffer, self.index(index), quantized=quantized)

    def _constant(self, text: str) -> float | int | bool:
        if self.shape_env is not None and set(re.findall(_NAME, text)) & set(self.symbols):
            return self.size(text, text, "a constant")
        return _parse_constant(text)

    def _instruction(self, text: str) -> Instruction:
        if match := re.fullmatch(_STORE, text):
            return Store(match[1], self.index(match[2]), match[3])
        if match := re.fullmatch(_ACCUMULATE, text):
            return Accumulate(match[2], _parse_reduction(match[1]), self.index(match[3]), match[4])
        if match := re.fullmatch(_SCATTER, text):
            fold = None if match[1] == "last" else _parse_reduction(match[1])
            by = self._reaches(match[4], text)
            return Scatter(match[2], fold, self.index(match[3]), by, match[5], match[6] is not None)
        if match := re.fullmatch(_WEIGHTED_SUM, text):
            factor, dtype = self._factor(match[5], text), _parse_dtype(match[6])
            return WeightedSum(match[2], self.index(match[3]), self._axes(match[1]), match[4], factor, dtype)
        if match := re.fullmatch(_SOFTMAX, text):
            return Softmax(match[1], match[3], match[2] or "", match[4] is not None)
        out, equals, rest = text.partition(" = ")
        if not equals or not re.fullmatch(_NAME, out):
            raise SpecError("SM022", f"not an instruction: {text!r}")
        if match := re.fullmatch(_LOAD, rest):
            return Load(out, match[1], self.index(match[2]))
        if match := re.fullmatch(_GATHER, rest):
            return Gather(out, match[1], self.index(match[2]), self._reaches(match[3], text))
        if match := re.fullmatch(_REDUCE, rest):
            return Reduce(out, _parse_reduction(match[1]), match[2])
        if match := re.fullmatch(_SCAN, rest):
            return Scan(out, _parse_running(match[1]), match[2], match[3], match[4] is not None)
        if match := re.fullmatch(_CONTRACT, rest):
            factors = re.split(rf", {_FACTOR_START}", match[2])
            if len(factors) != 2:
                raise SpecError("SM022", f"not an instruction: {text!r}")
            left, right = (self._factor(each, text) for each in factors)
            return Contract(out, self._axes(match[1]), left, right, _parse_dtype(match[3]))
        if rest.startswith("position "):
            return Position(out, self.index(rest.removeprefix("position ")))
        match = _need(re.fullmatch(_TYPED, rest), "an instruction", text)
        dtype = _parse_dtype(match[3])
        if match[1] == "const":
            return Const(out, self._constant(match[2]), dtype)
        if match[1] == "cast":
            return Cast(out, match[2], dtype)
        return Compute(out, match[1], tuple(part.strip() for part in match[2].split(",")), dtype)


_OPERATIONS: dict[type, Callable[[ShapeEnv, Expression, Expression], Expression]] = {
    ast.Add: lambda shape_env, left, right: left + right,
    ast.Sub: lambda shape_env, left, right: left - right,
    ast.Mult: lambda shape_env, left, right: left * right,
    ast.FloorDiv: lambda shape_env, left, right: shape_env.apply("//", left, right),
    ast.Mod: lambda shape_env, left, right: shape_env.apply("%", left, right),
}


def _need(found: re.Match[str] | None, what: str, text: str) -> re.Match[str]:
    if found is None:
        raise SpecError("SM022", f"not {what}: {text!r}")
    return found


def _parse_dtype(text: str) -> torch.dtype:
    if text not in _DTYPES:
        raise SpecError("SM022", f"not a dtype: {text!r}", hint="choose from " + ", ".join(_DTYPES))
    return _DTYPES[text]


def parse_index(text: str) -> Index:
    """`"8*i - j + 3"` → `Index((("i", 8), ("j", -1)), 3)`."""
    terms: list[tuple[str, int]] = []
    offset = 0
    rest = text.replace(" ", "")
    while rest:
        match = _need(re.match(_TERM, rest), "an index", text)
        rest = rest[match.end() :]
        sign = -1 if match[1] == "-" else 1
        if match[3].isdigit():
            offset += sign * int(match[2] or 1) * int(match[3])
        else:
            terms.append((match[3], sign * int(match[2] or 1)))
    return Index(tuple(terms), offset)


def _parse_constant(text: str) -> float | int | bool:
    if text in ("true", "false"):
        return text == "true"
    try:
        return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
    except ValueError:
        raise SpecError("SM022", f"not a constant: {text!r}") from None


def _parse_reduction(text: str) -> Reduction:
    if text not in REDUCTIONS:
        raise SpecError("SM022", f"not a reduction: {text!r}", hint="choose from " + ", ".join(REDUCTIONS))
    return cast(Reduction, text)


def _parse_running(text: str) -> Running:
    return "logaddexp" if text == "logaddexp" else _parse_reduction(text)
