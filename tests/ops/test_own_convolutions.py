"""Convolutions as others that kernels compute faster: results and layouts, and what they become."""

import random
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import smelt
from smelt.base.options import Options
from smelt.ir.kernel import Contract
from smelt.ir.program import Launch, Program
from smelt.ops.decompositions import decompositions
from tests.fuse.running import fused
from tests.targets import chosen

aten = torch.ops.aten
OWN = decompositions(Options.from_user({"library": "none"}))

pytestmark = pytest.mark.skipif(chosen != ("cpu", "cpu"), reason="kernels for GPUs hold no products")


def _case(seed: int) -> tuple[tuple[Any, ...], Tensor, Tensor, Tensor | None]:
    """What a random convolution is given; half of them at a stride, some transposed, by channel or channels-last."""
    chance = random.Random(seed)
    while True:
        rank, groups = chance.choice((1, 2, 2, 2, 3)), chance.choice((1, 1, 2, 3))
        channels, results = groups * chance.choice((1, 2, 4)), groups * chance.choice((1, 2, 5))
        if chance.random() < 0.3:
            groups = results = channels
        kernel, padding = ([chance.choice(of) for _ in range(rank)] for of in ((1, 2, 3, 4), (0, 1, 2, 3)))
        stride, dilation = ([chance.choice(of) for _ in range(rank)] for of in ((1, 2, 3), (1, 1, 1, 2)))
        size = [chance.choice((5, 6, 7, 8, 11)) for _ in range(rank)]
        transposed = chance.random() < 0.4
        beyond = [chance.randrange(max(pair)) if transposed else 0 for pair in zip(stride, dilation, strict=True)]
        made = torch.Generator().manual_seed(seed)
        x = torch.randn(2, channels, *size, generator=made)
        shape = (channels, results // groups) if transposed else (results, channels // groups)
        weight = torch.randn(*shape, *kernel, generator=made)
        if rank == 2 and chance.random() < 0.4:
            x = x.to(memory_format=torch.channels_last)
        bias = torch.randn(results, generator=made) if chance.random() < 0.5 else None
        given = (stride, padding, dilation, transposed, beyond, groups)
        try:
            aten.convolution.default(x.double(), weight.double(), None, *given)
        except RuntimeError:  # nothing is left of the image
            continue
        return given, x, weight, bias


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_results_and_gradients_are_eagers(first: int) -> None:
    """Values as in float64, strides as eager's."""
    torch.manual_seed(0)
    for seed in range(first, first + 10):
        given, x, weight, bias = _case(seed)

        def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            return aten.convolution.default(x, weight, bias, *given)  # type: ignore[no-any-return]  # noqa: B023

        def backward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
            return aten.convolution_backward.default(grad, x, weight, None, *given, [True, True, False])[:2]  # type: ignore[no-any-return]  # noqa: B023

        grad = torch.randn_like(forward(x, weight, bias))
        for function, args in ((forward, (x, weight, bias)), (backward, (grad, x, weight))):
            compiled = smelt.compile(function, options={"library": "none"})  # type: ignore[call-overload]
            wide = [each if each is None else each.double() for each in args]
            found = [_several(each) for each in (compiled(*args), function(*args), function(*wide))]  # type: ignore[operator]
            for mine, eager, truth in zip(*found, strict=True):
                assert _laid(mine) == _laid(eager), f"{seed}: {given}"
                assert (mine - truth).abs().max() <= 1e-5 * max(1, truth.abs().max()), f"{seed}: {given}"
        smelt.reset()


def _laid(tensor: Tensor) -> list[int]:
    """Strides, but for those that nothing is moved by."""
    return [step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def _several(value: Any) -> tuple[Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


def contractions(program: Program) -> list[Contract]:
    launched = [step.kernel for step in program.steps if isinstance(step, Launch)]
    return [each for kernel in launched for each in kernel.instructions() if isinstance(each, Contract)]


@pytest.mark.parametrize(("kernel", "stride", "count"), [((3, 3), (2, 2), 4), ((1, 1), (2, 2), 1), ((3, 2), (1, 3), 2)])
def test_a_gradient_at_a_stride_is_a_product_for_each_part_that_meets_something(
    kernel: tuple[int, int], stride: tuple[int, int], count: int
) -> None:
    """Each sums over just the elements of the kernel that it meets: they are the kernel together."""
    x, weight = torch.randn(2, 3, 12, 13), torch.randn(4, 3, *kernel)
    grad = torch.randn_like(F.conv2d(x, weight, stride=stride))

    def fn(grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        rest = ([*stride], [0, 0], [1, 1], False, [0, 0], 1, [True, False, False])
        return aten.convolution_backward.default(grad, x, weight, None, *rest)[0]  # type: ignore[no-any-return]

    found = contractions(fused(fn, grad, x, weight, decompositions=OWN, products="own"))
    assert len(found) == count
    taps = 0
    for each in found:
        terms = 1
        for axis in each.axes:
            terms *= axis.size
        taps += terms // 4
    assert taps == kernel[0] * kernel[1]


def test_gradients_of_kernels_by_channel_are_sums() -> None:
    x, weight = torch.randn(2, 6, 12, 13), torch.randn(6, 1, 3, 3)
    grad = torch.randn_like(F.conv2d(x, weight, groups=6))

    def fn(grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        rest = ([1, 1], [0, 0], [1, 1], False, [0, 0], 6, [False, True, False])
        return aten.convolution_backward.default(grad, x, weight, None, *rest)[1]  # type: ignore[no-any-return]

    assert not contractions(fused(fn, grad, x, weight, decompositions=OWN, products="own"))


def test_images_with_channels_last_are_convolved_by_channel_along_their_rows() -> None:
    x = torch.randn(2, 6, 12, 13).to(memory_format=torch.channels_last)
    program = fused(
        lambda x, w: F.conv2d(x, w, padding=1, groups=6), x, torch.randn(6, 1, 3, 3), decompositions=OWN, products="own"
    )
    (found,) = contractions(program)
    assert all(factor.index.stride(found.axes[-1].name) == 1 for factor in found.factors)
