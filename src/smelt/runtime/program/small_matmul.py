"""Matrix products as they are fastest: small ones computed here without a library call, some as products of transposes.

    mm(out, left, right) of 10 × 10   →   (0, 10, 10, 10, 10, 1, 0, 10, 1, 0, 10, 1, 0)   see `Native`
    mm(out, left, right.T)            →   mm(out.T, right, left.T)                        where that is faster

Calling a library for a small product takes longer than making it.

`_native.Runner` makes those itself (`csrc/runner/small_matmul.c`). A call into PyTorch takes 4 µs on the machine this
was tried on, 1,000 multiplications 0.8 µs and 4,096 of them 2 to 3 µs. What is summed up is summed up in float64: where
sums are of a few terms that cancel, float32 in one order may be several times as wrong as in another, and a library's
order is its own.
"""

import math
from collections.abc import Sequence

import torch

from smelt.device.host_library import given_transposed
from smelt.ir.program import Operand
from smelt.symbolic.shapes import Shape, Size

MULTIPLICATIONS, SIDE, DEPTH = 4096, 1024, 64  # the most of each


def small_product(tensors: Sequence[Operand], begins: Sequence[Size], dtypes: set[torch.dtype]) -> tuple[Size, ...]:
    """How to make `out = left @ right` or `out = beta * given + alpha * left @ right` without a call; () if a call it
    is. `begins`: where in the tensor that holds it each operand begins."""
    shape, depth = tensors[0].shape, tensors[-2].shape[-1]
    if len(shape) != 2 or dtypes not in ({torch.float32}, {torch.float64}):
        return ()
    if not 0 < depth <= DEPTH or max(shape) > SIDE or math.prod(shape) * depth > MULTIPLICATIONS:
        return ()
    places: list[Size] = []
    for number, (operand, begin) in enumerate(zip(tensors, begins, strict=True)):
        is_given = 0 < number < len(tensors) - 2
        places += (*(_expanded(operand, shape) if is_given else operand.stride), begin)
    return (int(dtypes == {torch.float64}), *shape, depth, *places)


def as_called(tensors: Sequence[Operand], dtypes: set[torch.dtype]) -> Sequence[Operand]:
    """The operands of a product as a library is best given them: as they are, or those of the same product transposed,
    for which it takes another way."""
    out, left, right = tensors[0], *tensors[-2:]
    sides = (*out.shape[-2:], left.shape[-1])
    if not given_transposed(sides, dtypes):
        return tensors
    if out.stride[-1] != 1 or left.stride[-1] != 1 or right.stride[-2] != 1:
        return tensors  # it goes that way already
    addends = [Operand(each.buffer, out.shape, _expanded(each, out.shape), each.offset) for each in tensors[1:-2]]
    return [_transposed(each) for each in (out, *addends, right, left)]


def _transposed(operand: Operand) -> Operand:
    (*batch, rows, columns), (*steps, down, across) = operand.shape, operand.stride
    return Operand(operand.buffer, (*batch, columns, rows), (*steps, across, down), operand.offset)


def _expanded(operand: Operand, shape: Shape) -> Shape:
    """The strides of an operand in a shape that it is repeated to fill."""
    missing = len(shape) - len(operand.shape)
    pairs = zip(operand.shape, operand.stride, shape[missing:], strict=True)
    return (0,) * missing + tuple(step if size == whole else 0 for size, step, whole in pairs)
