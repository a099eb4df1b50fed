"""Avoids copies that only lay out a factor or a result: the product reads the original, or computes the copy directly.

    q = clone(permute(x)): f32[2, 4, 8, 8] of strides (768, 8, 96, 1); bmm(view(q, [8, 8, 8]), k)
    →  points 2 × 4 × 8 × 8, of which x is read at strides (768, 8, 96, 0) and 1 along the sum

Conversions to a wider float are handled the same way: the product converts what it reads. A dim of the product that
spans several dims of the copy is split.

    clone(permute(bmm(a, b)))  →  a product with the dims and the memory of the copy
"""

from dataclasses import replace

from smelt.base.fast_dataclass import dataclass
from smelt.fuse.lowering.matrix_products import ProductCall
from smelt.fuse.lowering.rules import ContractRule, FactorBound, FactorRead
from smelt.ops.record import OperandLayout
from smelt.symbolic.shapes import Shape, Size


@dataclass(frozen=True, slots=True)
class Cut:
    """A dim of the product, or behind those an axis of its sum, to be split, and the extent of the inner part."""

    number: int
    inner: Size


@dataclass(frozen=True, slots=True)
class CopiedProduct:
    """A product in the memory of its copy."""

    shape: Shape
    stride: Shape
    rule: ContractRule


def read_through(call: ProductCall, number: int, stride: Shape, copied: OperandLayout) -> ProductCall | None:
    """The product that reads the source of a copy as its factor `number`: the copy's dims are dense by `stride`, and
    the source elements are at `copied`. None if no strides describe that."""
    while True:
        factor = call.rule.factors[number]
        if factor.bounds:
            return None
        sizes = (*call.shape, *call.rule.axes)
        place = (factor.offset, *factor.stride, *factor.along)
        indices = split(sizes, place, copied.shape, stride)
        if indices is None:
            return None
        if isinstance(indices, Cut):
            call = cut_call(call, indices)
            continue
        total = [copied.offset, *(0 for _ in sizes)]
        for index, step in zip(indices, copied.stride, strict=True):
            total = [have + step * part for have, part in zip(total, index, strict=True)]
        dims = len(call.shape) + 1
        read = FactorRead(tuple(total[1:dims]), tuple(total[dims:]), total[0])
        factors = [read if each == number else old for each, old in enumerate(call.rule.factors)]
        return call.with_rule(ContractRule(call.rule.axes, *factors))


def moved(view: OperandLayout, stride: Shape, copied: OperandLayout) -> OperandLayout | None:
    """A view of a copy that is dense by `stride`, as a view of the source at `copied`."""
    indices = split(view.shape, (view.offset, *view.stride), copied.shape, stride)
    if indices is None or isinstance(indices, Cut):
        return None
    total = [copied.offset, *(0 for _ in view.shape)]
    for index, step in zip(indices, copied.stride, strict=True):
        total = [have + step * part for have, part in zip(total, index, strict=True)]
    return OperandLayout(view.shape, tuple(total[1:]), total[0])


def copied(rule: ContractRule, product: OperandLayout, stride: Shape, copy: OperandLayout) -> CopiedProduct | None:
    """The product computed directly in the layout of its copy, which is dense by `stride` and reads `product` at
    `copy`."""
    shape, steps = copy.shape, copy.stride
    while True:
        indices = split(shape, (copy.offset, *steps), product.shape, product.stride)
        if indices is None:
            return None
        if not isinstance(indices, Cut):
            break
        number, inner = indices.number, indices.inner
        shape = (*shape[:number], shape[number] // inner, inner, *shape[number + 1 :])
        steps, stride = (
            (*strides[:number], strides[number] * inner, *strides[number:]) for strides in (steps, stride)
        )
    def moved(offset: Size, steps: Shape) -> list[Size]:
        total = [offset, *(0 for _ in shape)]
        for index, step in zip(indices, steps, strict=True):
            total = [have + step * part for have, part in zip(total, index, strict=True)]
        return total

    def read(factor: FactorRead) -> FactorRead:
        place = moved(factor.offset, factor.stride)
        bounds = []
        for bound in factor.bounds:
            at = moved(bound.offset, bound.stride)
            bounds.append(FactorBound(tuple(at[1:]), bound.along, at[0], bound.extent))
        return FactorRead(tuple(place[1:]), factor.along, place[0], tuple(bounds))

    return CopiedProduct(shape, stride, ContractRule(rule.axes, read(rule.left), read(rule.right)))


def split(sizes: Shape, place: Shape, shape: Shape, stride: Shape) -> list[list[Size]] | Cut | None:
    """The index along each dim of dense memory, from a position in it: a start and a step for each of `sizes`."""
    rest = list(place)
    indices: list[list[Size]] = [[0] * len(place)] * len(shape)
    for dim in sorted((dim for dim in range(len(shape)) if shape[dim] != 1), key=lambda dim: -stride[dim]):
        step = stride[dim]
        indices[dim] = [part // step for part in rest]
        rest = [part % step for part in rest]
        if rest[0] + sum(part * (size - 1) for part, size in zip(rest[1:], sizes, strict=True)) < step:
            continue
        for number, (part, size) in enumerate(zip(rest[1:], sizes, strict=True)):
            inner = step // part if part and step % part == 0 else 0
            if 1 < inner < size and size % inner == 0:
                return Cut(number, inner)
        return None
    return indices


def cut_call(call: ProductCall, cut: Cut) -> ProductCall:
    """The same product, with one dim or axis split in two."""
    dims = len(call.shape)
    is_dim, number = cut.number < dims, cut.number if cut.number < dims else cut.number - dims

    def sizes(sizes: Shape) -> Shape:
        return (*sizes[:number], sizes[number] // cut.inner, cut.inner, *sizes[number + 1 :])

    def steps(strides: Shape) -> Shape:
        return (*strides[:number], strides[number] * cut.inner, *strides[number:])

    def moved(factor: FactorRead) -> FactorRead:
        bounds = tuple(
            FactorBound(*_one(bound.stride, bound.along), bound.offset, bound.extent) for bound in factor.bounds
        )
        quantized = factor.quantized
        if quantized is not None:
            scale, zero, low = (each and moved(each) for each in (quantized.scale, quantized.zero, quantized.low))
            assert scale is not None
            quantized = replace(quantized, scale=scale, zero=zero, low=low)
        return FactorRead(*_one(factor.stride, factor.along), factor.offset, bounds, quantized)

    def _one(stride: Shape, along: Shape) -> tuple[Shape, Shape]:
        return (steps(stride), along) if is_dim else (stride, steps(along))

    axes = call.rule.axes if is_dim else sizes(call.rule.axes)
    rule = ContractRule(axes, moved(call.rule.left), moved(call.rule.right))
    if not is_dim:
        return call.with_rule(rule)
    return call.with_dims(sizes(call.shape), steps, rule)
