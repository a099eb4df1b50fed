"""Convolutions and their gradients as contractions, for any stride, padding, dilation, groups and memory format.

    convolution(x, w), stride 2, padding 1
    →  points (n, c, h) · sum over (f, k) · left = w[c, f, k] · right = x[n, f, 2h + k - 1], zero where that is outside

A convolution joins two images, a `fine` and a `coarse` one: element k of the kernel joins position h of the coarse one
with position `stride·h + dilation·k - padding` of the fine one. The weight is [coarse channels, fine channels of a
group, *kernel]. Every operator is one of three contractions, and a sum for the bias:

    to_coarse(fine, weight)     a convolution; the gradient to the input of a transposed one
    to_fine(coarse, weight)     a transposed convolution; the gradient to the input of a plain one
    to_weight(coarse, fine)     the gradient to the weight, of both
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import fx

from smelt.base.fast_dataclass import dataclass
from smelt.fuse.lowering.matrix_products import DTYPES, Added, LayoutOf, ProductCall
from smelt.fuse.lowering.rules import ContractRule, FactorBound, FactorRead
from smelt.ir.tensorspec import TensorSpec, short_name, spec_of, tensor_spec
from smelt.ops.record import OperandLayout
from smelt.symbolic.shapes import Shape, Size, is_dense
from smelt.symbolic.symsize import known_at_least, known_equal

# A position: how far it moves with each point dim and each axis of the sum, by name. "" is where it starts.
Position = dict[str, Size]


@dataclass(frozen=True, slots=True)
class ConvolutionSteps:
    """How a kernel goes over its images: a number for each spatial dim."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @classmethod
    def of(
        cls, rank: int, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
    ) -> "ConvolutionSteps":
        """The operator's arguments, where one number may stand for all dims."""
        every = [tuple(steps) * rank if len(steps) == 1 else tuple(steps) for steps in (stride, padding, dilation)]
        return cls(every[0], every[1], every[2], groups)


@dataclass(frozen=True, slots=True)
class Contraction:
    """A product and the dense memory that it fills, point by point.

    `layout` is where in that memory the result is: the points may be more than it has, and have a dim for the groups.
    With `swapped`, the left factor is the second operand and the right one the first."""

    shape: Shape
    stride: Shape
    rule: ContractRule
    layout: OperandLayout
    channel: Shape  # how far each point dim moves in the channels of an image
    swapped: bool

def read_convolution(node: fx.Node, layout_of: LayoutOf) -> ProductCall | str:
    """The product that a call of `convolution` computes, or the reason why no kernel does."""
    arguments: list[Any] = [*node.args]
    x, weight, bias, stride, padding, dilation, transposed, _, groups = arguments
    reason = _why_not(node, (tensor_spec(node),))
    if reason is not None:
        return reason
    steps = ConvolutionSteps.of(len(tensor_spec(x).shape) - 2, stride, padding, dilation, groups)
    product = (to_fine if transposed else to_coarse)(layout_of(x), layout_of(weight), steps, _layout(tensor_spec(node)))
    call = _call(product, x, weight)
    if bias is None:
        return call
    given_bias = layout_of(bias)
    along = tuple(step * given_bias.stride[0] for step in product.channel)
    return replace(call, added=Added(bias, along, given_bias.offset, 1.0))


def read_gradients(node: fx.Node, layout_of: LayoutOf) -> dict[int, ProductCall] | str:
    """The product for each result of `convolution_backward` except the bias's, which is a sum; or the reason why no
    kernel computes it."""
    arguments: list[Any] = [*node.args]
    grad, x, weight, _, stride, padding, dilation, transposed, _, groups, _ = arguments
    specs = spec_of(node)
    assert isinstance(specs, tuple)
    reason = _why_not(node, [spec for spec in specs if spec is not None])
    if reason is not None:
        return reason
    steps = ConvolutionSteps.of(len(tensor_spec(x).shape) - 2, stride, padding, dilation, groups)
    calls = {}
    if specs[0] is not None:
        contract = to_coarse if transposed else to_fine
        calls[0] = _call(contract(layout_of(grad), layout_of(weight), steps, _layout(specs[0])), grad, weight)
    if specs[1] is not None:
        coarse, fine = (x, grad) if transposed else (grad, x)
        calls[1] = _call(to_weight(layout_of(coarse), layout_of(fine), steps, _layout(specs[1])), coarse, fine)
    return calls


def _why_not(node: fx.Node, results: Sequence[TensorSpec]) -> str | None:
    """Why no kernel computes a call, whatever its layouts; None if one can."""
    operands = [tensor_spec(argument) for argument in node.all_input_nodes]
    if 0 in [spec.numel for spec in (*operands, *results)]:
        return "has no elements"
    if operands[0].dtype not in DTYPES or len({spec.dtype for spec in operands}) != 1:
        return f"convolves {' and '.join(dict.fromkeys(short_name(spec.dtype) for spec in operands))}"
    if len({spec.device for spec in operands}) != 1:
        return "convolves on several devices"
    return None if all(is_dense(spec.shape, spec.stride) for spec in results) else "returns a tensor with gaps"


def _layout(spec: TensorSpec) -> OperandLayout:
    return OperandLayout(spec.shape, spec.stride)


def _call(contraction: "Contraction", first: fx.Node, second: fx.Node) -> ProductCall:
    left, right = (second, first) if contraction.swapped else (first, second)
    return ProductCall(left, right, contraction.rule, contraction.shape, contraction.stride, contraction.layout)


def to_coarse(
    fine: OperandLayout, weight: OperandLayout, steps: ConvolutionSteps, result: OperandLayout
) -> Contraction:
    """The coarse image, of operands `fine` and `weight`. The strides of `result` are those of its memory."""
    builder = _Builder(steps.groups, weight)
    builder.point("n", result.shape[0], result.stride[0])
    builder.channels("c", builder.coarse, result.stride[1])
    builder.axis("f", weight.shape[1])
    there: list[Position] = [{"n": 1}, builder.fine_channel]
    kernel: list[Position] = [builder.coarse_channel, {"f": 1}]
    for dim, (step, pad, dilation) in enumerate(zip(steps.stride, steps.padding, steps.dilation, strict=True)):
        builder.point(f"h{dim}", result.shape[dim + 2], result.stride[dim + 2])
        builder.axis(f"k{dim}", weight.shape[dim + 2])
        there.append({f"h{dim}": step, f"k{dim}": dilation, "": -pad})
        kernel.append({f"k{dim}": 1})
    result = OperandLayout(result.shape, result.stride)
    return builder.contraction((fine, there), (weight, kernel), result, builder.coarse_channel)


def to_weight(
    coarse: OperandLayout, fine: OperandLayout, steps: ConvolutionSteps, result: OperandLayout
) -> Contraction:
    """The gradient to the weight, of operands `coarse` and `fine`: one of them is a gradient."""
    builder = _Builder(steps.groups, result)
    builder.channels("c", builder.coarse, result.stride[0])
    builder.point("f", result.shape[1], result.stride[1])
    builder.axis("n", coarse.shape[0])
    here: list[Position] = [{"n": 1}, builder.coarse_channel]
    there: list[Position] = [{"n": 1}, builder.fine_channel]
    for dim, (step, pad, dilation) in enumerate(zip(steps.stride, steps.padding, steps.dilation, strict=True)):
        builder.point(f"k{dim}", result.shape[dim + 2], result.stride[dim + 2])
        builder.axis(f"h{dim}", coarse.shape[dim + 2])
        here.append({f"h{dim}": 1})
        there.append({f"h{dim}": step, f"k{dim}": dilation, "": -pad})
    return builder.contraction((coarse, here), (fine, there), OperandLayout(result.shape, result.stride))


def to_fine(
    coarse: OperandLayout, weight: OperandLayout, steps: ConvolutionSteps, result: OperandLayout
) -> Contraction:
    """The fine image, of operands `coarse` and `weight`.

    With a stride above one, position b of the result meets only the elements of the kernel for which a position of the
    coarse image exists. So b is split, `stride·a + r`: what it meets depends on r alone, and r goes with the kernel as
    a channel does. Where the extent is no multiple of the stride, there are some points too many."""
    rank = len(steps.stride)
    splits = [_Split.of(steps, dim, weight.shape[dim + 2], result.shape[dim + 2]) for dim in range(rank)]
    room = OperandLayout(result.shape, result.stride)
    if any(not known_equal(split.room, size) for split, size in zip(splits, result.shape[2:], strict=True)):
        stride = _laid_like(result, (*result.shape[:2], *(split.room for split in splits)))
        start = sum(split.start * step for split, step in zip(splits, stride[2:], strict=True))
        room = OperandLayout(result.shape, stride, start)
    builder = _Builder(steps.groups, weight)
    builder.point("n", result.shape[0], room.stride[0])
    builder.channels("f", builder.fine, room.stride[1])
    builder.axis("c", builder.coarse)
    here: list[Position] = [{"n": 1}, builder.coarse_channel]
    kernel: list[Position] = [builder.coarse_channel, {"f": 1}]
    for dim, split in enumerate(splits):
        position, tap = split.positions(builder, str(dim), room.stride[dim + 2])
        here.append(position)
        kernel.append(tap)
    return builder.contraction((coarse, here), (weight, kernel), room, builder.fine_channel)


@dataclass(frozen=True, slots=True)
class _Split:
    """A spatial dim of the fine image as it is gone through backwards. Of its `room` points the result starts at the
    point `start`; point b is position `b + shift` of the padded image."""

    step: int
    dilation: int
    kernel: Size
    room: Size
    start: int
    shift: int

    @classmethod
    def of(cls, steps: ConvolutionSteps, dim: int, kernel: Size, extent: Size) -> "_Split":
        step, pad, dilation = steps.stride[dim], steps.padding[dim], steps.dilation[dim]
        exact = cls(step, dilation, kernel, extent, 0, pad)
        if step == 1:
            return exact
        first = pad % step
        aligned = cls(step, dilation, kernel, (extent + first + step - 1) // step * step, first, pad - first)
        # Points that begin with the padding need no more terms than elements of the kernel; those that do not may be
        # the result's own memory.
        return exact if known_equal(extent % step, 0) and exact.terms == aligned.terms else aligned

    @property
    def terms(self) -> Size:
        """How many positions of the coarse image may contribute to a point."""
        return self.before + (self.dilation * (self.kernel - 1) - self.shift % self.step) // self.step + 1

    @property
    def before(self) -> int:
        """How many of them come before the position that the point would have without its kernel."""
        return (self.step - 1 + self.shift % self.step) // self.step

    def positions(self, builder: "_Builder", dim: str, stride: Size) -> tuple[Position, Position]:
        """Positions in the coarse image and in the kernel, for the points and axes that are added to `builder`."""
        step, shift = self.step, self.shift
        if step == 1:
            builder.point(f"b{dim}", self.room, stride)
            builder.axis(f"k{dim}", self.kernel)
            return {f"b{dim}": 1, f"k{dim}": -self.dilation, "": shift}, {f"k{dim}": 1}
        builder.point(f"a{dim}", self.room // step, stride * step)
        builder.point(f"r{dim}", step, stride)
        builder.axis(f"t{dim}", self.terms)
        here = {f"a{dim}": 1, f"t{dim}": -1, "": shift // step + self.before}
        reached = {f"r{dim}": 1, f"t{dim}": step, "": shift % step - step * self.before}
        if self.dilation == 1:
            return here, reached
        # The elements of the kernel are further apart: of all pairs those count that meet.
        builder.axis(f"k{dim}", self.kernel)
        builder.only_where({**reached, f"k{dim}": -self.dilation})
        return here, {f"k{dim}": 1}


class _Builder:
    """The points and axes of one contraction, and the positions in its operands."""

    def __init__(self, groups: int, weight: OperandLayout) -> None:
        self.groups = groups
        self.coarse = weight.shape[0] // groups
        self.fine = weight.shape[1]
        self.points: dict[str, tuple[Size, Size]] = {}  # extent and stride in memory
        self.axes: dict[str, Size] = {}
        self.conditions: list[Position] = []

    def point(self, name: str, extent: Size, stride: Size) -> None:
        self.points[name] = (extent, stride)

    def axis(self, name: str, extent: Size) -> None:
        if extent != 1:
            self.axes[name] = extent

    def only_where(self, position: Position) -> None:
        """Count terms only where a position is zero."""
        self.conditions.append(position)

    def channels(self, name: str, each: Size, stride: Size) -> None:
        """The point dims of channels: two where there are groups."""
        if self.groups != 1:
            self.point("g", self.groups, stride * each)
        if self.groups == 1 or each != 1:
            self.point(name, each, stride)

    @property
    def coarse_channel(self) -> Position:
        return {"g": self.coarse, "c": 1}

    @property
    def fine_channel(self) -> Position:
        return {"g": self.fine, "f": 1}

    def contraction(
        self,
        first: tuple[OperandLayout, list[Position]],
        second: tuple[OperandLayout, list[Position]],
        layout: OperandLayout,
        channel: Position | None = None,
    ) -> Contraction:
        # The sum goes through the image as it lies in memory.
        along = dict(zip(self.axes, self._read(*first).along, strict=True))
        self.axes = {name: self.axes[name] for name in sorted(self.axes, key=lambda name: -abs(along[name]))}
        reads = [self._read(*first), self._read(*second, self.conditions)]
        shape = tuple(extent for extent, _ in self.points.values())
        stride = tuple(step for _, step in self.points.values())
        axes = tuple(self.axes.values())
        swapped = _runs_along(reads[0], shape, stride) and not _runs_along(reads[1], shape, stride)
        left, right = reversed(reads) if swapped else reads
        rule = ContractRule(axes, left, right)
        return Contraction(shape, stride, rule, layout, self._over_points(channel or {}), swapped)

    def _read(
        self, layout: OperandLayout, positions: list[Position], conditions: Sequence[Position] = ()
    ) -> FactorRead:
        place: Position = {"": layout.offset}
        bounds = [self._bound(condition, 1) for condition in conditions]
        for extent, step, position in zip(layout.shape, layout.stride, positions, strict=True):
            for name, factor in position.items():
                place[name] = place.get(name, 0) + step * factor
            if not self._stays(position, extent):
                bounds.append(self._bound(position, extent))
        return FactorRead(self._over_points(place), self._over_axes(place), place[""], tuple(bounds))

    def _bound(self, position: Position, extent: Size) -> FactorBound:
        return FactorBound(self._over_points(position), self._over_axes(position), position.get("", 0), extent)

    def _over_points(self, position: Position) -> Shape:
        return tuple(position.get(name, 0) for name in self.points)

    def _over_axes(self, position: Position) -> Shape:
        return tuple(position.get(name, 0) for name in self.axes)

    def _stays(self, position: Position, extent: Size) -> bool:
        """Whether a position is in bounds for all points and terms, whatever the dynamic sizes are."""
        extents = {**{name: size for name, (size, _) in self.points.items()}, **self.axes}
        low = high = position.get("", 0)
        for name, factor in position.items():
            far = (extents[name] - 1) * factor if name in extents else 0
            low, high = (low + far, high) if factor < 0 else (low, high + far)
        return known_at_least(low, 0) and known_at_least(extent - 1, high)


def _runs_along(read: FactorRead, shape: Shape, stride: Shape) -> bool:
    """Whether a factor varies along the innermost dim in memory."""
    inner = min((dim for dim in range(len(shape)) if shape[dim] != 1), key=lambda dim: stride[dim], default=None)
    return inner is not None and (read.stride[inner] != 0 or any(bound.stride[inner] != 0 for bound in read.bounds))


def _laid_like(like: OperandLayout, shape: Shape) -> Shape:
    """Dense strides of a shape, with the dims in the memory order of another tensor."""
    stride, step = [0] * len(shape), 1
    for dim in sorted(range(len(shape)), key=lambda dim: (like.stride[dim], -dim)):
        stride[dim] = step
        step *= shape[dim]
    return tuple(stride)
