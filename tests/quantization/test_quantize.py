"""`smelt.quantize`: layers with integers, as exact as their format allows, in a state_dict, trained through."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import smelt
from smelt.base.errors import SmeltError
from smelt.quantization.layers import QuantizedLinear, QuantizedTensor


def layered() -> nn.Sequential:
    torch.manual_seed(1)
    last = nn.Linear(512, 256, bias=False)
    return nn.Sequential(nn.Linear(512, 768), nn.GELU(), nn.Linear(768, 512), nn.GELU(), last)


FORMATS: list[tuple[str, dict[str, Any]]] = [
    ("int8", {}),
    ("int8", {"group_size": 64}),
    ("int4", {}),
    ("int4", {"group_size": 32}),
    ("int4", {"group_size": 128}),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 3, 20])
@pytest.mark.parametrize(("to", "options"), FORMATS)
def test_compiled_product_is_as_exact_as_its_format(
    to: str, options: dict[str, Any], rows: int, dtype: torch.dtype
) -> None:
    """Off by half a step of each weight at most, and by eager's error twice."""
    torch.manual_seed(0)
    layer = nn.Linear(512, 768).to(dtype)
    original = layer.weight.detach().double()
    model = smelt.quantize(nn.Sequential(layer), to, **options)
    quantized = model[0].quantized
    values = quantized.dequantized(torch.float64)
    step = quantized.scale.double().repeat_interleave(512 // quantized.scale.shape[1], 1)
    assert bool(((values - original).abs() <= 0.51 * step).all())
    x = torch.randn(rows, 512).to(dtype)
    with torch.no_grad():
        truth = nn.functional.linear(x.double(), values, layer.bias.double())
        eager, compiled = model(x), smelt.compile(model)(x)
    unit = torch.finfo(dtype).eps * truth.abs().max()
    assert compiled.dtype is dtype
    assert (compiled - truth).abs().max() <= 2 * (eager - truth).abs().max() + unit


def test_layers_are_modules_with_a_state_dict() -> None:
    model, other = (smelt.quantize(layered(), "int4") for _ in range(2))
    with torch.no_grad():
        for buffer in other.buffers():
            buffer.zero_()
    other.load_state_dict(model.state_dict())
    x = torch.randn(2, 512)
    assert torch.equal(model(x), other(x))
    assert [type(each) for each in model][::2] == [QuantizedLinear] * 3
    assert model[0].integers.nbytes == 512 * 768 // 2


def test_half_precision_keeps_scales() -> None:
    model = smelt.quantize(layered(), "int8")
    dtype = model[0].scale.dtype
    model.to(torch.bfloat16)
    assert model[0].scale.dtype is dtype and model[0].integers.dtype is torch.int8
    assert model[0].bias.dtype is torch.bfloat16
    assert model(torch.randn(2, 512, dtype=torch.bfloat16)).dtype is torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_scales_keep_their_values(dtype: torch.dtype) -> None:
    """Those of small weights would be 0 in float16."""
    small = nn.Sequential(nn.Linear(128, 64))
    with torch.no_grad():
        small[0].weight.mul_(1e-5)
    for model in (small, layered()):
        model = smelt.quantize(model, "int4")
        before = model[0].quantized.dequantized()
        assert torch.equal(model.to(dtype)[0].quantized.dequantized(), before)


def test_calibration_changes_outputs_less() -> None:
    torch.manual_seed(0)
    mixed = torch.randn(512, 512) / 8
    batches = [torch.randn(500, 512) @ mixed for _ in range(4)]
    x = torch.randn(200, 512) @ mixed
    with torch.no_grad():
        expected = layered()(x)
        errors = [
            (smelt.quantize(layered(), "int4", calibrate=samples)(x) - expected).norm() for samples in (None, batches)
        ]
    assert errors[1] < 0.9 * errors[0]


def test_tied_and_skipped_layers_stay() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(64, 128), nn.Linear(128, 64, bias=False)
            self.first, self.second = nn.Linear(128, 128), nn.Linear(128, 128)
            self.head.weight = self.embedding.weight

    model = smelt.quantize(Tied(), "int8", skip=["second"])
    kinds = {name: type(module).__name__ for name, module in model.named_children()}
    assert kinds == {"embedding": "Embedding", "head": "Linear", "first": "QuantizedLinear", "second": "Linear"}


def test_a_layer_with_several_names_stays_one() -> None:
    layer = nn.Linear(64, 64)
    model = smelt.quantize(nn.ModuleDict({"first": layer, "inner": nn.Sequential(nn.ReLU(), layer)}), "int8")
    assert isinstance(model["first"], QuantizedLinear) and model["inner"][1] is model["first"]


def test_layers_that_cannot_be_quantized_stay() -> None:
    pruned = prune.l1_unstructured(nn.Linear(64, 64), "weight", amount=0.5)
    model = smelt.quantize(nn.Sequential(pruned, nn.Linear(0, 4), nn.Linear(4, 0), nn.Linear(64, 64)), "int8")
    assert [type(each) for each in model] == [nn.Linear] * 3 + [QuantizedLinear]


@pytest.mark.parametrize(("bias", "dtype"), [(True, torch.float32), (False, torch.bfloat16)])
def test_encoder_layers_that_read_weights(bias: bool, dtype: torch.dtype) -> None:
    """PyTorch passes the weights of an encoder layer to one operator where nothing is trained."""
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0, bias=bias)
    layer = smelt.quantize(layer, "int8").to(dtype)
    assert layer.linear1.weight.dtype is dtype
    x = torch.randn(2, 5, 64, dtype=dtype)
    expected = layer(x).detach()
    tolerance = {"rtol": 0, "atol": 2e-5 if dtype is torch.float32 else 0.1}
    layer.eval()
    with torch.no_grad():
        for found in (layer(x), smelt.compile(layer)(x)):
            torch.testing.assert_close(found, expected, **tolerance)


def test_one_name_to_skip() -> None:
    model = smelt.quantize(nn.Sequential(*(nn.Linear(16, 16) for _ in range(12))), "int8", skip="10")
    assert [number for number, each in enumerate(model) if type(each) is nn.Linear] == [10]


def test_calibration_keeps_the_modes_of_modules() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64))
    model[1].eval()
    with pytest.raises(RuntimeError):
        smelt.quantize(model, "int8", calibrate=[torch.randn(4, 63)])
    assert model.training and model[0].training and not model[1].training
    smelt.quantize(model, "int8", calibrate=[torch.randn(4, 64)])
    assert model.training and model[0].training and not model[1].training


def test_calibration_of_layers_called_by_keyword() -> None:
    class Called(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.layer(input=x)
            return result

    assert isinstance(smelt.quantize(Called(), "int8", calibrate=[torch.randn(4, 64)]).layer, QuantizedLinear)


@pytest.mark.parametrize(
    ("to", "options", "text"),
    [
        ("int3", {}, "int8, int4"),
        ("int4", {"group_size": 96}, "layer 0 has 512 inputs"),
        ("int4", {"group_size": 8}, "16 weights at least"),
        ("int4", {"calibrate": []}, "no samples"),
    ],
)
def test_what_is_impossible_is_refused(to: str, options: dict[str, Any], text: str) -> None:
    with pytest.raises(SmeltError, match=text) as caught:
        smelt.quantize(layered(), to, **options)
    assert caught.value.code == "SM090"


def test_gradients_through_frozen_weights() -> None:
    """QLoRA: adapters beside quantized layers are trained."""

    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(2)
            self.model = smelt.quantize(layered(), "int4").requires_grad_(False)
            self.down, self.up = nn.Linear(512, 8, bias=False), nn.Linear(8, 256, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.model(x + self.up(self.down(x)).repeat(1, 2))

    gradients = []
    for compiled in (False, True):
        module = Adapted()
        x = torch.randn(4, 512, generator=torch.Generator().manual_seed(0), requires_grad=True)
        (smelt.compile(module) if compiled else module)(x).square().mean().backward()
        gradients.append([x.grad, *(parameter.grad for parameter in (module.down.weight, module.up.weight))])
    for eager, ours in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-6)


def test_threads_change_no_bits() -> None:
    model = smelt.compile(smelt.quantize(nn.Sequential(nn.Linear(1024, 2048)), "int4"))
    x, results, threads = torch.randn(1, 1024), [], torch.get_num_threads()
    try:
        for count in (1, 2, 4):
            torch.set_num_threads(count)
            with torch.no_grad():
                results.append(model(x))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(results[0], each) for each in results)


def test_dequantized_values_of_a_block_order() -> None:
    integers = torch.randint(0, 256, (2, 64), dtype=torch.uint8)
    weight = QuantizedTensor(integers, torch.rand(2, 4), bits=4, offset=8, half_run=16)
    blocks = integers.view(2, 4, 16).int()
    expected = (torch.cat((blocks % 16, blocks // 16), -1) - 8) * weight.scale[..., None]
    assert torch.equal(weight.dequantized(), expected.view(2, 128))
