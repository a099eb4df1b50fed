"""Attention by blocks: every layout and size against the reference interpreter, and against eager's own errors."""

import math

import pytest
import torch

from smelt.codegen.attention_problem import problem_of, why_no_problem
from smelt.codegen.cpu.attention.plan import SCHEDULES
from smelt.codegen.cpu.kernel_schedules import Schedule
from smelt.device import Target
from smelt.ir.serialize import dump, parse
from smelt.ir.text import format_kernel
from tests.codegen.cpu.attention.running import attention_of, compiled, faults, targets
from tests.codegen.cpu.attention.written import F32, F64, Attention
from tests.codegen.running import call, run
from tests.kernel_text import parse_kernel

flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
TOGETHER = 8


@pytest.mark.parametrize("batch", [*range(10), *(pytest.param(n, marks=pytest.mark.slow) for n in range(10, 20))])
def test_random_attentions(batch: int) -> None:
    """In blocks as they are, or so small that there are many of each; for all kinds of registers."""
    asked = [attention_of(seed) for seed in range(batch * TOGETHER, (batch + 1) * TOGETHER)]
    target = targets()[batch // 2 % 5]
    pairs = [(each, schedule.name) for each in asked for schedule in SCHEDULES if _takes(schedule, each, target)]
    kernels = [each.kernel() for each, _ in pairs]
    codes = compiled(kernels, target, small=batch % 2 == 1, only=[name for _, name in pairs])
    for seed, ((attention, name), kernel, code) in enumerate(zip(pairs, kernels, codes, strict=True)):
        wrong = faults(attention, kernel, code, attention.made(seed))
        assert not wrong, f"{name}: {attention}: {wrong}"


def _takes(schedule: Schedule, attention: Attention, target: Target) -> bool:
    return schedule.why_not(problem_of(attention.kernel()), target) is None


@pytest.mark.parametrize(
    "attention",
    [
        Attention(1, 2, 1, 197, 197, 64, 64),
        Attention(2, 2, 1, 128, 128, 64, 64, causal=True),
        Attention(1, 1, 4, 96, 600, 64, 64),
        Attention(1, 2, 1, 700, 700, 32, 32, causal=True),
        Attention(1, 2, 1, 1, 512, 64, 64),
    ],
    ids=str,
)
@pytest.mark.parametrize("spread", [1.0, 30.0])
def test_no_further_from_the_truth_than_eager(attention: Attention, spread: float) -> None:
    """At most twice eager's error and a few roundings, with large scores too, where one key has all the weight."""
    given = attention.made(0, spread)
    kernel = attention.kernel()
    run(kernel, given)
    query, key, value, got = (attention.view(name, flat) for name, flat in zip("qkvy", given, strict=False))
    repeated = [each.repeat_interleave(attention.shared, 1) for each in (key, value)]
    options = {"is_causal": attention.causal, "scale": attention.scale}
    eager, sums = flash(query, *repeated, **options)
    truth, true_sums = flash(query.double(), *(each.double() for each in repeated), **options)
    allowed = 2 * (eager - truth).abs().max() + 4 * torch.finfo(F32).eps
    assert (got - truth).abs().max() <= allowed
    found = given[4].view(sums.shape)
    allowed = 2 * (sums - true_sums).abs().max() + 4 * torch.finfo(F32).eps * true_sums.abs().max()
    assert (found - true_sums).abs().max() <= allowed


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("keys", [9, 40])
def test_queries_that_look_at_nothing_and_numbers_that_are_none(dtype: torch.dtype, keys: int) -> None:
    attention = Attention(1, 1, 1, 13, keys, 8, 8, dtype, mask="full", mask_dtype=dtype, apart=False)
    given = attention.made(0)
    mask = given[3].view(13, keys).nan_to_num(neginf=-1.0)
    mask[1] = -math.inf
    mask[2, 1:] = -math.inf
    mask[3, 0] = math.inf
    mask[4] = -1e30
    mask[5, -1] = math.nan
    mask[6] = torch.finfo(dtype).min
    given[3] = mask.reshape(-1)
    for small in (False, True):
        got = [each.clone() for each in given]
        (code,) = compiled([attention.kernel()], small=small)
        assert not faults(attention, attention.kernel(), code, got)
        run(attention.kernel(), got)
        query, key, value = (attention.view(name, flat) for name, flat in zip("qkv", got, strict=False))
        want, sums = flash(query, key, value, attn_mask=mask, scale=attention.scale)
        assert torch.equal(got[4].view(13, 8).isnan(), want[0, 0].isnan())
        torch.testing.assert_close(got[4].view(13, 8), want[0, 0], equal_nan=True)
        nothing = want[0, 0].isnan().any(1)
        torch.testing.assert_close(got[5][~nothing], sums.view(13)[~nothing])
        # Where nothing is a number, PyTorch's sum is inf or NaN, by the width of the processor's vectors.
        assert not got[5][nothing].isfinite().any() and not sums.view(13)[nothing].isfinite().any()
        assert not got[4].view(13, 8)[1].any()


def test_causal_keys_are_left_out() -> None:
    """Found in the instructions: a comparison of positions where everything weighed is zero."""
    assert problem_of(Attention(1, 1, 1, 8, 8, 4, 4, causal=True).kernel()).reach == 0
    assert problem_of(Attention(1, 1, 1, 8, 8, 4, 4, causal=True, mask="full").kernel()).reach == 0
    assert problem_of(Attention(1, 1, 1, 8, 8, 4, 4, mask="full").kernel()).reach is None


def test_texts_and_files_hold_all_of_it() -> None:
    for seed in range(40):
        kernel = attention_of(seed).kernel()
        assert parse_kernel(format_kernel(kernel)) == kernel
        assert parse(dump(kernel)) == kernel
        assert why_no_problem(kernel) is None


@pytest.mark.parametrize(("queries", "name"), [(3, "few queries"), (3, "blocks"), (20, "blocks")])
def test_no_keys_at_all(queries: int, name: str) -> None:
    """Nothing has weight: zeros, as where all keys are masked."""
    attention = Attention(1, 2, 1, queries, 0, 8, 8)
    (code,) = compiled([attention.kernel()], only=[name])
    given = [torch.full((int(buffer.size),), 3.0) for buffer in attention.kernel().parameters]
    call(code, given, 2)
    assert not given[3].any() and not given[4].any()
