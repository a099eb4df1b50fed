"""Products in tiles: every rest of a tile in every direction, all layouts, types, blocks and epilogues."""

import pytest
import torch

from smelt.codegen.cpu.products import tile_shape, tiling
from smelt.codegen.cpu.products.plan import SCHEDULES
from smelt.codegen.cpu.products.problem import ProductAxis, problem_of
from smelt.codegen.cpu.products.step_runs import period
from smelt.codegen.cpu.products.tile_shape import TileShape
from smelt.device import find
from smelt.ir.check_kernel import check_kernel, contraction_of
from smelt.ir.kernel import Kernel
from tests.codegen.cpu.products.written import BF16, F16, F32, F64, product, same_as_reference
from tests.ir.products import WRITTEN
from tests.kernel_text import parse_kernel

TILE = TileShape.of(F32, find("cpu"))
LAYOUTS = [("bik", "bkj"), ("bik", "bjk"), ("bki", "bkj"), ("bki", "bjk"), ("kib", "jkb")]


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Share out even the smallest product between threads."""
    monkeypatch.setattr(tile_shape, "_UNIT_WORTH", 1)


@pytest.mark.parametrize(("left", "right"), LAYOUTS)
def test_every_rest_of_a_tile(left: str, right: str, busy: None) -> None:
    sizes = [(m, TILE.cols, 8) for m in range(1, 2 * TILE.rows + 2)]
    sizes += [(TILE.rows, n, 8) for n in range(1, 2 * TILE.cols + 2)]
    sizes += [(TILE.rows + 1, TILE.cols + 1, k) for k in range(1, 10)]
    same_as_reference([product(*size, left=left, right=right) for size in sizes], "tiled", threads=(1, 2))


@pytest.mark.parametrize("dtype", [F32, F64, BF16, F16])
@pytest.mark.parametrize(("left", "right"), LAYOUTS)
def test_types_and_layouts(dtype: torch.dtype, left: str, right: str, busy: None) -> None:
    sizes = [(1, 1, 1), (5, 7, 3), (33, 29, 17), (2, 100, 5), (100, 2, 6)]
    same_as_reference(
        [product(*size, batch=3, left=left, right=right, dtype=dtype) for size in sizes], "tiled", threads=(1, 3)
    )


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("dtype", [F32, F64, BF16])
def test_epilogues(dtype: torch.dtype, in_place: bool, busy: None) -> None:
    sizes = [(m, n, 9) for m in (1, 7, 8, 30) for n in (1, 3, 11, 12, 31, 48, 50)]
    same_as_reference([product(*size, dtype=dtype, epilogue=True, in_place=in_place) for size in sizes], "tiled")


@pytest.mark.parametrize("in_place", [False, True])
def test_many_blocks(monkeypatch: pytest.MonkeyPatch, busy: None, in_place: bool) -> None:
    """Blocks so small that every product has several in every direction, with rests."""
    for name, size in (("_BLOCK_DEPTH", 12), ("_BLOCK_ROWS", 2 * TILE.rows), ("_BLOCK_COLS", 2 * TILE.cols)):
        monkeypatch.setattr(tile_shape, name, size)
    sizes = [(7, 13, 13), (40, 61, 24), (41, 60, 37), (17, 200, 25), (65, 25, 50)]
    for epilogue in (False, True):
        same_as_reference([product(*size, epilogue=epilogue, in_place=in_place) for size in sizes], "tiled")


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("depth", [512, 12])
def test_weights_that_stay_where_they_are(
    monkeypatch: pytest.MonkeyPatch, busy: None, depth: int, in_place: bool
) -> None:
    """The right factor is contiguous along the sum: tiles of the transposes, with rests, one block or several."""
    monkeypatch.setattr(tile_shape, "_BLOCK_DEPTH", depth)
    sizes = [(m, n, 70) for m in (1, 7, 8, 9, 30) for n in (33, 64, 71)] + [(3, 200, 6), (20, 150, 41), (33, 65, 67)]
    for epilogue in (False, True):
        made = [product(*each, right="bjk", epilogue=epilogue, in_place=in_place) for each in sizes]
        same_as_reference(made, "tiled")
        same_as_reference([product(9, 70, 30, batch=3, left="bki", right="bjk", epilogue=epilogue)], "tiled")
        same_as_reference([product(9, 70, 30, batch=3, left="ibk", right="jk", epilogue=epilogue)], "tiled")
    if find("cpu").fma_by_lane:
        assert all(tiling.Tiling.of(problem_of(each), find("cpu")).is_transposed for each in made)


def test_blocks_of_their_own_size(busy: None) -> None:
    same_as_reference([product(300, 800, 900), product(270, 50, 1500, epilogue=True)], "tiled", threads=(1, 2))


def _spread_out(m: int, n: int, steps: tuple[int, int], where: str = "") -> Kernel:
    """Rows of x and columns of w that are `steps` apart, the sum across them."""
    x, w = (step * (size - 1) + 1 for step, size in zip(steps, (m, n), strict=True))
    text = f"""
kernel spread_{m}_{n}_{steps[0]}_{steps[1]} rows(i:{m}) cols(j:{n})
  in x: f32[{5 * x}]
  in w: f32[{5 * w}]
  out y: f32[{m * n}]
  loop:
    p = contract (k:5) x[{steps[0]}*i + {x}*k], w[{steps[1]}*j + {w}*k]{where} : f32
    store y[{n}*i + j] = p
"""
    return parse_kernel(text)


@pytest.mark.parametrize("where", ["", " where k - 1 below 3", " where j + k - 1 below 6"])
def test_a_part_of_a_panel_that_reaches_as_far_as_a_whole_one(where: str) -> None:
    """Two columns 11 apart are not twelve side by side."""

    def reaching(width: int) -> list[tuple[int, int]]:
        return [(points, (width - 1) // (points - 1)) for points in range(2, width) if (width - 1) % (points - 1) == 0]

    kernels = [_spread_out(m, 14, (step, 1), where) for m, step in reaching(TILE.rows)]
    for n, step in reaching(TILE.cols):
        kernels += [_spread_out(9, n + more, (1, step), where) for more in (0, TILE.cols)]
    assert len(kernels) > 2
    same_as_reference(kernels, "tiled")


NOTHING = {
    "no step": "p = contract (k:0) x[i], w[j] : f32",
    "no step along one axis": "p = contract (h:3, k:0) x[i + 7*h], w[j] : f32",
    "no step along the outer of two": "p = contract (h:0, k:3) x[i + k], w[j + k] : f32",
    "steps out of bounds": "p = contract (k:3) x[i + 7*k], w[j + 9*k] where k + 3 below 2 : f32",
    "rows out of bounds": "p = contract (k:3) x[3*i + k] where i - 7 below 9, w[j + 9*k] : f32",
    "no steps to sum, out of bounds": "p = contract () x[i], w[j] where j + 1 below 0 : f32",
    "windows out of bounds": "p = contract (c:3, k:3) x[i + c + k], w[j + 9*c + k] where j + k + 20 below 9 : f32",
    "channels out of bounds": "p = contract (k:3, c:4) x[i + k + c], w[j + 4*k + c] where j + k + 20 below 9 : f32",
    "both out of bounds": "p = contract (k:3) x[k] where k + 3 below 1, w[j + k] where k - 4 below 9 : f32",
}


@pytest.mark.parametrize("contraction", NOTHING.values(), ids=NOTHING)
def test_factors_without_an_element(contraction: str) -> None:
    """Nothing of a factor is read where all of it is out of bounds: there may be no memory."""
    text = f"""
kernel nothing rows(i:7) cols(j:9)
  in x: f32[{0 if "i - 7" in contraction or "x[k] where" in contraction else 21}]
  in w: f32[{0 if "where j" in contraction or "where k" in contraction else 27}]
  in b: f32[9]
  out y: f32[63]
  loop:
    {contraction}
    v0 = load b[j]
    v1 = add p, v0 : f32
    store y[9*i + j] = v1
"""
    kernel, target = parse_kernel(text), find("cpu")
    check_kernel(kernel)
    taken = [each.name for each in SCHEDULES if each.why_not(problem_of(kernel), target) is None]
    assert taken == ["tiled"]
    same_as_reference([kernel], "tiled", threads=(1, 2))


def test_windows_are_packed_by_channels_that_never_go_back() -> None:
    """What is out of bounds is read at the beginning of the buffer, as much further on as the sum has moved."""
    factor = parse_kernel("""
kernel back rows() cols(w:12)
  in x: f32[93]
  in f: f32[72]
  out y: f32[12]
  loop:
    p = contract (a:2, b:6, j:3) f[18*a + 3*b + j], x[w + a + 16*b + j - 1] where w + j - 1 below 12 : f32
    store y[w] = p
""")
    contract = contraction_of(factor)
    assert contract is not None
    a, b, j = (ProductAxis(axis.name, int(axis.size), 0, 0) for axis in contract.axes)
    assert period(contract.right, (b, j)) == period(contract.right, (b, a, j)) == 3
    assert period(contract.right, (a, b, j)) == 0


def test_nothing_to_sum_or_to_compute() -> None:
    same_as_reference([product(5, 6, 0), product(5, 6, 0, epilogue=True)], "tiled")
    same_as_reference([product(5, 6, 0), product(1, 40, 0, right="bjk", epilogue=True)])  # by whichever is chosen
    same_as_reference([product(0, 6, 3), product(5, 0, 3), product(5, 6, 3, batch=0)], "tiled")


def test_factors_of_different_types() -> None:
    text = """
kernel mixed rows(i:9) cols(j:14)
  in x: bf16[63]
  in w: f32[98]
  out y: f32[126]
  loop:
    p = contract (k:7) x[7*i + k], w[14*k + j] : f32
    store y[14*i + j] = p
"""
    same_as_reference([parse_kernel(text)], "tiled")


def _written(name: str) -> Kernel:
    return parse_kernel(WRITTEN[name].text)


def test_written_ones(busy: None) -> None:
    same_as_reference([_written(name) for name in WRITTEN], "tiled")
