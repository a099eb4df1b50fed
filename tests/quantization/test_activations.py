"""`activations="int8"`: inputs of quantized layers are rounded to bytes, compiled as in eager."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smelt
from smelt.base.errors import SmeltError
from smelt.codegen.cpu.target import describe_host
from smelt.quantization.layers import QuantizedLinear, QuantizedTensor, byte_groups, rounded_to_bytes


def layered(to: str = "int4", **options: Any) -> nn.Sequential:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(512, 768), nn.GELU(), nn.Linear(768, 256, bias=False))
    quantized = smelt.quantize(model, to, activations="int8", **options)
    assert isinstance(quantized, nn.Sequential)
    return quantized


def test_rounds_each_group_to_the_nearest_of_255_values() -> None:
    x = torch.tensor([[127.0, 1.5, 2.5, -3.5, 254.0, 1.0, -3.0, 5.0], [0.0, 0.0, 0.0, 0.0, 1e-45, 0.0, 0.0, 0.0]])
    expected = torch.tensor([[127.0, 2.0, 2.0, -4.0, 254.0, 0.0, -4.0, 4.0], [0.0] * 8])
    assert torch.equal(rounded_to_bytes(x, 2), expected)
    x[0, 1], x[1, 7] = -torch.inf, torch.nan
    rounded = rounded_to_bytes(x, 2)
    assert bool(rounded[0, :4].isnan().all()) and torch.equal(rounded[0, 4:], expected[0, 4:])
    assert bool(rounded[1, 4:].isnan().all())


@pytest.mark.parametrize(
    ("columns", "to", "options", "groups"),
    [
        (512, "int4", {}, 8), (512, "int4", {"group_size": 32}, 16), (512, "int8", {"group_size": 128}, 4),
        (512, "int8", {}, 8), (96, "int8", {}, 1), (220, "int8", {}, 2), (1009, "int8", {}, 1),
    ],
)  # fmt: skip
def test_groups_are_those_of_the_weights_or_short(
    columns: int, to: str, options: dict[str, Any], groups: int
) -> None:
    model = smelt.quantize(nn.Sequential(nn.Linear(columns, 64)), to, activations="int8", **options)
    layer = model.get_submodule("0")
    assert isinstance(layer, QuantizedLinear)
    assert layer.byte_groups == groups == byte_groups(layer.quantized)
    x = torch.randn(3, columns)
    with torch.no_grad():
        torch.testing.assert_close(smelt.compile(model)(x), model(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("to", ["int8", "int4"])
@pytest.mark.parametrize("rows", [1, 4, 50])
def test_compiled_layers_compute_what_eager_does(to: str, rows: int) -> None:
    model = layered(to)
    x = torch.randn(rows, 512)
    with torch.no_grad():
        torch.testing.assert_close(smelt.compile(model)(x), model(x), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not describe_host().dots_bytes, reason="the processor has no dot products of bytes")
def test_layers_that_share_an_input_round_it_once() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(512, 512), nn.Linear(512, 256)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.first(x), self.second(x)

    model = smelt.quantize(Two(), "int8", activations="int8")
    smelt.reset()
    with torch.no_grad():
        smelt.compile(model, options={"products": "own"})(torch.randn(1, 512))
    assert smelt.counters["kernels"] == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_pass_as_if_nothing_were_rounded(dtype: torch.dtype) -> None:
    model = layered().to(dtype)
    last = model[2]
    assert isinstance(last, QuantizedLinear)
    x = torch.randn(5, 768).to(dtype).requires_grad_()
    gradient = torch.randn(5, 256).to(dtype)
    (expected,) = torch.autograd.grad(last(x), x, gradient)
    (compiled,) = torch.autograd.grad(smelt.compile(last)(x), x, gradient)
    truth = gradient.double() @ last.quantized.dequantized(torch.float64)
    unit = torch.finfo(dtype).eps * truth.abs().max()
    assert expected.dtype is compiled.dtype is dtype
    assert (expected - truth).abs().max() <= 4 * unit
    assert (compiled - truth).abs().max() <= 4 * unit


def test_adapters_are_trained() -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(64, 64), nn.Sequential(nn.Linear(64, 64))
    model = nn.Sequential(first, smelt.quantize(second, "int8", activations="int8"))
    x, results = torch.randn(8, 64), []
    for run in (model, smelt.compile(model)):
        model.zero_grad()
        run(x).square().sum().backward()
        assert first.weight.grad is not None
        results.append(first.weight.grad.clone())
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


def test_exact_activations_are_the_default() -> None:
    model = smelt.quantize(nn.Sequential(nn.Linear(64, 64)), "int8")
    layer = model.get_submodule("0")
    assert isinstance(layer, QuantizedLinear)
    assert layer.activations is None and "activations" not in repr(model)
    assert "activations='int8'" in repr(layered())


def test_an_exported_file_rounds_as_eager_does(tmp_path: Any) -> None:
    for to in ("int4", "int8"):
        model = layered(to).eval()
        x = torch.randn(3, 512)
        path = tmp_path / f"{to}.smelt"
        smelt.export(model, (x,)).save(path)
        with torch.no_grad():
            torch.testing.assert_close(smelt.load(path)(x), model(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("activations", ["int4", "", "float8"])
def test_other_activations_are_refused(activations: str) -> None:
    with pytest.raises(SmeltError, match="SM090"):
        smelt.quantize(nn.Sequential(nn.Linear(64, 64)), "int8", activations=activations)
    with pytest.raises(SmeltError, match="SM090"):
        QuantizedLinear(read_from(layered()), activations=activations)


def read_from(model: nn.Sequential) -> QuantizedTensor:
    first = model[0]
    assert isinstance(first, QuantizedLinear)
    return first.quantized
