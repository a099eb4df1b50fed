"""Recognizes weights that a program dequantizes before it multiplies: the product reads the integers itself.

    w = (stack((q & 15, q >> 4), -1).view(16, 2, 64) - z) * s; mm(x, w.view(16, 128).t())
    →  x times integers of 4 bits at strides (0, 128), 64 and 1, with z and s at strides (0, 2), 1 and 0

Follows the element that a point of the product needs back to memory, through operators that compute element by element,
and reads the scalar code as `(integer - offset - zero) · scale + low`. Views between the operators may split axes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.fuse.lowering.factor_views import Cut, cut_call, split
from smelt.fuse.lowering.factors import is_copy
from smelt.fuse.lowering.matrix_products import ProductCall
from smelt.fuse.lowering.rules import FactorRead, PointRule, QuantizedRead, Slot
from smelt.fuse.lowering.values import FusionKind, FusionRead, FusionValue
from smelt.ir.check_kernel import SMALL_INTEGERS
from smelt.ir.kernel import IntegerKind
from smelt.ops.promote import widened
from smelt.ops.record import Number, OperandMemory, Scalar
from smelt.symbolic.shapes import Shape, Size
from smelt.symbolic.symsize import hint, known_equal

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_RANGES: dict[IntegerKind, tuple[int, int]] = {"i8": (-128, 127), "u8": (0, 255), "i4": (-8, 7), "u4": (0, 15)}
_LEAST_PART = 4  # a value of fewer elements than this part of the weights is kept in memory: scales, zero points
_MOST_NODES = 64

Place = tuple[Size, ...]  # a position: its offset, then a step for each dim of the product and each axis of its sum


class _NoWeights(Exception):
    """The element is no quantized weight."""


class _NeedsCut(Exception):
    """A dim or an axis of the product spans several dims of what it reads."""

    def __init__(self, cut: Cut) -> None:
        super().__init__("cut")
        self.cut = cut


@dataclass(frozen=True, slots=True)
class _Node:
    """Scalar code: a constant, an element in memory, a position, a conversion or an operation."""

    op: str
    args: "tuple[_Node, ...]" = ()
    number: Number = 0
    value: FusionValue | None = None
    place: Place = ()
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True, slots=True)
class _Weights:
    """A quantized element, as far as it is known. `half`: which half of a byte it is, if it is one."""

    integers: FusionValue
    place: Place
    kind: IntegerKind
    half: Place | None = None
    masked: bool = True  # no other bits are left beside the half
    offset: int = 0
    zero: _Node | None = None
    scale: _Node | None = None
    low: _Node | None = None


def with_integers(
    call: ProductCall, sources: Sequence[FusionValue]
) -> Iterator[tuple[ProductCall, list[FusionValue]]]:
    """The products that read integers in the place of dequantized factors, and what they read: both factors, then the
    scales. First of both factors, if both are dequantized, then of one."""
    for number in (1, 0):
        reads = _with_integers(call, sources, number)
        if reads is None:
            continue
        both = _with_integers(*reads, 1 - number) if number else None
        if both is not None:
            yield both
        yield reads
        return


def _with_integers(
    call: ProductCall, sources: Sequence[FusionValue], number: int
) -> tuple[ProductCall, list[FusionValue]] | None:
    source = sources[number]
    if not source.reads_bytes or _is_leaf(source, source):
        return None
    if source.spec.dtype not in _FLOATS or call.rule.factors[number].bounds:
        return None
    itemsize = max(each.spec.dtype.itemsize for each in sources)
    while True:
        factor = call.rule.factors[number]
        sizes = (*call.shape, *call.rule.axes)
        try:
            code = _Reader(source, sizes, itemsize).element(source, (factor.offset, *factor.stride, *factor.along))
            weights = _weights(code, sizes)
        except _NeedsCut as needed:
            call = cut_call(call, needed.cut)
            continue
        except _NoWeights:
            return None
        if weights.scale is None or not weights.masked:
            return None
        return _read(call, number, sources, weights)


def _read(
    call: ProductCall, number: int, sources: Sequence[FusionValue], weights: _Weights
) -> tuple[ProductCall, list[FusionValue]]:
    def at(place: Place) -> FactorRead:
        dims = 1 + len(call.shape)
        return FactorRead(place[1:dims], place[dims:], place[0])

    values: list[FusionValue] = []

    def element(node: _Node | None) -> FactorRead | None:
        if node is None:
            return None
        assert node.value is not None
        values.append(node.value)
        return at(node.place)

    place = weights.place
    if weights.half is not None:
        place = tuple(2 * byte + half for byte, half in zip(weights.place, weights.half, strict=True))
    scale, zero, low = (element(node) for node in (weights.scale, weights.zero, weights.low))
    assert scale is not None
    read = replace(at(place), quantized=QuantizedRead(weights.kind, scale, zero, low, weights.offset))
    rule = replace(call.rule, left=read) if number == 0 else replace(call.rule, right=read)
    factors = [weights.integers if each == number else source for each, source in enumerate(sources[:2])]
    others = list(sources[2:])  # scales of the other factor; those of the left one are the first
    return call.with_rule(rule), [*factors, *values, *others] if number == 0 else [*factors, *others, *values]


def _is_leaf(value: FusionValue, source: FusionValue) -> bool:
    """Whether a value is read from memory: it is not computed, much smaller than the weights, or floats that were
    rounded to bytes. Positions and scales that are only converted are computed."""
    if value.kind is not FusionKind.POINTWISE or not isinstance(value.rule, PointRule):
        return True
    if value.spec.dtype in SMALL_INTEGERS and any(each.value.spec.dtype.is_floating_point for each in value.readings):
        return True
    if not value.readings or is_copy(value):
        return False
    return hint(value.numel) * _LEAST_PART <= hint(source.numel)


class _Reader:
    """Writes the scalar code of an element of `source`. The program rounds floats of less than `itemsize` bytes."""

    def __init__(self, source: FusionValue, sizes: Shape, itemsize: int) -> None:
        self.source, self.sizes, self.itemsize = source, sizes, itemsize
        self.nodes: list[_Node] = []
        self._depth = 0  # of values, each read by the one before

    def element(self, value: FusionValue, place: Place) -> _Node:
        if _is_leaf(value, self.source):
            return _Node("read", value=value, place=place, dtype=value.spec.dtype)
        dtype = value.spec.dtype
        is_rounded = dtype.is_floating_point and dtype.itemsize < self.itemsize and not is_copy(value)
        if is_rounded or len(self.nodes) > _MOST_NODES or self._depth > _MOST_NODES:
            raise _NoWeights
        indices = split(self.sizes, place, value.spec.shape, value.spec.stride)
        if isinstance(indices, Cut):
            raise _NeedsCut(indices)
        if indices is None:
            raise _NoWeights
        assert isinstance(value.rule, PointRule)
        self._depth += 1
        node = _Emitter(self, value, place, [tuple(index) for index in indices]).run(value.rule)
        self._depth -= 1
        return node


class _Emitter:
    """The `ops.record.Emitter` of one element of one value."""

    def __init__(self, reader: _Reader, value: FusionValue, place: Place, indices: list[Place]) -> None:
        self.reader, self.value, self.place, self.indices = reader, value, place, indices
        self.dtype, self.result, self.shape = value.spec.dtype, widened(value.spec.dtype), value.spec.shape
        assert isinstance(value.rule, PointRule)
        self.common = value.rule.common

    def run(self, rule: PointRule) -> _Node:
        elements = [self._read(reading) for reading in self.value.readings]

        def filled(argument: Any) -> Any:
            return elements[argument.number] if isinstance(argument, Slot) else argument

        kwargs = {name: filled(argument) for name, argument in rule.kwargs.items()}
        scalar = rule.lowering.emit(self, *map(filled, rule.args), **kwargs)
        return self.reader.nodes[self.cast(scalar, self.result).id]

    def _read(self, reading: FusionRead) -> Scalar:
        if reading.indirect:
            raise _NoWeights
        place = self.place
        if not reading.identity_read:
            total = [reading.offset, *(0 for _ in self.reader.sizes)]
            for index, step in zip(self.indices, reading.stride, strict=True):
                total = [have + step * part for have, part in zip(total, index, strict=True)]
            place = tuple(total)
        return self._scalar(self.reader.element(reading.value, place))

    def _scalar(self, node: _Node) -> Scalar:
        self.reader.nodes.append(node)
        return Scalar(len(self.reader.nodes) - 1, node.dtype)

    def _node(self, scalar: Scalar) -> _Node:
        return self.reader.nodes[scalar.id]

    def const(self, value: Number, dtype: torch.dtype) -> Scalar:
        return self._scalar(_Node("const", number=value, dtype=dtype))

    def op(self, name: str, *args: Scalar) -> Scalar:
        nodes = tuple(self._node(arg) for arg in args)
        dtype = torch.bool if name in ("eq", "ne") else args[-1].dtype
        return self._scalar(_Node(name, nodes, dtype=dtype))

    def cast(self, value: Scalar, dtype: torch.dtype) -> Scalar:
        node = self._node(value)
        return value if node.dtype is dtype else self._scalar(_Node("cast", (node,), dtype=dtype))

    def position(self, dim: int) -> Scalar:
        return self._scalar(_Node("position", place=self.indices[dim], dtype=torch.int64))

    def gather(self, memory: OperandMemory, by: Sequence[tuple[Scalar, Size, Size]]) -> Scalar:
        raise _NoWeights


# The scalar code, read.


def _weights(node: _Node, sizes: Shape) -> _Weights:
    """What the code computes from an integer in memory; `_NoWeights` if that is no quantized weight."""
    rule = _RULES.get(node.op)
    if rule is None:
        raise _NoWeights
    weights = rule(node, sizes)
    if not weights.masked:
        raise _NoWeights
    return weights


def _of_memory(node: _Node, sizes: Shape) -> _Weights:
    assert node.value is not None
    if node.dtype not in SMALL_INTEGERS:
        raise _NoWeights
    return _Weights(node.value, node.place, "i8" if node.dtype is torch.int8 else "u8")


def _of_cast(node: _Node, sizes: Shape) -> _Weights:
    """Integers of 8 bits wrap. They are converted to each other as they are, and to others if they have not wrapped."""
    inner = node.args[0]
    weights, have, want = _weights(inner, sizes), inner.dtype, node.dtype
    if weights.scale is not None:
        exact = want.is_floating_point
    elif want in SMALL_INTEGERS:
        exact = weights.half is not None and (have in SMALL_INTEGERS or _fits(weights, want))
    elif have in SMALL_INTEGERS:
        exact = _fits(weights, have)
    else:
        exact = want.is_floating_point or not have.is_floating_point or weights.zero is None
    if not exact or want is torch.bool:
        raise _NoWeights
    return weights


def _fits(weights: _Weights, dtype: torch.dtype) -> bool:
    """Whether every value that the integers may have is one of an integer dtype."""
    least, most = _RANGES[weights.kind]
    limits = torch.iinfo(dtype)
    return weights.zero is None and limits.min <= least - weights.offset and most - weights.offset <= limits.max


def _whole(weights: _Weights) -> _Weights:
    """An element of 8 bits that nothing was done to."""
    if weights != _Weights(weights.integers, weights.place, weights.kind):
        raise _NoWeights
    return weights


def _half(weights: _Weights, number: int, kind: IntegerKind) -> _Weights:
    return replace(_whole(weights), half=(number, *(0 for _ in weights.place[1:])), kind=kind)


def _of_and(node: _Node, sizes: Shape) -> _Weights:
    inner, number = _with_constant(node)
    if number == 15 and inner.op == "shr":
        return replace(_of_shift(inner, sizes), kind="u4", masked=True)
    if number == 15:
        return _half(_weights(inner, sizes), 0, "u4")
    raise _NoWeights


def _of_shift(node: _Node, sizes: Shape) -> _Weights:
    """The upper half: of a signed byte it is signed."""
    inner, by = node.args
    whole = _whole(_weights(inner, sizes))
    place = _affine(by, len(sizes))
    if place is None or any(part % 4 for part in place):
        raise _NoWeights
    half = tuple(part // 4 for part in place)
    highest = half[0] + sum(step * (size - 1) for step, size in zip(half[1:], sizes, strict=True) if step > 0)
    lowest = half[0] + sum(step * (size - 1) for step, size in zip(half[1:], sizes, strict=True) if step < 0)
    is_upper = known_equal(lowest, 1) and known_equal(highest, 1)
    if not is_upper and not (known_equal(lowest, 0) and known_equal(highest, 1)):
        raise _NoWeights
    return replace(whole, half=half, kind="u4" if whole.kind == "u8" else "i4", masked=is_upper)


def _affine(node: _Node, count: int) -> Place | None:
    """Where a number runs with the dims of the product and the axes of its sum: constants, positions and their sums."""
    match node.op:
        case "const":
            return (_integer(node.number), *(0 for _ in range(count)))
        case "position":
            return node.place
        case "cast":
            return _affine(node.args[0], count)
        case "add" | "mul":
            left, right = (_affine(each, count) for each in node.args)
            if left is None or right is None:
                return None
            if node.op == "add":
                return tuple(one + other for one, other in zip(left, right, strict=True))
            for one, other in ((left, right), (right, left)):
                if not any(one[1:]):
                    return tuple(one[0] * part for part in other)
    return None


def _of_division(node: _Node, sizes: Shape) -> _Weights:
    inner, by = node.args
    whole = _weights(inner, sizes)
    if by.op != "const" or by.number != 16 or whole.kind != "u8":
        raise _NoWeights
    return _half(whole, 1 if node.op == "floordiv" else 0, "u4")


def _of_xor(node: _Node, sizes: Shape) -> _Weights:
    """`(n ^ 8) - 8` is the signed integer that the half of a byte is."""
    inner, number = _with_constant(node)
    weights = _weights(inner, sizes)
    if number != 8 or weights.kind != "u4" or weights.offset or weights.zero is not None or weights.scale is not None:
        raise _NoWeights
    return replace(weights, kind="i4", offset=-8)


def _of_choice(node: _Node, sizes: Shape) -> _Weights:
    """One half of a byte or the other, by the position along a dim of two."""
    condition, *ways = node.args
    if condition.op != "eq" or condition.args[0].op != "position" or condition.args[1].op != "const":
        raise _NoWeights
    place, number = condition.args[0].place, condition.args[1].number
    there, elsewhere = (_weights(way, sizes) for way in ways)
    highest = place[0] + sum(step * (size - 1) for step, size in zip(place[1:], sizes, strict=True))
    if not (known_equal(place[0], 0) and known_equal(highest, 1)) or number not in (0, 1):
        raise _NoWeights
    if there.half is None or elsewhere.half is None or replace(there, half=elsewhere.half) != elsewhere:
        raise _NoWeights
    first, second = (elsewhere, there) if number == 1 else (there, elsewhere)
    assert first.half is not None and second.half is not None
    start, end = first.half[0], second.half[0]
    return replace(there, half=(start, *((end - start) * step for step in place[1:])))


def _of_difference(node: _Node, sizes: Shape) -> _Weights:
    inner, other = node.args
    weights, number = _weights(inner, sizes), _constant(other)
    if weights.scale is not None or weights.zero is not None:
        raise _NoWeights
    if number is not None:
        return replace(weights, offset=weights.offset + _integer(number))
    return replace(weights, zero=_in_memory(other))


def _of_sum(node: _Node, sizes: Shape) -> _Weights:
    for inner, other in (node.args, node.args[::-1]):
        number = _constant(other)
        try:
            weights = _weights(inner, sizes)
        except _NoWeights:
            continue
        if weights.scale is None and weights.zero is None and number is not None:
            return replace(weights, offset=weights.offset - _integer(number))
        if weights.scale is not None and weights.low is None and number is None:
            return replace(weights, low=_in_memory(other, floats=True))
    raise _NoWeights


def _of_product(node: _Node, sizes: Shape) -> _Weights:
    for inner, other in (node.args, node.args[::-1]):
        try:
            weights = _weights(inner, sizes)
        except _NoWeights:
            continue
        if weights.scale is None:
            return replace(weights, scale=_in_memory(other, floats=True))
    raise _NoWeights


def _of_fma(node: _Node, sizes: Shape) -> _Weights:
    product = _Node("mul", node.args[:2], dtype=node.dtype)
    return _of_sum(_Node("add", (product, node.args[2]), dtype=node.dtype), sizes)


def _in_memory(node: _Node, *, floats: bool = False) -> _Node:
    """An element in memory, converted or not."""
    while node.op == "cast" and node.args[0].op in ("cast", "read"):
        have, want = node.args[0].dtype, node.dtype
        is_wider = have in SMALL_INTEGERS and want not in (*SMALL_INTEGERS, torch.bool)
        if not (want.is_floating_point or is_wider):
            raise _NoWeights
        node = node.args[0]
    allowed = _FLOATS if floats else (*_FLOATS, *SMALL_INTEGERS)
    if node.op != "read" or node.dtype not in allowed:
        raise _NoWeights
    return node


def _with_constant(node: _Node) -> tuple[_Node, Number]:
    """The two operands, of which one is a constant."""
    for inner, other in (node.args, node.args[::-1]):
        number = _constant(other)
        if number is not None:
            return inner, number
    raise _NoWeights


def _constant(node: _Node) -> Number | None:
    while node.op == "cast":
        node = node.args[0]
    return node.number if node.op == "const" else None


def _integer(number: Number) -> int:
    if not abs(number) <= 256 or number != int(number):  # no NaN either
        raise _NoWeights
    return int(number)


_RULES: dict[str, Callable[[_Node, Shape], _Weights]] = {
    "read": _of_memory,
    "cast": _of_cast,
    "and": _of_and,
    "shr": _of_shift,
    "floordiv": _of_division,
    "remainder": _of_division,
    "xor": _of_xor,
    "where": _of_choice,
    "sub": _of_difference,
    "add": _of_sum,
    "mul": _of_product,
    "fma": _of_fma,
}
