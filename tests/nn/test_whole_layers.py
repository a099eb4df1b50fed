"""Layers that PyTorch computes by one operator in inference: taken apart, they give what it gives."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.base.events import Event, collect
from smelt.ir.program import Library, Program
from tests.targets import HOST, chosen, none_by_default, there

aten = torch.ops.aten
WHOLE = (aten._transformer_encoder_layer_fwd.default, aten._native_multi_head_attention.default)
ON_HOST = chosen[0] == HOST
CAUSAL = torch.ones(7, 7, dtype=torch.bool).triu(1)
PADDED = torch.arange(7) >= torch.tensor([[7], [4]])
NO_KEYS = CAUSAL | (torch.arange(7) == 0)[:, None]
MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "by pairs": {"src_mask": CAUSAL},
    "by keys": {"src_key_padding_mask": PADDED},
    "both": {"src_mask": CAUSAL, "src_key_padding_mask": PADDED},
    "nothing to look at": {"src_mask": NO_KEYS},
}


@pytest.fixture(autouse=True)
def _no_default_device() -> Iterator[None]:
    """PyTorch has no operators for whole layers where one is set."""
    with none_by_default():
        yield


@there()
def filled(*shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype)


def taken_apart(calls: set[Any]) -> bool:
    """On the host; a GPU has kernels for whole layers."""
    return not calls.intersection(WHOLE) if ON_HOST else bool(calls.intersection(WHOLE))


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
    layer = nn.TransformerEncoderLayer(16, 4, 24, batch_first=True, **settings).eval().to(chosen[0], dtype)
    eager, ours, calls = run(layer, filled(2, 7, 16, dtype=dtype), **MASKS[mask])
    torch.testing.assert_close(ours, eager, equal_nan=True)
    assert ours.stride() == eager.stride()
    assert taken_apart(calls)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_ones(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 24, batch_first=True).eval().to(chosen[0])
    x = filled(2, 7, 16).to(dtype)
    exact = layer.to(dtype).double()(x.double())
    eager, ours, _ = run(layer.to(dtype), x)
    assert ours.dtype is dtype
    error = 4 * torch.finfo(dtype).eps * exact.abs().max()
    assert (ours.double() - exact).abs().max() <= 2 * (eager.double() - exact).abs().max() + error


@pytest.mark.parametrize("length", [1, 7, 40])
def test_attention(length: int) -> None:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(24, 4, batch_first=True).eval().to(chosen[0])
    x = filled(2, length, 24)
    eager, ours, calls = run(layer, x, x, x, need_weights=False)
    torch.testing.assert_close(ours[0], eager[0])
    assert ours[1] is eager[1] is None
    assert taken_apart(calls)


@pytest.mark.skipif(not ON_HOST, reason="PyTorch's operator takes inputs of one shape on a GPU")
def test_three_inputs() -> None:
    """The operator itself projects each input by its own rows of the weight."""
    torch.manual_seed(0)
    width = 12
    inputs = [filled(2, length, width) for length in (5, 9, 9)]
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
    layer, x = nn.MultiheadAttention(24, 4, batch_first=True).eval().to(chosen[0]), filled(2, 7, 24)
    eager, ours, _ = run(layer, x, x, x)
    torch.testing.assert_close(ours, eager)


def test_where_a_device_is_set_eager_takes_them_apart_itself() -> None:
    """For it a default device is a mode that is to see all operators. On a GPU it then computes something else: by
    another formula of GELU, and for queries that may look at nothing."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 24, batch_first=True, activation="gelu").eval().to(chosen[0])
    attention = nn.MultiheadAttention(16, 4, batch_first=True).eval().to(chosen[0])
    targets: list[list[str]] = []

    def backend(graph: torch.fx.GraphModule, examples: Any) -> Any:
        targets.append([str(node.target) for node in graph.graph.nodes])
        return graph.forward

    def both(x: torch.Tensor) -> Any:
        return layer(x, src_mask=NO_KEYS), attention(x, x, x, need_weights=False)[0]

    def within(x: torch.Tensor) -> Any:
        with torch.device(chosen[0]):
            return both(x)

    x = filled(2, 7, 16)
    with torch.no_grad():
        smelt.compile(both, fullgraph=True, backend=backend)(x)
        ways: list[tuple[Any, Any]] = [(both, torch.device(chosen[0])), (within, contextlib.nullcontext())]
        for function, default in ways:
            with default:
                ours, eager = smelt.compile(function, fullgraph=True, backend=backend)(x), function(x)
            torch.testing.assert_close(ours, eager, equal_nan=True)
    whole = [[name for name in seen if "encoder_layer_fwd" in name or "_native_multi" in name] for seen in targets]
    assert list(map(len, whole)) == [2, 0, 0]
