"""Attention that programs write by hand, for a GPU: one kernel without scores in memory, and where it is not."""

import math

import pytest
import torch
from torch import Tensor

from smelt.codegen.gpu.attention.score_tiles_body import ScoreTiles
from smelt.ir.check_kernel import check_kernel
from smelt.ir.program import Launch
from tests.codegen.gpu.on_host import OnHost
from tests.fuse.test_gpu_products import BF16, calls, compiled, weighing
from tests.kernel_reference import run_kernel

SHAPE = (1, 2, 64, 16)


def capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As flex attention writes a soft cap and a causal mask."""
    scores = torch.tanh(q @ k.transpose(-1, -2) * 0.25 / 5) * 5
    at = torch.arange(scores.shape[-1], device=q.device)
    return torch.softmax(scores.masked_fill(at > at[:, None], -math.inf), -1) @ v


def masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """As models write it, with weights in float32."""
    weights = torch.softmax((q @ k.transpose(-1, -2) / 4 + mask).float(), -1)
    return weights.to(q.dtype) @ v


def biased(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Tensor:
    """A bias for each head by the distance, and a window."""
    at = torch.arange(k.shape[2], device=q.device)
    apart = at[:, None] - at
    scores = q @ k.transpose(2, 3) - slopes[:, None, None] * apart.abs()
    return torch.where((apart < 9) & (apart >= 0), scores, -math.inf).softmax(3) @ v


CASES = {"capped": (capped, None), "masked": (masked, (1, 1, 1, 64)), "biased": (biased, (2,))}


@pytest.mark.parametrize("name", CASES)
def test_it_is_one_kernel_that_computes_what_eager_does(name: str) -> None:
    function, more = CASES[name]
    program, told = compiled(function, SHAPE, SHAPE, SHAPE, *([more] if more else []))
    (kernel,) = weighing(program)
    assert not calls(program) and len(program.steps) == 1 and "attends without scores in memory" in told
    check_kernel(kernel, after="the test")
    torch.manual_seed(0)
    given = {f"primals_{number}": torch.randn(SHAPE).to(BF16) for number in (1, 2, 3)}
    if more:
        given["primals_4"] = torch.randn(more).to(BF16)
    if name == "masked":
        given["primals_4"][..., 40:] = -math.inf
    (step,) = program.steps
    assert isinstance(step, Launch)
    result = torch.empty(SHAPE, dtype=BF16)
    built = OnHost(kernel, warp=32)
    assert isinstance(built.plan.phases[0], ScoreTiles)
    built.run([given.get(arg, result) for arg in step.args], {})
    wide = function(*(each.double() for each in given.values()))
    eager = function(*given.values())
    assert (result.double() - wide).abs().max() <= 2 * (eager.double() - wide).abs().max()
    again = torch.empty_like(result).view(-1)
    run_kernel(kernel, [given[arg].view(-1) if arg in given else again for arg in step.args])
    torch.testing.assert_close(result.view(-1), again, rtol=2e-2, atol=1e-2)


def test_queries_that_look_at_nothing_find_what_eager_does() -> None:
    program, _ = compiled(masked, SHAPE, SHAPE, SHAPE, (1, 1, 64, 64))
    (step,) = program.steps
    assert isinstance(step, Launch)
    q, k, v = (torch.randn(SHAPE).to(BF16) for _ in range(3))
    mask = torch.zeros(1, 1, 64, 64, dtype=BF16)
    mask[0, 0, 5] = -math.inf
    result = torch.empty(SHAPE, dtype=BF16)
    (kernel,) = weighing(program)
    given = {"primals_1": q, "primals_2": k, "primals_3": v, "primals_4": mask}
    OnHost(kernel, warp=32).run([given.get(arg, result) for arg in step.args], {})
    assert torch.equal(result.isnan(), masked(q, k, v, mask).isnan()) and result[0, 0, 5].isnan().all()


@pytest.mark.parametrize("least", [-1e9, -1e10, -1e30, torch.finfo(BF16).min])
def test_queries_that_look_at_nothing_by_a_finite_mask_find_the_mean(least: float) -> None:
    """All weights of such a query are equal: scores round to what is added to them."""
    program, _ = compiled(masked, SHAPE, SHAPE, SHAPE, (1, 1, 64, 64))
    (step,) = program.steps
    assert isinstance(step, Launch)
    torch.manual_seed(0)
    q, k, v = (torch.randn(SHAPE).to(BF16) for _ in range(3))
    mask = torch.zeros(1, 1, 64, 64, dtype=BF16)
    mask[0, 0, 5] = mask[0, 0, 7, ::2] = least
    result = torch.empty(SHAPE, dtype=BF16)
    (kernel,) = weighing(program)
    given = {"primals_1": q, "primals_2": k, "primals_3": v, "primals_4": mask}
    OnHost(kernel, warp=32).run([given.get(arg, result) for arg in step.args], {})
    torch.testing.assert_close(result, masked(q, k, v, mask), rtol=2e-2, atol=3e-2)
    torch.testing.assert_close(result[:, :, 5], v.float().mean(2).to(BF16), rtol=1e-2, atol=2e-3)


def test_weights_that_are_returned_stay_in_memory() -> None:
    def both(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        weights = torch.softmax(q @ k.transpose(-1, -2), -1)
        return weights @ v, weights

    program, _ = compiled(both, SHAPE, SHAPE, SHAPE)
    assert calls(program) == 2 and not weighing(program)


def test_few_queries_float32_and_other_sums_stay_as_they_are() -> None:
    few, _ = compiled(capped, (1, 2, 16, 16), (1, 2, 16, 16), (1, 2, 16, 16))
    wide, _ = compiled(capped, SHAPE, SHAPE, SHAPE, dtype=torch.float32)
    other, _ = compiled(lambda q, k, v: (q @ k.transpose(-1, -2)).relu() @ v, SHAPE, SHAPE, SHAPE)
    long, _ = compiled(capped, *[(1, 2, 64, 256)] * 3)
    for program in (few, wide, other, long):
        assert calls(program) == 2 and not weighing(program)
