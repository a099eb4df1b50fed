"""Layers that PyTorch computes by one operator in inference: taken apart, they give what it gives."""

import math
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.base.events import Event, collect
from smelt.ir.program import Library, Program

aten = torch.ops.aten
WHOLE = (aten._transformer_encoder_layer_fwd.default, aten._native_multi_head_attention.default)
CAUSAL = torch.ones(7, 7, dtype=torch.bool).triu(1)
PADDED = torch.arange(7) >= torch.tensor([[7], [4]])
MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "by pairs": {"src_mask": CAUSAL},
    "by keys": {"src_key_padding_mask": PADDED},
    "both": {"src_mask": CAUSAL, "src_key_padding_mask": PADDED},
    "nothing to look at": {"src_mask": CAUSAL | (torch.arange(7) == 0)[:, None]},
}


def libraries(events: list[Event]) -> set[Any]:
    programs = [event.subject for event in events if isinstance(event.subject, Program)]
    return {step.op for program in programs for step in program.steps if isinstance(step, Library)}


def run(model: nn.Module, *inputs: torch.Tensor, **kwargs: Any) -> tuple[Any, Any, set[Any]]:
    """What eager gives, what smelt gives, and what of the library it calls."""
    with torch.no_grad(), collect() as events:
        compiled = smelt.compile(model, fullgraph=True, options={"check_specs": True})
        ours = compiled(*inputs, **kwargs)
        return model(*inputs, **kwargs), ours, libraries(events)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("settings", [{}, {"norm_first": True, "activation": "gelu"}], ids=["after", "first"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_encoder_layers(mask: str, settings: dict[str, Any], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 24, batch_first=True, **settings).eval().to(dtype)
    eager, ours, calls = run(layer, torch.randn(2, 7, 16, dtype=dtype), **MASKS[mask])
    torch.testing.assert_close(ours, eager, equal_nan=True)
    assert ours.stride() == eager.stride()
    assert not calls.intersection(WHOLE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_ones(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 24, batch_first=True).eval()
    x = torch.randn(2, 7, 16).to(dtype)
    exact = layer.to(dtype).double()(x.double())
    eager, ours, _ = run(layer.to(dtype), x)
    assert ours.dtype is dtype
    error = 4 * torch.finfo(dtype).eps * exact.abs().max()
    assert (ours.double() - exact).abs().max() <= 2 * (eager.double() - exact).abs().max() + error


@pytest.mark.parametrize("length", [1, 7, 40])
def test_attention(length: int) -> None:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(24, 3, batch_first=True).eval()
    x = torch.randn(2, length, 24)
    eager, ours, calls = run(layer, x, x, x, need_weights=False)
    torch.testing.assert_close(ours[0], eager[0])
    assert ours[1] is eager[1] is None
    assert not calls.intersection(WHOLE)


def test_three_inputs() -> None:
    """The operator itself projects each input by its own rows of the weight."""
    torch.manual_seed(0)
    width = 12
    inputs = [torch.randn(2, length, width) for length in (5, 9, 9)]
    weights = torch.randn(3 * width, width), torch.randn(3 * width), torch.randn(width, width), torch.randn(width)

    def attend(*inputs: torch.Tensor) -> Any:
        return aten._native_multi_head_attention.default(*inputs, width, 2, *weights, None, False)[0]

    with torch.no_grad():
        found = smelt.compile(attend)(*inputs)
        q, k, v = (
            nn.functional.linear(x, rows, bias).view(2, -1, 2, width // 2).transpose(1, 2)
            for x, rows, bias in zip(inputs, weights[0].split(width), weights[1].split(width), strict=True)
        )
        shares = (q @ k.transpose(2, 3) / math.sqrt(width // 2)).softmax(-1)
        expected = nn.functional.linear((shares @ v).transpose(1, 2).reshape(2, 5, width), *weights[2:])
    torch.testing.assert_close(found, expected)


def test_weights_are_asked_for() -> None:
    """The operator averages them over heads; it is left whole."""
    layer, x = nn.MultiheadAttention(24, 3, batch_first=True).eval(), torch.randn(2, 7, 24)
    eager, ours, _ = run(layer, x, x, x)
    torch.testing.assert_close(ours, eager)
