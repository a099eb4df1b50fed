"""Products that leave the right factor in place: every rest of tiles, vectors and blocks, all types and epilogues."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from smelt.codegen.cpu.products import dot, few_rows, streamed_blocks
from smelt.codegen.cpu.products.plan import PRODUCTS
from smelt.codegen.cpu.products.problem import problem_of
from smelt.codegen.cpu.products.tiling import Tiling
from smelt.device import find
from smelt.ir.kernel import Kernel
from tests.codegen.cpu.products.running import guarded
from tests.codegen.cpu.products.written import BF16, F16, F32, F64, compiled_by, filled, product, same_as_reference
from tests.codegen.running import call
from tests.kernel_text import parse_kernel

# What each takes: the right factor contiguous along the sum, or along columns; the left one anyhow.
LAYOUTS = [("dot", "bik", "bjk"), ("dot", "bki", "bjk"), ("few rows", "bik", "bkj"), ("few rows", "bki", "bkj")]
BOTH = [("dot", "bjk"), ("few rows", "bkj")]


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Share out even the smallest product between threads."""
    monkeypatch.setattr(streamed_blocks, "_GRAIN", 1)


@pytest.mark.parametrize(("schedule", "left", "right"), LAYOUTS)
def test_every_rest_of_a_tile(schedule: str, left: str, right: str, busy: None) -> None:
    sizes = [(m, 13, 9) for m in range(1, 18)] + [(1, n, 21) for n in range(2, 35)] + [(9, n, 7) for n in range(2, 35)]
    sizes += [(5, 11, k) for k in range(4, 20)]
    sizes += [(1, 19, k) for k in range(4, 70, 3)] + [(2, 9, k) for k in range(60, 77)]
    same_as_reference([product(*size, left=left, right=right) for size in sizes], schedule, threads=(1, 3))


@pytest.mark.parametrize("dtype", [F32, F64, BF16, F16])
@pytest.mark.parametrize(("schedule", "left", "right"), LAYOUTS)
def test_types_and_batches(dtype: torch.dtype, schedule: str, left: str, right: str, busy: None) -> None:
    sizes = [(1, 5, 4), (5, 7, 6), (33, 29, 17), (2, 100, 5), (100, 3, 6), (1, 300, 33)]
    kernels = [product(*size, batch=3, left=left, right=right, dtype=dtype) for size in sizes]
    same_as_reference(kernels, schedule, threads=(1, 2, 5))


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("dtype", [F32, F64, BF16])
@pytest.mark.parametrize(("schedule", "right"), BOTH)
def test_epilogues(schedule: str, right: str, dtype: torch.dtype, in_place: bool, busy: None) -> None:
    sizes = [(m, n, 9) for m in (1, 7, 8, 30) for n in (2, 3, 11, 48, 50, 63, 64, 65, 150)]
    kernels = [product(*size, right=right, dtype=dtype, epilogue=True, in_place=in_place) for size in sizes]
    same_as_reference(kernels, schedule)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(("schedule", "right"), BOTH)
def test_many_blocks(monkeypatch: pytest.MonkeyPatch, schedule: str, right: str, in_place: bool, busy: None) -> None:
    """Blocks so small that every product has several in every direction, with rests."""
    for name, size in (("_DEPTH", 16), ("_ROWS", 16), ("_COLS", 6)):
        monkeypatch.setattr(dot, name, size)
    for name, size in (("_DEPTH", 4), ("_REST_DEPTH", 8), ("_ROWS", 16), ("_ARRAY_BYTES", 256), ("_LEAST_COLS", 8)):
        monkeypatch.setattr(few_rows, name, size)
    sizes = [(1, 100, 50), (7, 13, 13), (40, 61, 33), (41, 60, 37), (17, 200, 48), (65, 25, 50), (1, 70, 100)]
    kernels = [product(*size, batch=batch, right=right, in_place=in_place) for size in sizes for batch in (1, 2)]
    same_as_reference(kernels, schedule, threads=(1, 2, 7))


def test_long_sums(busy: None) -> None:
    same_as_reference([product(3, 7, 4099, right="bjk"), product(1, 5, 2048 * 2 + 40, right="bjk")], "dot")
    same_as_reference([product(3, 30, 4099), product(1, 50, 4097)], "few rows")


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize(("schedule", "right"), BOTH)
def test_long_sums_are_added_up_in_parts(schedule: str, right: str, rows: int) -> None:
    """Thousands of terms of one sign, one after the other, would round by 10 units and more."""
    depth, cols = 5000, 50
    (compiled,) = compiled_by([product(rows, cols, depth, right=right)], schedule)
    x, w = torch.rand(rows, depth), torch.rand(depth, cols)
    tensors = [x.flatten(), (w.t() if right == "bjk" else w).flatten(), torch.zeros(rows * cols)]
    call(compiled, tensors)
    truth = (x.double() @ w.double()).flatten()
    assert ((tensors[2] - truth).abs() / truth).max() < 4 * torch.finfo(F32).eps


MATRIX_BY_VECTOR = [
    ("dot", "rows(i:50) cols()", "x[40*i + k]"),
    ("dot", "rows() cols(i:50)", "x[40*i + k]"),
    ("few rows", "rows(i:50) cols()", "x[50*k + i]"),
    ("few rows", "rows() cols(i:50)", "x[50*k + i]"),
]


@pytest.mark.parametrize(("schedule", "axes", "read"), MATRIX_BY_VECTOR)
@pytest.mark.parametrize("turned", [False, True])
def test_matrices_by_vectors(schedule: str, axes: str, read: str, turned: bool, busy: None) -> None:
    factors = f"v[k], {read}" if turned else f"{read}, v[k]"
    kernel = parse_kernel(
        f"kernel mv {axes}\n in x: f32[2000]\n in v: f32[40]\n in b: f32[50]\n out y: f32[50]\n loop:\n"
        f" p = contract (k:40) {factors} : f32\n c = load b[i]\n d = add p, c : f32\n store y[i] = d"
    )
    same_as_reference([kernel], schedule)


@pytest.mark.parametrize("axes", ["rows(h:6) cols()", "rows() cols(h:6)", "rows(h:2) cols(g:3)"])
def test_vectors_by_vectors(axes: str, busy: None) -> None:
    at = "300*h + 100*g" if "g" in axes else "100*h"
    place = "3*h + g" if "g" in axes else "h"
    kernel = parse_kernel(
        f"kernel dots {axes}\n in x: f32[600]\n in v: f32[600]\n out y: f32[6]\n loop:\n"
        f" p = contract (k:100) x[{at} + k], v[{at} + k] : f32\n store y[{place}] = p"
    )
    same_as_reference([kernel], "dot")


def strided(right: str, left: str = "60*i + k") -> Kernel:
    """Factors with gaps between their rows, and offsets."""
    return parse_kernel(
        "kernel gaps rows(b:2, i:5) cols(j:21)\n in x: f32[1000]\n in w: f32[4000]\n out y: f32[420]\n loop:\n"
        f" p = contract (k:19) x[500*b + {left} + 7], w[{right} + 3] : f32\n store y[210*b + 42*i + 2*j] = p"
    )


def test_gaps_and_offsets(busy: None) -> None:
    for schedule, one, other in (("dot", "j", "k"), ("few rows", "k", "j")):
        right = f"80*{one} + {other}"
        kernels = [strided(right), strided(f"1900*b + {right}"), strided(right, "2*i + 20*k")]
        same_as_reference(kernels, schedule)


def run_guarded(kernels: Sequence[Kernel], schedule: str, *, at_start: bool) -> None:
    """Reading past an end of a buffer ends the process."""
    for kernel, compiled in zip(kernels, compiled_by(kernels, schedule), strict=True):
        given = [filled(buffer, seed) for seed, buffer in enumerate(kernel.parameters)]
        call(compiled, [guarded(len(each), each.dtype, at_start=at_start).copy_(each) for each in given], 2)


@pytest.mark.parametrize("at_start", [False, True])
@pytest.mark.parametrize(("schedule", "left", "right"), LAYOUTS)
def test_nothing_outside_is_read(schedule: str, left: str, right: str, at_start: bool, busy: None) -> None:
    sizes = [(1, 3, 4), (1, 33, 37), (2, 2, 5), (3, 17, 11), (8, 13, 6), (9, 50, 65), (70, 66, 67)]
    for dtype in (F32, BF16):
        kernels = [product(*size, left=left, right=right, dtype=dtype) for size in sizes]
        run_guarded(kernels, schedule, at_start=at_start)


@pytest.mark.parametrize(("schedule", "right"), BOTH)
def test_what_is_not_in_the_sum_does_not_show(schedule: str, right: str, busy: None) -> None:
    """Vectors that overlap leave out what they have seen, even if that is infinite, or not a number."""
    kernel = product(3, 9, 7, right=right)
    (compiled,) = compiled_by([kernel], schedule)
    x, w, y = torch.ones(3, 7), torch.ones(9, 7) if right == "bjk" else torch.ones(7, 9), torch.zeros(3, 9)
    along = w if right == "bjk" else w.t()
    along[2, 3] = float("inf")
    along[8, 3] = float("-inf")
    x[2, 5] = float("nan")
    want = x @ along.t()
    call(compiled, [x, w, y], 1)
    torch.testing.assert_close(y, want, equal_nan=True)


def test_what_is_refused() -> None:
    target = find("cpu")
    for kernel, schedule, reason in (
        (product(3, 9, 7), dot, "the right factor is not contiguous along the sum"),
        (product(3, 9, 3, right="bjk"), dot, "too few products for a vector"),
        (product(3, 9, 7, right="bjk"), few_rows, "the right factor is not contiguous along columns"),
        (product(0, 9, 7, right="bjk"), dot, "there is nothing to multiply"),
    ):
        assert schedule.SCHEDULE.why_not(problem_of(kernel), target) == reason


def test_few_rows_are_not_packed() -> None:
    """The costs that schedules state: few rows leave the large factor in place. Where one lane of a vector can be
    multiplied by, tiles of the transposes do so, and are faster for several rows."""
    for by_lane in (False, True):
        target = replace(find("cpu"), fma_by_lane=by_lane)
        several = product(8, 1024, 1024, right="bjk")
        turned = Tiling.of(problem_of(several), target).is_transposed
        assert by_lane or not turned
        assert PRODUCTS.plan(several, target).schedule.name == ("tiled" if turned else "dot")
        assert PRODUCTS.plan(product(1, 1024, 1024, right="bjk"), target).schedule.name == "dot"
        assert PRODUCTS.plan(product(8, 1024, 1024), target).schedule.name == "few rows"
        assert PRODUCTS.plan(product(1, 1024, 1024), target).schedule.name == "few rows"
        assert PRODUCTS.why_not(product(8, 1024, 1024), target) is None
