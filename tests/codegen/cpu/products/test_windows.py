"""Convolutions in tiles: windows over an image's edge, in one block of the sum and in several."""

from dataclasses import replace

import pytest
import torch

from smelt.base.options import Options
from smelt.codegen import compile_kernels
from smelt.codegen.cpu.products import tile_shape, tiling
from smelt.codegen.cpu.products.plan import PRODUCTS
from smelt.device import find
from smelt.fuse.lowering.convolutions import Contraction, ConvolutionSteps, to_coarse, to_fine, to_weight
from smelt.ir.kernel import Axis, Buffer, Contract, Factor, Index, Kernel, Role, Stage, Store
from smelt.ops.promote import widened
from smelt.ops.record import OperandLayout
from smelt.symbolic.shapes import Shape, product
from tests.codegen.cpu.products.written import compiled_by
from tests.codegen.running import call

# Images, channels in and out, height, width, kernel, stride, padding, dilation.
FORMS: dict[str, tuple[int, ...]] = {
    "3x3": (2, 5, 9, 9, 14, 3, 1, 1, 1),
    "3x3 of wide rows": (1, 3, 8, 4, 53, 3, 1, 1, 1),
    "3x3 by two": (2, 5, 9, 9, 14, 3, 2, 1, 1),
    "7x7 by two": (1, 3, 10, 17, 19, 7, 2, 3, 1),
    "9x9": (1, 2, 9, 12, 13, 9, 1, 4, 1),
    "1x1, padded": (2, 6, 9, 5, 6, 1, 1, 1, 1),
    "dilated": (1, 4, 9, 11, 12, 3, 1, 2, 2),
    "more padding than image": (1, 3, 5, 2, 3, 2, 1, 4, 1),
    "many channels": (1, 150, 13, 5, 7, 3, 1, 1, 1),
}
FORMATS = {"rows": torch.contiguous_format, "channels last": torch.channels_last}


def kernel_of(made: Contraction, dtypes: tuple[torch.dtype, torch.dtype], sizes: tuple[int, int]) -> Kernel:
    """The kernel of a contraction alone, its operands `a` and `b`."""
    shape, stride, rule = made.shape, made.stride, made.rule
    order = sorted((dim for dim in range(len(shape)) if shape[dim] != 1), key=lambda dim: -stride[dim])
    inner = rule.cols(shape, stride)
    axes = tuple(Axis(f"k{number}", size) for number, size in enumerate(rule.axes))

    def index(steps: Shape, along: Shape, offset: int) -> Index:
        terms = [(f"p{dim}", steps[dim]) for dim in order] + [(a.name, s) for a, s in zip(axes, along, strict=True)]
        return Index(tuple(term for term in terms if term[1]), offset)

    factors = []
    for name, read in zip("ba" if made.swapped else "ab", rule.factors, strict=True):
        bounds = tuple((index(each.stride, each.along, each.offset), each.extent) for each in read.bounds)
        factors.append(Factor(name, index(read.stride, read.along, read.offset), bounds))
    summed = widened(dtypes[0])
    contract = Contract("p", axes, factors[0], factors[1], summed)
    buffers = [Buffer(name, dtype, size, Role.INPUT) for name, dtype, size in zip("ab", dtypes, sizes, strict=True)]
    buffers.append(Buffer("y", summed, product(shape), Role.OUTPUT))
    rows = tuple(Axis(f"p{dim}", shape[dim]) for dim in order if stride[dim] >= inner)
    cols = tuple(Axis(f"p{dim}", shape[dim]) for dim in order if stride[dim] < inner)
    store = Store("y", index(stride, (0,) * len(axes), 0), "p")
    return Kernel("convolution", rows, cols, tuple(buffers), (Stage(True, (contract, store)),))


def layout(tensor: torch.Tensor) -> OperandLayout:
    return OperandLayout(tuple(tensor.shape), tensor.stride())


def computed(made: Contraction, first: torch.Tensor, second: torch.Tensor, threads: int) -> torch.Tensor:
    kernel = kernel_of(made, (first.dtype, second.dtype), (first.numel(), second.numel()))
    compiled = compile_kernels([kernel], Options(check_specs=True))[kernel.name]
    memory = torch.full((product(made.shape),), torch.nan, dtype=widened(first.dtype))
    flat = [tensor.as_strided((tensor.numel(),), (1,)) for tensor in (first, second)]
    call(compiled, [*flat, memory], threads)
    return memory.as_strided(made.layout.shape, made.layout.stride, made.layout.offset)


def check(found: torch.Tensor, exact: torch.Tensor, terms: int) -> None:
    rounding = 2.0 ** (-52 if found.dtype is torch.float64 else -23)
    assert float((found - exact).abs().max()) <= 4 * rounding * terms**0.5 * max(1.0, float(exact.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("form", FORMS)
def test_windows(form: str, memory_format: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tile_shape, "_BLOCK_DEPTH", 100)  # which no window divides
    torch.manual_seed(0)
    n, c, o, h, w, k, stride, padding, dilation = FORMS[form]
    how = FORMATS[memory_format]
    x = torch.randn(n, c, h, w).to(dtype).to(memory_format=how)
    weight = torch.randn(o, c, k, k).to(dtype).to(memory_format=how)
    steps = ConvolutionSteps.of(2, [stride], [padding], [dilation], 1)
    wide = [tensor.double().requires_grad_() for tensor in (x, weight)]
    exact = torch.nn.functional.conv2d(wide[0], wide[1], None, stride, padding, dilation)
    grad = torch.randn(exact.shape).to(dtype).to(memory_format=how)
    to_x, to_w = torch.autograd.grad(exact, wide, grad.double())
    found = computed(to_coarse(layout(x), layout(weight), steps, layout(grad)), x, weight, 1)
    check(found, exact.detach(), c * k * k)
    check(computed(to_fine(layout(grad), layout(weight), steps, layout(x)), grad, weight, 2), to_x, o * k * k)
    check(computed(to_weight(layout(grad), layout(x), steps, layout(weight)), grad, x, 1), to_w, grad[:, 0].numel())


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "packed for each"])
@pytest.mark.parametrize("sizes", [(40, 30), (8, 40), (30, 5)], ids=str)
def test_right_panels_of_several_blocks(sizes: tuple[int, int], kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of rows, of cols and of the sum: several of each, with the same right panels or not."""
    monkeypatch.setattr(tile_shape, "_BLOCK_DEPTH", 50)
    monkeypatch.setattr(tile_shape, "_UNIT_WORTH", 1)
    monkeypatch.setattr(tile_shape, "_FEW_PANELS", 1)
    for module in (tile_shape, tiling):
        monkeypatch.setattr(module, "KEPT", 1 << 20 if kept else 0)
    torch.manual_seed(0)
    out, width = sizes
    # Of other sizes than in other tests, whose code would be found again.
    x, weight = torch.randn(1, 17 + kept, 3, width), torch.randn(out, 17 + kept, 3, 3)
    exact = torch.nn.functional.conv2d(x.double(), weight.double(), padding=1)
    made = to_coarse(layout(x), layout(weight), ConvolutionSteps.of(2, [1], [1], [1], 1), layout(exact))
    for threads in (1, 3):
        check(computed(made, x, weight, threads), exact, 162)


@pytest.mark.parametrize("stride", [3, 4], ids=str)
def test_the_last_panel_may_reach_as_far_as_a_whole_one(stride: int) -> None:
    """Six points that lie as far apart as twelve side by side are no twelve, nor is any number of others."""
    torch.manual_seed(0)
    x, weight = torch.randn(1, 3, 7, 10, 3), torch.randn(24, 1, 1, 3, 1)
    steps = ConvolutionSteps.of(3, [1, stride, 1], [0, 1, 0], [1, 3, 1], 3)
    given = (steps.stride, steps.padding, steps.dilation, steps.groups)
    exact = torch.nn.functional.conv3d(x.double(), weight.double(), None, *given)
    check(computed(to_coarse(layout(x), layout(weight), steps, layout(exact)), x, weight, 1), exact, 3)


def test_windows_are_tiled() -> None:
    """Or the tests above would test something else."""
    x, weight, y = torch.empty(1, 64, 14, 14), torch.empty(64, 64, 3, 3), torch.empty(1, 64, 14, 14)
    made = to_coarse(layout(x), layout(weight), ConvolutionSteps.of(2, [1], [1], [1], 1), layout(y))
    kernel = kernel_of(made, (x.dtype, x.dtype), (x.numel(), weight.numel()))
    assert PRODUCTS.plan(kernel, find("cpu")).schedule.name == "tiled"


def tiling_of(made: Contraction, x: torch.Tensor, weight: torch.Tensor) -> tiling.Tiling:
    kernel = kernel_of(made, (x.dtype, weight.dtype), (x.numel(), weight.numel()))
    return tiling.Tiling.of(PRODUCTS.plan(kernel, find("cpu"), "tiled").problem, find("cpu"))


@pytest.mark.parametrize(("images", "side", "most"), [(5, 3, 516), (7, 4, 40), (3, 7, 20), (41, 1, 100)])
def test_small_images_are_beside_each_other(images: int, side: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks of cols that hold whole images: a panel may have points of several."""
    monkeypatch.setattr(tile_shape, "_BLOCK_COLS", most)
    monkeypatch.setattr(tile_shape, "_BLOCK_DEPTH", 100)
    torch.manual_seed(0)
    x, weight = torch.randn(images, 19, side, side), torch.randn(21, 19, 3, 3)
    exact = torch.nn.functional.conv2d(x.double(), weight.double(), padding=1)
    made = to_coarse(layout(x), layout(weight), ConvolutionSteps.of(2, [1], [1], [1], 1), layout(exact))
    found = tiling_of(made, x, weight)
    assert [axis.size for axis in found.beside] == ([images] if side > 1 else [])
    assert side == 1 or found.blocks(found.sizes).cols % side**2 == 0
    for threads in (1, 3):
        check(computed(made, x, weight, threads), exact, 19 * 9)


def test_large_images_are_not() -> None:
    x, weight, y = torch.empty(2, 3, 24, 24), torch.empty(16, 3, 3, 3), torch.empty(2, 16, 24, 24)
    made = to_coarse(layout(x), layout(weight), ConvolutionSteps.of(2, [1], [1], [1], 1), layout(y))
    found = tiling_of(made, x, weight)
    assert not found.beside and [axis.size for axis in found.outer] == [2]


@pytest.mark.parametrize("by_lane", [True, False])
@pytest.mark.parametrize(("out", "channels", "most"), [(21, 19, 100), (17, 2, 7), (40, 5, 512), (64, 1, 3)])
def test_filters_for_few_pixels_are_read_where_they_are(
    out: int, channels: int, most: int, by_lane: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that no tile has all of, and blocks of the sum that are no whole vectors."""
    monkeypatch.setattr(tile_shape, "_BLOCK_DEPTH", most)
    monkeypatch.setattr(tile_shape, "_UNIT_WORTH", 1)
    torch.manual_seed(0)
    target = replace(find("cpu"), fma_by_lane=by_lane, vector_registers=32)
    for images, side in ((1, 3), (1, 4), (3, 2)):
        x, weight = torch.randn(images, channels, side, side), torch.randn(out, channels, 3, 3)
        exact = torch.nn.functional.conv2d(x.double(), weight.double(), padding=1)
        made = to_coarse(layout(x), layout(weight), ConvolutionSteps.of(2, [1], [1], [1], 1), layout(exact))
        kernel = kernel_of(made, (x.dtype, x.dtype), (x.numel(), weight.numel()))
        (compiled,) = compiled_by([kernel], ["tiled"], target)
        assert tiling.Tiling.of(PRODUCTS.plan(kernel, target, "tiled").problem, target).stays
        memory = torch.full((product(made.shape),), torch.nan)
        for threads in (1, 3):
            call(compiled, [x.flatten(), weight.flatten(), memory], threads)
            check(memory.as_strided(made.layout.shape, made.layout.stride, made.layout.offset), exact, channels * 9)


def test_they_are_packed_for_many() -> None:
    x, weight, y = torch.empty(1, 64, 14, 14), torch.empty(64, 64, 3, 3), torch.empty(1, 64, 14, 14)
    made = to_coarse(layout(x), layout(weight), ConvolutionSteps.of(2, [1], [1], [1], 1), layout(y))
    assert not tiling_of(made, x, weight).stays
