"""Products in fixed point beside float64: groups of every size, elements of every magnitude, infinite ones."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from smelt.codegen.cpu.products.problem import problem_of
from smelt.codegen.cpu.products.quantized_factors.fixed_point import FixedPointDots, fixed_point_of
from smelt.codegen.cpu.products.quantized_factors.layout import layout_of, oriented
from smelt.codegen.cpu.target import describe_host
from smelt.device import registry
from smelt.ir.loops import Function
from smelt.quantization.layers import QuantizedLinear, QuantizedTensor
from tests.codegen.cpu.products.test_quantized import written

ROWS = 37


def quantized(
    bits: int, groups: int, size: int, *, zero: bool = False, low: bool = False, half: int = 1
) -> QuantizedLinear:
    torch.manual_seed(groups)
    columns = groups * size
    if bits == 4:
        integers = torch.randint(0, 256, (ROWS, columns // 2), dtype=torch.uint8)
    else:
        integers = torch.randint(-128, 128, (ROWS, columns), dtype=torch.int8)
    zeros = torch.rand(ROWS, groups) * 15 if zero else None
    lows = torch.randn(ROWS, groups) if low else None
    offset = 8 if bits == 4 and not zero else 0
    weight = QuantizedTensor(integers, torch.rand(ROWS, groups) + 0.1, zeros, lows, bits, offset, half)
    return QuantizedLinear(weight)


CASES: dict[str, dict[str, Any]] = {
    "int4 of 64, 31 groups of 32 vectors": {"bits": 4, "groups": 62, "size": 64, "zero": True},
    "int4 of 64, an odd number": {"bits": 4, "groups": 3, "size": 64, "zero": True},
    "int4 of 128": {"bits": 4, "groups": 5, "size": 128, "zero": True},
    "int4 of 1024": {"bits": 4, "groups": 2, "size": 1024, "zero": True},
    "q4_0": {"bits": 4, "groups": 28, "size": 32, "half": 16},
    "q4_1": {"bits": 4, "groups": 24, "size": 32, "half": 16, "low": True},
    "q8_0": {"bits": 8, "groups": 26, "size": 32},
    "q6_K": {"bits": 8, "groups": 12, "size": 16},
    "int8 of 64": {"bits": 8, "groups": 7, "size": 64},
    "int8 of a row": {"bits": 8, "groups": 1, "size": 1536},
    "int8 of short rows": {"bits": 8, "groups": 1, "size": 96},
    "int8 of half rows": {"bits": 8, "groups": 2, "size": 2048, "low": True},
}


@pytest.fixture(params=["host", "without dot products of bytes"])
def processor(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "host":
        yield
        return
    smelt.reset()
    registry.register("cpu", lambda: replace(describe_host(), dots_bytes=False), devices=("cpu",))
    yield
    smelt.reset()
    registry.register("cpu", describe_host, devices=("cpu",))


on_each_processor = pytest.mark.usefixtures("processor")


def bound(layer: QuantizedLinear, x: Tensor) -> Tensor:
    """What float32 may be off by: 2^-20 of the largest elements of groups times the magnitudes of weights."""
    groups = layer.scale.shape[1]
    weights = layer.quantized.dequantized(torch.float64).abs().view(ROWS, groups, -1).sum(-1)
    added = layer.scale.double() * (128 if layer.bits == 8 else 16) * layer.in_features / groups
    largest = x.double().abs().view(len(x), groups, -1).amax(-1)
    return 2.0**-20 * largest @ (weights + added).t()


def product(layer: QuantizedLinear, x: Tensor) -> Tensor:
    """Not by the library, which small products are left to."""
    with torch.no_grad():
        result: Tensor = smelt.compile(layer, options={"products": "own"})(x)
    return result


def test_the_cases_are_multiplied_in_fixed_point(monkeypatch: pytest.MonkeyPatch) -> None:
    if not describe_host().dots_bytes:
        pytest.skip("the processor has no dot products of bytes")
    written_by, write = list[FixedPointDots](), FixedPointDots.write

    def noted(dots: FixedPointDots) -> Function:
        written_by.append(dots)
        return write(dots)

    monkeypatch.setattr(FixedPointDots, "write", noted)
    for case in CASES.values():
        smelt.reset()
        layer = quantized(**case)
        written_by.clear()
        product(layer, torch.randn(1, layer.in_features))
        assert written_by


def agrees(layer: QuantizedLinear, x: Tensor) -> None:
    ours = product(layer, x)
    truth = x.double() @ layer.quantized.dequantized(torch.float64).t()
    assert bool(((ours - truth).abs() <= bound(layer, x) + 1e-37).all())


@on_each_processor
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_groups_of_every_size(name: str, rows: int) -> None:
    layer = quantized(**CASES[name])
    agrees(layer, torch.randn(rows, layer.in_features))


@on_each_processor
@pytest.mark.parametrize("name", ["int4 of 64, an odd number", "q8_0", "int8 of a row"])
def test_elements_of_every_magnitude(name: str) -> None:
    layer = quantized(**CASES[name])
    columns = layer.in_features
    powers = 2.0 ** torch.linspace(-149, 100, columns)
    edges = torch.tensor([8355711.0, 8355712.0, 8388607.0, 1 - 2.0**-24, -1.9921874, 1.9921875, 0.0]).repeat(columns)
    for x in (powers, torch.zeros(columns), edges[:columns], torch.full((columns,), 2.0**-149), powers.flip(0)):
        agrees(layer, x[None])


@on_each_processor
@pytest.mark.parametrize("name", ["int4 of 64, an odd number", "q8_0", "int8 of a row"])
def test_largest_elements_round_to_three_bytes(name: str) -> None:
    """Those that are just below and above the largest number with three bytes of 127."""
    layer = quantized(**CASES[name])
    bits = torch.tensor([0x7EFEFD, 0x7EFEFE, 0x7EFEFF, 0x7EFF00, 0x7EFF40, 0x7EFF7F, 0x7EFF80, 0x7FFFFF])
    largest = (bits + (127 << 23)).int().view(torch.float32)
    x = torch.rand(2 * len(largest), layer.in_features)
    x.view(len(x), layer.scale.shape[1], -1)[..., 3] = torch.cat([largest, -largest])[:, None]
    for start in range(0, len(x), 2):
        agrees(layer, x[start : start + 2])


@on_each_processor
def test_integers_are_exact() -> None:
    layer = quantized(**CASES["int4 of 64, 31 groups of 32 vectors"])
    layer.scale.fill_(0.5)
    assert layer.zero is not None
    layer.zero.fill_(8)
    x = torch.randint(-100, 100, (1, layer.in_features)).float()
    with torch.no_grad():
        assert torch.equal(product(layer, x), layer(x))


@on_each_processor
@pytest.mark.parametrize("scale", [1e36, 1e-36])
@pytest.mark.parametrize("name", ["int4 of 64, an odd number", "q4_1", "int8 of a row"])
def test_groups_of_very_large_or_small_elements(name: str, scale: float) -> None:
    """Beside scales that make results of common size."""
    layer = quantized(**CASES[name])
    x = torch.randn(2, layer.in_features) / scale
    for each in (layer.scale, layer.low):
        if each is not None:
            each.mul_(scale)
    weights = layer.quantized.dequantized(torch.float64)
    truth, size = x.double() @ weights.t(), x.double().abs() @ weights.abs().t()
    assert bool(((product(layer, x) - truth).abs() <= 2.0**-20 * size).all())


@on_each_processor
@pytest.mark.parametrize("outlier", [1e2, 1e4, 1e6, 1e30])
@pytest.mark.parametrize("name", ["int4 of 64, an odd number", "q4_0", "int8 of a row"])
def test_an_outlier_does_not_round_the_rest_of_its_group(name: str, outlier: float) -> None:
    """Its weights are 0, so results are those of the other elements."""
    layer = quantized(**CASES[name])
    layer.integers[:, 0] = 0x88 if layer.bits == 4 else 0
    if layer.zero is not None:
        layer.zero.fill_(8)
    x = torch.randn(2, layer.in_features)
    x[:, 0] = outlier
    truth = x.double() @ layer.quantized.dequantized(torch.float64).t()
    with torch.no_grad():
        error, eager = ((each - truth).abs().max() for each in (product(layer, x), layer(x)))
    assert error <= 2 * eager + 2.0**-21 * truth.abs().max()


@on_each_processor
@pytest.mark.parametrize("rows", [1, 2, 6])
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("name", ["int4 of 64, an odd number", "q4_0", "int8 of a row"])
def test_infinite_elements_give_what_eager_gives(name: str, value: float, rows: int) -> None:
    layer = quantized(**CASES[name])
    if layer.zero is not None:
        layer.zero.round_()  # then some weights are exactly zero
    x = torch.randn(rows, layer.in_features)
    x[-1, 5] = value
    with torch.no_grad():
        expected, ours = layer(x), product(layer, x)
    assert torch.equal(expected.isnan(), ours.isnan())
    assert torch.equal(expected.isinf(), ours.isinf())
    torch.testing.assert_close(ours, expected, equal_nan=True, rtol=1e-4, atol=1e-3)


def test_what_has_no_fixed_point() -> None:
    target = replace(describe_host(), dots_bytes=True, vector_bits=512)

    def form(m: int, **changes: object) -> object:
        problem = oriented(problem_of(written(m, 13, zero="f32")))
        layout = layout_of(problem)
        assert not isinstance(layout, str)
        return fixed_point_of(problem, layout, replace(target, **changes))  # type: ignore[arg-type]

    assert form(1) is not None
    assert form(3) is None
    assert form(1, dots_bytes=False) is None
    assert form(1, vector_bits=128) is None
