"""Operators on devices beside the CPU, described where there is none: batch norm in 16 bits, losses."""

import pytest
import torch
from torch import nn

from smelt.base.options import Options
from smelt.ir.program import Launch
from smelt.meta.rules import lookup
from smelt.ops.decompose import norms
from smelt.pipeline.ahead import compile_ahead, spec_like


def _meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_batch_norm_is_kernels_on_a_gpu(dtype: torch.dtype) -> None:
    """Described with running statistics in float32, it was a call of the library's, which returned others."""
    model = nn.Sequential(nn.BatchNorm2d(8), nn.ReLU()).to(dtype)
    found = compile_ahead(model, [spec_like((4, 8, 6, 6), dtype)], Options(target="sm_90"))
    assert all(isinstance(step, Launch) for program in found.programs for step in program.steps)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_statistics_of_the_batch_are_wide_and_running_ones_as_they_were(dtype: torch.dtype) -> None:
    op = torch.ops.aten._native_batch_norm_legit_functional.default
    channels = [_meta(8, dtype=dtype) for _ in range(4)]
    args = (_meta(4, 8, 6, 6, dtype=dtype), *channels, True, 0.1, 1e-5)
    found = lookup.answer(op, args, {}, torch.device("cuda", 0))
    assert [each.dtype for each in found] == [dtype, torch.float32, torch.float32, dtype, dtype]


def test_gradients_of_losses_have_the_shape_of_what_they_are_for() -> None:
    op = torch.ops.aten.multi_margin_loss_backward.default
    args = (_meta(), _meta(4, 5), torch.empty(4, dtype=torch.int64, device="meta"), 1, 1)
    assert lookup.answer(op, args, {}, torch.device("cuda", 0)).shape == (4, 5)


@pytest.mark.parametrize("offset", [0.0, 1.0, 1e3, -1e5])
@pytest.mark.parametrize("spread", [1.0, 1e-2, 1e3])
def test_moments_of_one_pass_are_as_exact_as_those_of_two(offset: float, spread: float) -> None:
    x = (torch.randn(16, 5, 33, 7, dtype=torch.float64) * spread + offset).float()
    mean, variance = norms._one_pass_moments(x, [0, 2, 3])
    exact = torch.var_mean(x.double(), [0, 2, 3], correction=0, keepdim=True)
    torch.testing.assert_close(variance.double(), exact[0], rtol=1e-5, atol=0.0)
    torch.testing.assert_close(mean.double(), exact[1], rtol=1e-6, atol=1e-6 * spread)


def test_what_does_not_vary_has_no_variance() -> None:
    mean, variance = norms._one_pass_moments(torch.full((4, 3, 5), 0.1), [0, 2])
    assert torch.equal(mean.flatten(), torch.full((3,), 0.1))
    assert torch.equal(variance.flatten(), torch.zeros(3))
