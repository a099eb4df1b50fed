"""Convolutions as contractions: each rule evaluated point by point, held against PyTorch in float64."""

import random

import pytest
import torch

from smelt.fuse.lowering.convolutions import Contraction, ConvolutionSteps, to_coarse, to_fine, to_weight
from smelt.fuse.lowering.rules import FactorRead
from smelt.ops.record import OperandLayout
from smelt.symbolic.shapes import Shape, is_dense


def evaluated(made: Contraction, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """What a contraction leaves where its result is. The operands are given as the memory they are in."""
    left, right = (second, first) if made.swapped else (first, second)
    every = (*made.shape, *made.rule.axes)
    terms = _factor(left, made.rule.left, every) * _factor(right, made.rule.right, every)
    sums = terms.sum(dim=tuple(range(len(made.shape), len(every)))) if made.rule.axes else terms
    assert is_dense(made.shape, made.stride) or 0 in made.shape
    memory = torch.full((sums.numel(),), torch.nan, dtype=sums.dtype)
    memory.as_strided(made.shape, made.stride).copy_(sums)
    return memory.as_strided(made.layout.shape, made.layout.stride, made.layout.offset)


def _factor(memory: torch.Tensor, read: FactorRead, every: Shape) -> torch.Tensor:
    inside = torch.ones(every, dtype=torch.bool)
    for bound in read.bounds:
        position = _positions((*bound.stride, *bound.along), bound.offset, every)
        inside &= (position >= 0) & (position < bound.extent)
    place = _positions((*read.stride, *read.along), read.offset, every)
    assert not inside.any() or (place[inside].min() >= 0 and place[inside].max() < memory.numel())
    return torch.where(inside, memory[torch.where(inside, place, 0)], 0.0) if memory.numel() else torch.zeros(every)


def _positions(stride: Shape, offset: int, every: Shape) -> torch.Tensor:
    total = torch.full(every, offset)
    for dim, (step, size) in enumerate(zip(stride, every, strict=True)):
        total += (step * torch.arange(size)).reshape(-1, *[1] * (len(every) - dim - 1))
    return total


def _laid(tensor: torch.Tensor, rng: random.Random) -> tuple[torch.Tensor, OperandLayout]:
    """Some memory that holds a tensor, and where: rows first, channels last, or a part of something larger."""
    how = rng.choice(["contiguous", "channels last", "part"])
    order = list(range(tensor.dim()))
    if how == "channels last":
        order = [0, *order[2:], 1]
    held = tensor.permute(order)
    if how == "part":
        held = torch.nn.functional.pad(held, (1, 2), value=torch.nan)
    memory = held.contiguous()
    view = memory.narrow(-1, 1, tensor.shape[-1]) if how == "part" else memory
    view = view.permute(sorted(range(len(order)), key=order.__getitem__))
    assert torch.equal(view, tensor)
    return memory.flatten(), OperandLayout(tuple(view.shape), view.stride(), view.storage_offset())


def _empty(shape: Shape, rng: random.Random) -> OperandLayout:
    """Memory for a result, rows first or channels last."""
    if rng.random() < 0.5:
        return OperandLayout(shape, torch.empty(shape).stride())
    order = [0, *range(2, len(shape)), 1]
    last = torch.empty([shape[dim] for dim in order]).permute(sorted(range(len(order)), key=order.__getitem__))
    return OperandLayout(shape, last.stride())


class Case:
    """A convolution with random sizes, and its gradients by PyTorch."""

    def __init__(self, seed: int, *, transposed: bool) -> None:
        self.rng = rng = random.Random(seed)
        torch.manual_seed(seed)
        rank = rng.choice([1, 2, 2, 3])
        groups, fine, coarse = rng.choice([(1, 3, 4), (1, 1, 2), (2, 2, 3), (3, 1, 1), (4, 1, 2), (2, 3, 1)])
        low = 1 if rank == 3 else 0
        kernel = [rng.randint(1, 4 - low) for _ in range(rank)]
        stride = [rng.choice([1, 1, 2, 3]) for _ in range(rank)]
        dilation = [rng.choice([1, 1, 2, 3]) for _ in range(rank)]
        padding = [rng.choice([0, 1, 2, 5 - low]) for _ in range(rank)]
        output = [rng.randint(0, max(step, apart) - 1) for step, apart in zip(stride, dilation, strict=True)]
        self.steps = ConvolutionSteps.of(rank, stride, padding, dilation, groups)
        reach = [apart * (size - 1) + 1 for apart, size in zip(dilation, kernel, strict=True)]
        size = [max(1, far - 2 * pad) + rng.randint(0, 5 - low) for far, pad in zip(reach, padding, strict=True)]
        self.weight = torch.randn(groups * coarse, fine, *kernel, dtype=torch.float64, requires_grad=True)
        batch = rng.choice([1, 2, 3])
        if transposed:
            size = [extent + 2 * pad for extent, pad in zip(size, padding, strict=True)]  # or nothing would be left
            self.x = torch.randn(batch, groups * coarse, *size, dtype=torch.float64, requires_grad=True)
        else:
            self.x = torch.randn(batch, groups * fine, *size, dtype=torch.float64, requires_grad=True)
            output = [0] * rank
        rest = (stride, padding, dilation, transposed, output, groups)
        self.y = torch.ops.aten.convolution.default(self.x, self.weight, None, *rest)
        self.grad = torch.randn_like(self.y)
        self.to_x, self.to_weight = torch.autograd.grad(self.y, (self.x, self.weight), self.grad)
        self.x, self.weight, self.y = self.x.detach(), self.weight.detach(), self.y.detach()

    def check(self, made: Contraction, first: torch.Tensor, second: torch.Tensor, expected: torch.Tensor) -> None:
        found = evaluated(made, first, second)
        assert found.shape == expected.shape
        assert (found - expected).abs().max() <= 1e-12 * max(1, expected.abs().max())


@pytest.mark.parametrize("first", range(0, 150, 25))
def test_convolutions_and_gradients_are_contractions(first: int) -> None:
    for seed in range(first, first + 25):
        case = Case(seed, transposed=False)
        x, x_layout = _laid(case.x, case.rng)
        weight, weight_layout = _laid(case.weight, case.rng)
        grad, grad_layout = _laid(case.grad, case.rng)
        forward = to_coarse(x_layout, weight_layout, case.steps, _empty(tuple(case.y.shape), case.rng))
        case.check(forward, x, weight, case.y)
        backward = to_fine(grad_layout, weight_layout, case.steps, _empty(tuple(case.x.shape), case.rng))
        case.check(backward, grad, weight, case.to_x)
        of_weight = to_weight(grad_layout, x_layout, case.steps, _empty(tuple(case.weight.shape), case.rng))
        case.check(of_weight, grad, x, case.to_weight)


@pytest.mark.parametrize("first", range(0, 150, 25))
def test_transposed_convolutions_and_gradients_are_contractions(first: int) -> None:
    for seed in range(first, first + 25):
        case = Case(seed, transposed=True)
        x, x_layout = _laid(case.x, case.rng)
        weight, weight_layout = _laid(case.weight, case.rng)
        grad, grad_layout = _laid(case.grad, case.rng)
        forward = to_fine(x_layout, weight_layout, case.steps, _empty(tuple(case.y.shape), case.rng))
        case.check(forward, x, weight, case.y)
        backward = to_coarse(grad_layout, weight_layout, case.steps, _empty(tuple(case.x.shape), case.rng))
        case.check(backward, grad, weight, case.to_x)
        of_weight = to_weight(x_layout, grad_layout, case.steps, _empty(tuple(case.weight.shape), case.rng))
        case.check(of_weight, x, grad, case.to_weight)
