"""Masks that follow from the program alone: dropped or told causal, and nothing else is."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt.base import events
from smelt.base.options import Options
from tests.absent_device.ahead import compile_ahead, spec_like

Tensor = torch.Tensor
INFINITE = float("-inf")


def _places(q: Tensor) -> tuple[Tensor, Tensor]:
    places = torch.arange(q.shape[-2], device=q.device)
    return places[:, None], places[None, :]


def _added(kept: Tensor, q: Tensor) -> Tensor:
    return torch.zeros(kept.shape, dtype=q.dtype, device=q.device).masked_fill(~kept, INFINITE)


def _causal(q: Tensor) -> Tensor:
    rows, columns = _places(q)
    return columns <= rows


MASKS: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "all": ("nothing", lambda q: (_places(q)[1] >= 0).expand(q.shape[0], 1, q.shape[-2], q.shape[-2])),
    "zeros": ("nothing", lambda q: torch.zeros(q.shape[-2], q.shape[-2], dtype=q.dtype, device=q.device)),
    "causal": ("causal", _causal),
    "causal, repeated": ("causal", lambda q: _causal(q).expand(q.shape[0], 1, -1, -1)),
    "causal, added": ("causal", lambda q: _added(_causal(q), q)),
    "band": ("stays", lambda q: (_places(q)[0] - _places(q)[1]).abs() < 3),
    "strictly lower and a column": ("stays", lambda q: (_places(q)[1] < _places(q)[0]) | (_places(q)[1] == 0)),
    "a slope": ("stays", lambda q: (_places(q)[1] - _places(q)[0]).to(q.dtype) * 0.1),
    "one position off": ("stays", lambda q: _places(q)[1] <= _places(q)[0] + 1),
    "of an input": ("stays", lambda q: _causal(q) & (q[0, 0, :, 0] < 100.0)),
    "drawn": ("stays", lambda q: torch.rand(q.shape[-2], q.shape[-2], device=q.device) >= 0.0),
}


@pytest.mark.parametrize("name", MASKS)
def test_what_a_mask_says(name: str) -> None:
    expected, mask = MASKS[name]

    def attend(q: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, q, q, attn_mask=mask(q))

    q = torch.randn(2, 3, 17, 8, requires_grad=True)
    with events.collect() as seen:
        made = smelt.compile(attend, fullgraph=True)(q)
    torch.testing.assert_close(made, attend(q))
    joint = next(event.text for event in seen if event.channel == "joint")
    call = next(line for line in joint.splitlines() if "_attention_for_cpu.default" in line)
    assert ("attn_mask" in call) == (expected == "stays")
    assert ("0.0, True" in call) == (expected == "causal")


def test_more_keys_than_queries_are_not_causal() -> None:
    def attend(q: Tensor, k: Tensor) -> Tensor:
        rows, columns = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])[None, :]
        return F.scaled_dot_product_attention(q, k, k, attn_mask=columns <= rows)

    q, k = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 9, 8)
    torch.testing.assert_close(smelt.compile(attend)(q, k), attend(q, k))


def test_gradients_are_those_with_the_mask() -> None:
    def attend(q: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, q * 2, q + 1, attn_mask=_causal(q)).sin()

    q = torch.randn(2, 3, 17, 8, requires_grad=True)
    (mine,) = torch.autograd.grad(smelt.compile(attend)(q).sum(), q)
    (eager,) = torch.autograd.grad(attend(q).sum(), q)
    torch.testing.assert_close(mine, eager)


@pytest.mark.parametrize("name", ["all", "causal"])
def test_a_gpu_runs_its_fused_kernel(name: str) -> None:
    """A mask whose rows are one number repeated fits none of them: attention was written out."""
    mask = MASKS[name][1]
    with events.collect() as seen:
        compile_ahead(
            lambda q: F.scaled_dot_product_attention(q, q, q, attn_mask=mask(q)),
            [spec_like((2, 4, 64, 64), torch.bfloat16)],
            Options(target="sm_90"),
        )
    assert any("_scaled_dot_product_flash_attention" in event.text for event in seen)


def test_sizes_that_vary() -> None:
    compiled = smelt.compile(
        lambda q: F.scaled_dot_product_attention(q, q, q, attn_mask=_causal(q)), dynamic=True, fullgraph=True
    )
    for length in (8, 9, 33):
        q = torch.randn(1, 2, length, 8)
        torch.testing.assert_close(compiled(q), F.scaled_dot_product_attention(q, q, q, is_causal=True))
