"""Products in tiles: every rest of a tile in every direction, all layouts, types, blocks and epilogues."""

import pytest
import torch

from smelt.codegen.cpu.products import tile_shape
from smelt.codegen.cpu.products.tile_shape import TileShape
from smelt.device import find
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


def test_blocks_of_their_own_size(busy: None) -> None:
    same_as_reference([product(300, 800, 900), product(270, 50, 1500, epilogue=True)], "tiled", threads=(1, 2))


def test_nothing_to_sum_or_to_compute() -> None:
    same_as_reference([product(5, 6, 0), product(5, 6, 0, epilogue=True)], "tiled")
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
