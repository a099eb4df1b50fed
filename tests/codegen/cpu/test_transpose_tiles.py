"""Reads along another axis than the writes: turned round in tiles, whatever the dtype, the sizes and the axes."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from smelt.codegen import build
from smelt.codegen.cpu import schedule
from smelt.codegen.cpu import target as cpu
from smelt.codegen.cpu.schedule import Split
from smelt.codegen.cpu.schedule_passes import plan
from smelt.device import Target, find, register
from smelt.ir.kernel import Kernel
from tests.codegen.cpu.test_kernels import same_as_reference
from tests.kernel_text import parse_kernel


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Share out even the smallest kernel between threads."""
    monkeypatch.setattr(schedule, "GRAIN", 1)


def split_of(kernel: Kernel) -> Split:
    return plan(kernel, find("cpu")).split


def turned(rows: int, cols: int, dtype: str = "f32", pitch: int = 0) -> Kernel:
    """`y = x.t()`, x with `pitch` elements between its lines."""
    pitch = pitch or rows
    return parse_kernel(
        f"kernel turned rows(i:{rows}) cols(j:{cols})\n in x: {dtype}[{pitch * cols}]\n out y: {dtype}[{rows * cols}]\n"
        f" loop:\n a = load x[i + {pitch}*j]\n store y[{cols}*i + j] = a"
    )


SIZES = [(16, 16), (128, 128), (129, 16), (16, 131), (150, 140), (257, 300), (20, 1000), (1000, 20)]


@pytest.mark.parametrize(("rows", "cols"), SIZES)
def test_transposes_of_all_sizes(rows: int, cols: int, busy: None) -> None:
    kernel = turned(rows, cols)
    assert split_of(kernel) is Split.TILES
    same_as_reference(kernel)
    same_as_reference(turned(rows, cols, pitch=rows + 3))


@pytest.mark.parametrize("dtype", ["f64", "bf16", "f16", "i64", "i32", "i16", "i8", "u8", "bool"])
def test_transposes_of_all_dtypes(dtype: str, busy: None) -> None:
    kernel = turned(70, 90, dtype)
    assert split_of(kernel) is Split.TILES
    same_as_reference(kernel)


@pytest.mark.parametrize(("rows", "cols"), [(3, 200), (200, 3), (1, 64)])
def test_what_is_narrower_than_a_block_is_not_turned(rows: int, cols: int, busy: None) -> None:
    kernel = turned(rows, cols)
    assert split_of(kernel) is not Split.TILES
    same_as_reference(kernel)


def test_several_reads_and_one_straight(busy: None) -> None:
    kernel = parse_kernel(
        "kernel k rows(i:40) cols(j:50)\n in x: f32[2000]\n in y: f32[2000]\n in z: bf16[2000]\n in w: f32[50]\n"
        " out o: f32[2000]\n loop:\n a = load x[50*i + j]\n b = load y[i + 40*j]\n c = load z[i + 40*j]\n"
        " d = cast c : f32\n e = load w[j]\n f = add a, b : f32\n g = mul f, d : f32\n h = add g, e : f32\n"
        " p = position 50*i + j\n q = cast p : f32\n r = add h, q : f32\n store o[50*i + j] = r"
    )
    assert split_of(kernel) is Split.TILES
    ahead = plan(kernel, replace(find("cpu"), prefetch_next_row=True))
    assert [load.buffer for load in ahead.fetched] == ["x"]  # what is read straight; w is the same for all rows
    assert ahead.tile is not None and ahead.fetched_rows * ahead.tile.width * 4 >= 1536  # few rows of a wide tile
    assert not plan(kernel, replace(find("cpu"), prefetch_next_row=False)).fetched
    same_as_reference(kernel)


@pytest.mark.parametrize("cols", [4, 6, 12, 20])
def test_tiles_with_fewer_lines_than_are_read_side_by_side(cols: int, busy: None) -> None:
    kernel = turned(70, cols)
    made = plan(kernel, find("cpu"))
    assert made.tile is not None and made.tile.width <= cols
    same_as_reference(kernel)


def test_tiles_follow_each_other_along_the_rows_that_are_written() -> None:
    made = plan(turned(1000, 1000), find("cpu"))
    assert made.tile is not None
    assert [axis.name for axis in made.tile_axes] == [f"{made.tile.down.name}.tile", f"{made.tile.along.name}.tile"]


@pytest.mark.parametrize("strides", ["5*b + i + 250*j", "10250*b + i + 50*j", "i + 41*j"])
def test_batches_of_transposes(strides: str, busy: None) -> None:
    """The axis between rows and cols is the one read by single steps; other rows have any strides, none too."""
    kernel = parse_kernel(
        "kernel k rows(b:5, i:41) cols(j:34)\n in x: f32[60000]\n out y: f32[6970]\n loop:\n"
        f" a = load x[{strides}]\n store y[1394*b + 34*i + j] = a"
    )
    assert split_of(kernel) is Split.TILES
    same_as_reference(kernel)


@pytest.mark.parametrize(("side", "tiles"), [(64, True), (70, False)])
def test_updates_in_place_run_every_point_once(side: int, tiles: bool, busy: None) -> None:
    kernel = parse_kernel(
        f"kernel k rows(i:{side}) cols(j:{side})\n inout x: f32[{side * side}]\n in y: f32[{side * side}]\n loop:\n"
        f" a = load x[{side}*i + j]\n b = load y[i + {side}*j]\n c = add a, b : f32\n store x[{side}*i + j] = c"
    )
    assert (split_of(kernel) is Split.TILES) is tiles
    same_as_reference(kernel)


def test_a_matrix_and_its_own_transpose(busy: None) -> None:
    kernel = parse_kernel(
        "kernel k rows(i:45) cols(j:45)\n in x: f32[2025]\n out y: f32[2025]\n loop:\n"
        " a = load x[45*i + j]\n b = load x[i + 45*j]\n c = add a, b : f32\n store y[45*i + j] = c"
    )
    assert split_of(kernel) is Split.TILES
    same_as_reference(kernel)


def test_flipped_lines_are_read_as_they_were(busy: None) -> None:
    kernel = parse_kernel(
        "kernel k rows(i:40) cols(j:40)\n in x: f32[1600]\n out y: f32[1600]\n loop:\n"
        " a = load x[-1*i + 40*j + 39]\n store y[40*i + j] = a"
    )
    same_as_reference(kernel)


@pytest.fixture
def wide(busy: None) -> Iterator[Target]:
    """This machine, if it turned squares of 16 × 16 and wrote them past the cache, however few."""
    target = replace(
        cpu.describe_host(), transpose_register_bits=512, nontemporal_min_bytes=1, transpose_tile_bytes=(512, 256)
    )
    register("cpu", lambda: target)
    build.forget()
    yield target
    register("cpu", cpu.describe_host)
    build.forget()


@pytest.mark.parametrize(("rows", "cols"), [*SIZES, (40, 64), (70, 80), (64, 1024), (6, 9), (4, 40)])
def test_squares_of_sixteen(rows: int, cols: int, wide: Target) -> None:
    kernel = turned(rows, cols)
    made = plan(kernel, wide).tile
    assert made is not None and made.block == (16 if min(rows, cols) >= 16 else 4)
    assert made.nontemporal is (cols % 16 == 0)
    assert made.nontemporal is ("!nontemporal" in build.module_text([kernel], wide))
    same_as_reference(kernel)


@pytest.mark.parametrize("dtype", ["f64", "bf16", "f16", "i64", "i32", "i16", "i8", "u8", "bool"])
def test_squares_of_sixteen_of_all_dtypes(dtype: str, wide: Target) -> None:
    for cols in (90, 128):
        same_as_reference(turned(70, cols, dtype))


def test_what_does_not_begin_with_a_cache_line_goes_through_the_cache(wide: Target) -> None:
    kernel = parse_kernel(
        "kernel k rows(i:48) cols(j:64)\n in x: f32[3072]\n out y: f32[3073]\n loop:\n"
        " a = load x[i + 48*j]\n store y[64*i + j + 1] = a"
    )
    assert "!nontemporal" in build.module_text([kernel], wide)  # it is told apart when it runs
    same_as_reference(kernel)


def test_little_and_what_is_read_as_well_goes_through_the_cache(wide: Target) -> None:
    assert "!nontemporal" not in build.module_text(
        [turned(64, 64)], replace(wide, nontemporal_min_bytes=64 * 64 * 4 + 1)
    )
    assert "!nontemporal" not in build.module_text([turned(64, 64)], replace(wide, nontemporal_min_bytes=0))
    kernel = parse_kernel(
        "kernel k rows(i:64) cols(j:64)\n inout x: f32[4096]\n in y: f32[4096]\n loop:\n"
        " a = load x[64*i + j]\n b = load y[i + 64*j]\n c = add a, b : f32\n store x[64*i + j] = c"
    )
    assert "!nontemporal" not in build.module_text([kernel], wide)
    same_as_reference(kernel)
