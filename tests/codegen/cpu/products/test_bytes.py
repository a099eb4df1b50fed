"""Products of quantized weights with activations of bytes, beside float64 of what `rounded_to_bytes` defines."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from smelt.codegen.cpu.products.problem import problem_of
from smelt.codegen.cpu.products.quantized_factors import byte_tiles, schedule
from smelt.codegen.cpu.products.quantized_factors.byte_tiles import ByteTiles
from smelt.codegen.cpu.products.quantized_factors.fixed_point import FixedPoint
from smelt.codegen.cpu.products.quantized_factors.layout import layout_of, oriented
from smelt.codegen.cpu.target import describe_host
from smelt.device import registry
from smelt.ir.kernel import Kernel
from smelt.quantization.layers import QuantizedLinear, rounded_to_bytes
from tests.codegen.cpu.products import test_fixed_point
from tests.codegen.cpu.products.test_quantized import SUMS, agrees, written

needs_dots = pytest.mark.skipif(not describe_host().dots_bytes, reason="the processor has no dot products of bytes")

# Processors that this one can be: registers of 512 or 256 bits, and one without dot products of bytes.
PROCESSORS: dict[str, dict[str, Any]] = {
    "host": {},
    "registers of 256 bits": {"vector_bits": 256, "vector_registers": 16},
    "without dot products of bytes": {"dots_bytes": False},
}
CASES = test_fixed_point.CASES | {
    "int8 of 12 groups": {"bits": 8, "groups": 12, "size": 32, "zero": True},
    "int4 of a row": {"bits": 4, "groups": 1, "size": 512, "zero": True},
}


@pytest.fixture(params=PROCESSORS)
def processor(request: pytest.FixtureRequest) -> Iterator[None]:
    smelt.reset()
    changes = PROCESSORS[request.param]
    registry.register("cpu", lambda: replace(describe_host(), **changes), devices=("cpu",))
    yield
    smelt.reset()
    registry.register("cpu", describe_host, devices=("cpu",))


on_each_processor = pytest.mark.usefixtures("processor")


def layer_of(name: str) -> QuantizedLinear:
    return QuantizedLinear(test_fixed_point.quantized(**CASES[name]).quantized, activations="int8")


def product(layer: QuantizedLinear, x: Tensor) -> Tensor:
    with torch.no_grad():
        result: Tensor = smelt.compile(layer, options={"products": "own"})(x)
    return result


def agrees_with_float64(layer: QuantizedLinear, x: Tensor) -> None:
    ours = product(layer, x)
    rounded = rounded_to_bytes(x, layer.byte_groups).double()
    weights = layer.quantized.dequantized(torch.float64)
    groups = layer.scale.shape[1]
    beside = layer.scale.double().repeat_interleave(layer.in_features // groups, 1) * (128 if layer.bits == 8 else 16)
    bound = 2.0**-20 * rounded.abs() @ (weights.abs() + beside).t()
    assert bool(((ours - rounded @ weights.t()).abs() <= bound + 1e-37).all())


@on_each_processor
@pytest.mark.parametrize("rows", [1, 3, 33])
@pytest.mark.parametrize("name", CASES)
def test_groups_of_every_size(name: str, rows: int) -> None:
    layer = layer_of(name)
    agrees_with_float64(layer, torch.randn(rows, layer.in_features))


@on_each_processor
@pytest.mark.parametrize("rows", [1, 20])
@pytest.mark.parametrize("name", ["int4 of 64, an odd number", "q4_1", "int8 of a row"])
def test_elements_of_every_magnitude(name: str, rows: int) -> None:
    layer = layer_of(name)
    columns = layer.in_features
    powers = 2.0 ** torch.linspace(-149, 100, columns)
    halves = torch.arange(columns) % 255 - 127.5
    halves[:: columns // layer.byte_groups] = 127  # the scale is 1, and most elements are between two integers
    outliers = torch.randn(columns)
    outliers[::100] *= 1e6
    for x in (powers, torch.zeros(columns), halves, torch.full((columns,), 2.0**-149), powers.flip(0), outliers):
        agrees_with_float64(layer, x.expand(rows, -1).contiguous())


@on_each_processor
@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("name", ["int4 of 64, an odd number", "q4_0", "int8 of a row"])
def test_infinite_elements_make_their_row_nan(name: str, value: float, rows: int) -> None:
    layer = layer_of(name)
    x = torch.randn(rows, layer.in_features)
    x[-1, 5] = value
    with torch.no_grad():
        expected, ours = layer(x), product(layer, x)
    assert bool(expected[-1].isnan().all()) and not bool(expected[:-1].isnan().any())
    torch.testing.assert_close(ours, expected, equal_nan=True, rtol=1e-4, atol=1e-3)


@on_each_processor
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes_of_activations(dtype: torch.dtype) -> None:
    layer = layer_of("q4_0").to(dtype)
    x = torch.randn(2, 5, layer.in_features).to(dtype)
    with torch.no_grad():
        expected = layer(x)
    ours = product(layer, x)
    assert ours.dtype is dtype
    torch.testing.assert_close(ours, expected)


@on_each_processor
def test_rows_that_vary() -> None:
    layer = layer_of("int4 of 64, an odd number")
    compiled = smelt.compile(layer, dynamic=True, options={"products": "own"})
    with torch.no_grad():
        for rows in (40, 3, 1, 300, 7, 2):
            x = torch.randn(rows, layer.in_features)
            torch.testing.assert_close(compiled(x), layer(x), rtol=1e-5, atol=1e-4)


# Kernels.


def kernels(rows: tuple[int, ...], orders: tuple[str, ...] = ("in order",)) -> list[Kernel]:
    """With every kind of integers that the orders have."""
    elements = (("f32", "", 0), ("u8", "", 1), ("", "f32", 0), ("i8", "f32", 8), ("", "", -3))
    return [
        written(m, 37, kind, order, x="i8", scale="f16", zero=zero, low=low, offset=offset)
        for m in rows
        for order in orders
        for kind in ("u4", "i4", *(() if "hal" in order else ("u8", "i8")))
        for zero, low, offset in elements
    ]


REGISTERS: list[dict[str, Any]] = [{}, {"vector_bits": 256, "vector_registers": 16, "fma_by_lane": False}]


@needs_dots
@pytest.mark.parametrize("form", [FixedPoint, ByteTiles], ids=lambda form: form.__name__)
@pytest.mark.parametrize("registers", REGISTERS, ids=str)
@pytest.mark.parametrize("order", SUMS)
def test_both_forms_with_every_kind_of_integers(
    order: str, registers: dict[str, Any], form: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In blocks of few rows, and panels of parts of a row."""
    if form is ByteTiles:
        monkeypatch.setattr(schedule, "fixed_point_of", lambda *args: None)
        monkeypatch.setattr(byte_tiles, "_BLOCK_ROWS", 12)
        monkeypatch.setattr(byte_tiles, "_PANEL_BYTES", 64)
    else:
        monkeypatch.setattr(schedule, "byte_tiles_of", lambda *args: None)
    agrees(kernels((1, 2, 3, 6) if form is FixedPoint else (1, 5, 29), (order,)), **registers)


@needs_dots
def test_weights_on_the_left() -> None:
    agrees([written(m, 11, kind, x="i8", transposed=True) for m in (1, 2, 6, 40) for kind in ("u4", "i8")])


@needs_dots
def test_rows_decide_the_form() -> None:
    target = replace(describe_host(), vector_bits=512)

    def form(m: int, **changes: Any) -> object:
        problem = oriented(problem_of(written(m, 1024, "u4", x="i8", zero="f32")))
        layout = layout_of(problem)
        assert not isinstance(layout, str)
        return schedule._byte_form(problem, layout, replace(target, **changes))

    assert isinstance(form(1), FixedPoint) and isinstance(form(64), ByteTiles)
    assert form(1, dots_bytes=False) is None and form(64, dots_bytes=False) is None


@on_each_processor
@pytest.mark.parametrize("activations", [None, "int8"])
@pytest.mark.parametrize("rows", [2, 70])
def test_heads_share_a_copy_of_the_left_factor(rows: int, activations: str | None) -> None:
    """The columns of a head are a batch of their own, because the factor of the result is the same for all heads."""
    weight = test_fixed_point.quantized(4, 6, 32, half=16).quantized.rows(torch.arange(36))
    layer = QuantizedLinear(weight, activations=activations)

    def multiplied(x: Tensor, factor: Tensor) -> Tensor:
        y: Tensor = layer(x)
        return y.view(rows, 3, 12) * factor[:, None]

    x, factor = torch.randn(rows, layer.in_features), torch.randn(rows, 12)
    with torch.no_grad():
        ours = smelt.compile(multiplied, options={"products": "own"})(x, factor)
        torch.testing.assert_close(ours, multiplied(x, factor), rtol=1e-5, atol=1e-4)
