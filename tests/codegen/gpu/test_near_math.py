"""Functions by a GPU's instructions for 2^x and 1 / x: their steps, with those instructions played by the host."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from smelt.codegen.loops.builder import Builder
from smelt.codegen.loops.math import exponential
from smelt.device import Target
from smelt.ir.loops import Value
from tests.codegen.gpu import on_host
from tests.codegen.gpu.on_host import OnHost
from tests.codegen.gpu.test_ptx import pointwise, ptx_of
from tests.simt_host.warps import describe_host_warps

SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 88.7, 88.73, 89.5, -87.3, -87.4, -100.0, -103.9, -104.1, -200.0]


@pytest.fixture
def approximating(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host as a GPU with those instructions, each off by a few units."""

    def target(*given: Any) -> Target:
        return replace(describe_host_warps(*given), approximates=True)

    def power_of_two(b: Builder, x: Value) -> Value:
        return b.fmul(exponential.exp2(b, x), 1 + 2.0**-23)

    def near_reciprocal(b: Builder, x: Value) -> Value:
        return b.fmul(b.fdiv(1.0, x), 1 - 2.0**-23)

    def saturated(b: Builder, x: Value) -> Value:
        inside = b.select(b.fcmp("ogt", x, 0.0), x, 0.0)  # of NaN 0
        return b.select(b.fcmp("olt", inside, 1.0), inside, 1.0)

    monkeypatch.setattr(on_host, "describe_host_warps", target)
    for function in (power_of_two, near_reciprocal, saturated):
        monkeypatch.setattr(Builder, function.__name__, function)


def units_off(got: torch.Tensor, want: torch.Tensor) -> float:
    """In units of the last place that a float32 has there."""
    near = want.float()
    unit = (torch.nextafter(near.abs(), torch.tensor(math.inf)) - near.abs()).double()
    finite = near.isfinite()
    assert torch.equal(got.isnan(), near.isnan())
    assert torch.equal(got[near.isinf()], near[near.isinf()])
    return float(((got.double() - want).abs() / unit)[finite].max())


@pytest.mark.parametrize("op", ["exp", "sigmoid", "tanh"])
def test_functions_are_a_few_units_off(approximating: None, op: str) -> None:
    generator = torch.Generator().manual_seed(1)
    wide = torch.rand(20_000, generator=generator) * 200 - 108
    x = torch.cat([torch.tensor(SPECIAL), wide, torch.randn(10_000, generator=generator)])
    x = x[: len(x) // 4 * 4]
    got = torch.empty_like(x)
    OnHost(pointwise(op, "f32", len(x))).run([x, got], {})
    assert units_off(got, getattr(torch, op)(x.double())) <= 4.0


def normal_functions(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """In float64."""
    wide = x.double()
    share = torch.special.ndtr(wide)
    return {"ndtr": share, "gelu_slope": share + wide * torch.exp(-wide * wide / 2) / math.sqrt(2 * math.pi)}


NORMAL_POINTS = [0.0, -0.0, 1e-30, -40.0, 40.0, 3e38, -3e38, math.nan]


@pytest.mark.parametrize("op", ["ndtr", "gelu_slope"])
def test_shares_of_the_normal_distribution_in_float32_are_as_exact_as_eager(approximating: None, op: str) -> None:
    x = torch.cat([torch.linspace(-14, 14, 40_000), torch.tensor(NORMAL_POINTS)])
    got = torch.empty_like(x)
    OnHost(pointwise(op, "f32", len(x))).run([x, got], {})
    want = normal_functions(x)[op]
    assert float((got.double() - want).abs().nan_to_num(0).max()) <= 6 * 2.0**-25
    assert torch.equal(got.isnan(), want.isnan())


@pytest.mark.parametrize("op", ["ndtr", "gelu_slope"])
def test_shares_of_the_normal_distribution_in_16_bits(approximating: None, op: str) -> None:
    """The sum of the rounding to bfloat16 and eight units of 2^-25."""
    x = torch.cat([torch.linspace(-14, 14, 40_000), torch.tensor(NORMAL_POINTS)]).bfloat16()
    got = torch.empty_like(x)
    OnHost(pointwise(op, "bf16", len(x))).run([x, got], {})
    want = normal_functions(x)[op]
    limit = want.abs() * 2.0**-8 + 9 * 2.0**-25
    assert bool(((got.double() - want).abs() <= limit)[~want.isnan()].all())
    assert torch.equal(got.isnan(), want.isnan())


def test_functions_of_the_normal_distribution_divide_by_an_instruction_in_16_bits_alone() -> None:
    for op in ("ndtr", "gelu_slope"):
        assert "rcp.approx" in ptx_of({"k": pointwise(op, "bf16")})
        assert "rcp.approx" not in ptx_of({"k": pointwise(op, "f32")})


def test_what_a_gpu_is_given() -> None:
    for op in ("exp", "sigmoid"):
        text = ptx_of({"k": pointwise(op, "bf16")})
        assert "ex2.approx.ftz.f32" in text and "cvt.rn.bf16" in text and "div.rn" not in text
    assert "cvt.rn.bf16" not in ptx_of({"k": pointwise("exp", "bf16")}, "sm_75")


def test_doubles_are_as_exact_as_ever() -> None:
    assert "ex2.approx" not in ptx_of({"k": pointwise("exp", "f64")})
