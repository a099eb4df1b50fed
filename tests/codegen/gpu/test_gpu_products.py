"""Products by GPU schedules: random ones on the host, a warp as a vector, against float64; and as PTX."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import smelt
from smelt.codegen.gpu.grid_plan import plan
from smelt.codegen.gpu.products import product_tiles
from smelt.codegen.gpu.products.product_tiles import SHAPES, TileShape, why_no_tile
from smelt.ir.kernel import Kernel
from smelt.ir.text import format_kernel
from smelt.symbolic.expressions import ShapeEnv
from tests.codegen.cpu.products.bounds import differences
from tests.codegen.cpu.products.generated import product_of
from tests.codegen.cpu.products.running import filled
from tests.codegen.gpu.on_host import OnHost
from tests.codegen.gpu.running import at
from tests.codegen.gpu.test_ptx import CHIPS, assembled, assembled_here, ptx_of
from tests.deploy.models import MODELS
from tests.kernel_text import parse_kernel
from tests.simt_host.offer import SIMT_HOST
from tests.simt_host.warps import describe_host_warps

SMALL = (TileShape(16, 16, 4, 4, 4), TileShape(8, 16, 8, 2, 4), TileShape(16, 8, 4, 4, 2), TileShape(4, 4, 4, 1, 1))


def linear(rows: int = 100, cols: int = 200, terms: int = 300) -> Kernel:
    return parse_kernel(
        f"kernel linear rows(i:{rows}) cols(j:{cols})\n in x: f32[{rows * terms}]\n in w: f32[{cols * terms}]\n"
        f" in b: f32[{cols}]\n out y: f32[{rows * cols}]\n loop:\n"
        f" p = contract (k:{terms}) x[{terms}*i + k], w[{terms}*j + k] : f32\n"
        f" v1 = load b[j]\n v2 = add p, v1 : f32\n store y[{cols}*i + j] = v2\n"
    )


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many tiles of few points, and few terms a part."""
    monkeypatch.setattr(product_tiles, "SHAPES", SMALL)
    monkeypatch.setattr(product_tiles, "_LEAST", 4)
    monkeypatch.setattr(product_tiles, "_LEAST_TERMS", 8)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("numbers", [range(24), pytest.param(range(24, 200), marks=pytest.mark.slow)], ids=str)
def test_random_products(numbers: range) -> None:
    for number in numbers:
        kernel = product_of(number)
        before = filled(kernel, number)
        after = [each.clone() for each in before]
        OnHost(kernel, warp=4).run(after, {})
        assert not list(differences(kernel, before, after)), format_kernel(kernel)


@pytest.mark.usefixtures("small_tiles")
def test_random_products_in_symbols() -> None:
    for number in range(12):
        shape_env = ShapeEnv()
        kernel = product_of(number, shape_env)
        sizes = {symbol.text: symbol.example for symbol in shape_env.symbols}
        built = OnHost(kernel, warp=4)
        plain = at(kernel, sizes)
        assert isinstance(plain, Kernel)
        before = filled(plain, number)
        after = [each.clone() for each in before]
        built.run(after, sizes)
        assert not list(differences(plain, before, after)), format_kernel(plain)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape_of_a_tile(shape: TileShape, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product_tiles, "SHAPES", (shape,))
    monkeypatch.setattr(product_tiles, "_LEAST", 1000)
    monkeypatch.setattr(product_tiles, "_LEAST_TERMS", 1 << 20)
    kernel = linear(130, 70, 37)
    OnHost(kernel).check(atol=1e-4)


def test_many_terms_of_few_points_are_shared() -> None:
    kernel = linear(20, 20, 5001)
    made = plan(kernel, describe_host_warps("test", 8))
    assert len(made.phases) == 2 and made.phases[0].blocks > 8
    OnHost(kernel).check(atol=1e-3)


def test_attention_has_no_grid() -> None:
    kernel = linear()
    assert why_no_tile(kernel) is None
    whole = replace(kernel.stages[0].body[0], dtype=torch.int64)  # type: ignore[type-var]
    body = (whole, *kernel.stages[0].body[1:])
    assert why_no_tile(replace(kernel, stages=(replace(kernel.stages[0], body=body),))) is not None


@assembled_here
@pytest.mark.parametrize("chip", CHIPS)
def test_ptx_is_assembled_with_few_registers(chip: str, tmp_path: Path) -> None:
    kernels = {"large": linear(1024, 4096, 768), "middle": linear(300, 300, 768), "row": linear(1, 768, 768)}
    found = assembled(ptx_of(kernels, chip), chip, tmp_path)
    assert {name.rpartition("_")[0] for name in found} == set(kernels)
    for name, (registers, spilled) in found.items():  # the largest tile has 64 sums in registers, and two blocks fit
        assert registers <= 128 and spilled <= 64, (name, registers, spilled)


@pytest.mark.parametrize("name", ["gpt2", "resnet"])
def test_models_need_no_library(name: str) -> None:
    torch.manual_seed(0)
    model, args, kwargs = MODELS[name]()
    compiled = smelt.compile(model, fullgraph=True, options={"library": "none", "target": SIMT_HOST})
    with torch.no_grad():
        want, got = (next(iter(each(*args, **kwargs).values())) for each in (model, compiled))
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


def test_attention_is_trained_without_a_library() -> None:
    def loss(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).sin().sum()

    torch.manual_seed(0)
    given = [torch.randn(2, 2, 9, 8, requires_grad=True) for _ in range(3)]
    compiled = smelt.compile(loss, fullgraph=True, options={"library": "none", "target": SIMT_HOST})
    found, wanted = (torch.autograd.grad(each(*given), given) for each in (compiled, loss))
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
