"""Pooling and enlarging as arithmetic on strided reads: eager's numbers, indices and gradients, exactly."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt.ir.program import Library, Program
from smelt.ops.decompositions import DECOMPOSITIONS
from tests.fuse.running import fused
from tests.targets import seeded

Function = Callable[[torch.Tensor], Any]

WAYS: dict[str, Function] = {
    "average 2": lambda x: F.avg_pool2d(x, 2),
    "average 3 by 2": lambda x: F.avg_pool2d(x, 3, 2),
    "average 3 by 1, edges": lambda x: F.avg_pool2d(x, 3, 1, 1),
    "average 3, edges not counted": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "average 2×1 divided by 5": lambda x: F.avg_pool2d(x, (2, 1), divisor_override=5),
    "average, rounded up": lambda x: F.avg_pool2d(x, 3, 2, ceil_mode=True),
    "greatest 2": lambda x: F.max_pool2d(x, 2),
    "greatest 1×3 by 2×1": lambda x: F.max_pool2d(x, (1, 3), (2, 1)),
    "greatest 3 by 2, edges": lambda x: F.max_pool2d(x, 3, 2, 1),
    "greatest 2, edges of columns": lambda x: F.max_pool2d(x, 2, 1, (0, 1)),
    "greatest 2, apart": lambda x: F.max_pool2d(x, 2, dilation=2),
    "greatest, rounded up": lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True),
    "greatest of five": lambda x: F.max_pool2d(x, 5),
    "greatest 3 by 1": lambda x: F.max_pool2d(x, 3, 1),
    "greatest 4 by 2, edges": lambda x: F.max_pool2d(x, 4, 2, 2),
    "nearest 2": lambda x: F.interpolate(x, scale_factor=2),
    "nearest 4×1": lambda x: F.interpolate(x, scale_factor=(4, 1)),
    "nearest 3": lambda x: F.interpolate(x, scale_factor=3),
    "nearest to a size": lambda x: F.interpolate(x, size=(2 * x.shape[2], 2 * x.shape[3])),
    "nearest, smaller": lambda x: F.interpolate(x, scale_factor=0.5),
}


def _image(channels_last: bool) -> torch.Tensor:
    x = torch.randn(2, 3, 6, 10, generator=seeded(2))
    x[0, 0, :3] = 1.0  # equals
    x[0, 1, 2:, 4:] = -torch.inf
    x[1, 2, 0, 0] = x[1, 2, 5, 9] = x[1, 1, 3, 3] = x[1, 1, 3, 4] = torch.nan
    return x.to(memory_format=torch.channels_last) if channels_last else x


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("channels_last", [False, True])
def test_numbers_and_gradients_are_eagers(name: str, channels_last: bool) -> None:
    function = WAYS[name]
    x = _image(channels_last).requires_grad_()
    found, expected = smelt.compile(lambda x: function(x), fullgraph=True)(x), function(x)
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    tangent = torch.randn(expected.shape, generator=seeded(4))
    mine, theirs = (torch.autograd.grad(each, x, tangent, retain_graph=True)[0] for each in (found, expected))
    torch.testing.assert_close(mine, theirs, equal_nan=True)


@pytest.mark.parametrize("padding", [0, 1])
def test_places_are_eagers(padding: int) -> None:
    x = _image(channels_last=False)
    for pool in (
        lambda x: F.max_pool2d(x, 2, padding=padding, return_indices=True),
        lambda x: F.max_pool2d(x, 3, 1, padding, return_indices=True),
    ):
        for mine, theirs in zip(smelt.compile(pool)(x), pool(x), strict=True):
            torch.testing.assert_close(mine, theirs, equal_nan=True, rtol=0, atol=0)


def _calls(program: Program) -> list[str]:
    return [str(step.op) for step in program.steps if isinstance(step, Library)]


@pytest.mark.parametrize("name", ["average 2", "average 3 by 2", "greatest 2", "nearest 2", "nearest 4×1"])
def test_it_is_one_kernel_with_its_neighbours(name: str) -> None:
    program = fused(lambda x: WAYS[name](x).relu() * 2, torch.randn(2, 3, 6, 10), decompositions=DECOMPOSITIONS)
    assert _calls(program) == [] and len(program.steps) == 1


@pytest.mark.parametrize("name", ["average 3 by 2", "greatest 3 by 2, edges", "nearest 2"])
def test_sizes_that_vary(name: str) -> None:
    compiled = smelt.compile(lambda x: WAYS[name](x) + 1, dynamic=True)
    for batch, height, width in ((2, 6, 10), (3, 9, 11), (1, 12, 7)):
        x = torch.randn(batch, 3, height, width)
        torch.testing.assert_close(compiled(x), WAYS[name](x) + 1)


@pytest.mark.parametrize("batch", [(), (2,)])
def test_folds_take_no_more_memory_than_they_give(batch: tuple[int, ...]) -> None:
    """PyTorch's own result of `fold` keeps memory as long as its input, nine times as much here."""
    for run, shape in (
        (lambda x: F.fold(x, (6, 5), 3, padding=1), (27, 30)),
        (lambda x: F.unfold(x, 3, padding=1), (3, 6, 5)),
    ):
        x = torch.randn(*batch, *shape)
        found = smelt.compile(run, options={"check_specs": True})(x)
        torch.testing.assert_close(found, run(x))
        assert found.untyped_storage().nbytes() == found.nbytes
