"""Gradients of attention by blocks: every layout and size against the reference interpreter and eager's own errors."""

from dataclasses import replace

import pytest
import torch

from smelt.codegen.cpu.attention.plan import ATTENTION
from smelt.device import find
from smelt.ir.kernel import Kernel, Stage, WeightedSum
from smelt.ir.serialize import dump, parse
from smelt.ir.text import format_kernel
from tests.codegen.cpu.attention.running import attention_of, compiled, faults, targets
from tests.codegen.cpu.attention.written import F32, Attention
from tests.codegen.running import run
from tests.kernel_text import parse_kernel

forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
TOGETHER = 12


def gradients_of(seed: int) -> Attention:
    return replace(attention_of(seed), shared=1, sums=True)


@pytest.mark.parametrize("batch", range(10))
def test_random_gradients(batch: int) -> None:
    """In blocks as they are, or so small that there are many of each; for all kinds of registers."""
    asked = [gradients_of(seed) for seed in range(batch * TOGETHER, (batch + 1) * TOGETHER)]
    kernels = [each.gradients() for each in asked]
    codes = compiled(kernels, targets()[batch // 2], small=batch % 2 == 1)
    for seed, (attention, kernel, code) in enumerate(zip(asked, kernels, codes, strict=True)):
        wrong = faults(attention, kernel, code, attention.saved(seed))
        assert not wrong, f"{attention}: {wrong}"


@pytest.mark.parametrize(
    "attention",
    [
        Attention(1, 2, 1, 197, 197, 64, 64),
        Attention(2, 2, 1, 128, 128, 64, 64, causal=True),
        Attention(1, 1, 1, 96, 600, 64, 64, mask="full"),
        Attention(1, 2, 1, 700, 700, 32, 32, causal=True),
    ],
    ids=str,
)
@pytest.mark.parametrize("spread", [1.0, 10.0])
def test_no_further_from_the_truth_than_eager(attention: Attention, spread: float) -> None:
    kernel = attention.gradients()
    names = [buffer.name for buffer in kernel.parameters]
    given = dict(zip(names, attention.saved(0, spread), strict=True))
    query, key, value = (attention.view(name, given[name]) for name in "qkv")
    grad = attention.view("y", given["g"])
    mask = given["m"].view(attention.mask_shape()) if attention.mask else None

    def gradients(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        options = {"attn_mask": None if mask is None else mask.to(dtype), "scale": attention.scale}
        asked = [each.to(dtype) for each in (query, key, value)]
        made = forward(*asked, 0.0, attention.causal, **options)
        found: tuple[torch.Tensor, ...] = backward(grad.to(dtype), *asked, *made, 0.0, attention.causal, **options)
        return found

    found, sums = forward(query, key, value, 0.0, attention.causal, attn_mask=mask, scale=attention.scale)
    attention.view("y", given["y"]).copy_(found)
    given["lse"].copy_(sums.reshape(-1))
    run(kernel, list(given.values()))
    for name, eager, truth in zip("qkv", gradients(F32), gradients(torch.float64), strict=True):
        allowed = 2 * (eager - truth).abs().max() + 8 * torch.finfo(F32).eps * truth.abs().max()
        assert (attention.view(name, given[f"d{name}"]) - truth).abs().max() <= allowed


@pytest.mark.parametrize("kept", [("dq",), ("dk",), ("dv",), ("dq", "dv"), ("dk", "dv")])
def test_some_of_the_gradients(kept: tuple[str, ...]) -> None:
    attention = Attention(1, 2, 1, 25, 31, 8, 8, causal=True)
    kernel = _only(attention.gradients(), kept)
    saved = dict(zip((each.name for each in attention.gradients().parameters), attention.saved(0), strict=True))
    given = [saved[buffer.name] for buffer in kernel.parameters]
    (code,) = compiled([kernel])
    assert not faults(attention, kernel, code, given)


def _only(kernel: Kernel, kept: tuple[str, ...]) -> Kernel:
    gone = {"dq", "dk", "dv"} - set(kept)
    body = tuple(i for i in kernel.stages[0].body if not isinstance(i, WeightedSum) or i.buffer not in gone)
    buffers = tuple(buffer for buffer in kernel.buffers if buffer.name not in gone)
    return replace(kernel, stages=(Stage(True, body),), buffers=buffers)


def test_heads_that_share_keys_have_no_code() -> None:
    """The gradients of several heads would be summed up."""
    reason = ATTENTION.why_not(Attention(1, 2, 2, 8, 8, 4, 4).gradients(), find("cpu"))
    assert "several attentions are summed up" in str(reason)


def test_texts_and_files_hold_all_of_it() -> None:
    for seed in range(20):
        kernel = gradients_of(seed).gradients()
        assert parse_kernel(format_kernel(kernel)) == kernel
        assert parse(dump(kernel)) == kernel
        assert ATTENTION.plan(kernel, find("cpu")).schedule.name == "gradients"
