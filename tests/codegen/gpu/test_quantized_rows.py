"""Few rows of quantized weights by GPU schedules: every layout of integers and scales, on the host and as PTX."""

from pathlib import Path

import pytest
import torch

from smelt.codegen.gpu.products.few_rows import few_rows
from smelt.codegen.gpu.products.few_rows_body import FewRows, Way
from smelt.ir.check_kernel import check_kernel, contraction_of
from smelt.ir.kernel import Kernel
from tests.codegen.cpu.products.test_quantized import SUMS, filled, written
from tests.codegen.gpu.on_host import OnHost
from tests.codegen.gpu.test_ptx import assembled, assembled_here, ptx_of
from tests.kernel_reference import run_kernel
from tests.kernel_text import parse_kernel
from tests.simt_host.warps import describe_host_warps

MATRIX_WARP = 32  # of the host, with matrix units


def check(kernel: Kernel, warp: int = 4, *, aligned: bool = True) -> None:
    check_kernel(kernel, after="the test")
    built = OnHost(kernel, warp=warp, aligned=aligned)
    (grid,) = built.plan.phases
    assert isinstance(grid, FewRows) and grid.way is (Way.QUANTIZED_MATRIX if warp == MATRIX_WARP else Way.QUANTIZED)
    given = filled(kernel)
    want, found = ([each.clone() for each in given] for _ in range(2))
    run_kernel(kernel, want)
    built.run(found, {})
    largest = float(want[-1].abs().max())
    torch.testing.assert_close(found[-1], want[-1], rtol=1e-5, atol=3e-6 * largest)


@pytest.mark.parametrize("kind", ["u4", "i4", "u8", "i8"])
@pytest.mark.parametrize("order", ["in order", "halves first", "one group"])
def test_layouts(kind: str, order: str) -> None:
    if order == "halves first" and kind in ("u8", "i8"):
        pytest.skip("only halves of bytes are apart")
    check(written(1, 17, kind, order, offset=8 if kind == "u4" else 0))
    check(written(3, 20, kind, order, x="bf16", scale="f16"), aligned=False)


@pytest.mark.parametrize("x", ["bf16", "f16"])
@pytest.mark.parametrize("kind", ["u4", "i4", "u8", "i8"])
@pytest.mark.parametrize("order", ["in order", "halves first", "one group"])
def test_matrix_units(kind: str, order: str, x: str) -> None:
    if order == "halves first" and kind in ("u8", "i8"):
        pytest.skip("only halves of bytes are apart")
    rows, offset = (3, 0) if x == "f16" else (1, 8 if kind == "u4" else 0)
    check(written(rows, 20, kind, order, x=x, scale="f32", offset=offset), MATRIX_WARP, aligned=kind != "i4")


def test_matrix_units_and_zero_points() -> None:
    check(written(2, 24, "u4", zero="f32", low="f32", offset=3, x="bf16"), MATRIX_WARP)


@pytest.mark.parametrize(("zero", "low"), [("f32", ""), ("", "f32"), ("u8", ""), ("f16", "bf16")])
def test_zero_points_and_minima(zero: str, low: str) -> None:
    check(written(2, 24, "u4", zero=zero, low=low, offset=3))


@pytest.mark.parametrize("zero", ["", "u8", "f32"])
@pytest.mark.parametrize("kind", ["u4", "i4", "u8", "i8"])
def test_large_elements_of_float32_leave_no_rounding_where_their_weight_is_zero(kind: str, zero: str) -> None:
    """And infinite ones are NaN there alone."""
    kernel = written(1, 18, kind, zero=zero, offset=3)
    built = OnHost(kernel, warp=4)
    given = dict(zip((buffer.name for buffer in kernel.parameters), filled(kernel), strict=True))
    given["w"][:] = 0x44 if kind in ("u4", "i4") else 4
    given["w"].view(18, -1)[1::2] += 1
    if zero:
        given["z"][:] = 1
    for element in (1e7, float("inf")):
        given["x"][17] = element
        want, found = ([each.clone() for each in given.values()] for _ in range(2))
        run_kernel(kernel, want)
        built.run(found, {})
        if zero and element < float("inf"):
            assert torch.equal(found[-1][::2], given["b"][::2])
        elif zero:
            assert bool(found[-1][::2].isnan().all())
        torch.testing.assert_close(found[-1], want[-1], rtol=1e-5, atol=0, equal_nan=True)


def test_weights_on_the_left() -> None:
    check(written(4, 40, "u4", transposed=True))


@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        (written(5, 16), "it has many rows"),
        (written(2, 16, order="upper half first"), "integers do not lie side by side"),
        (written(2, 16, order="x across"), "terms do not lie side by side"),
    ],
    ids=["rows", "upper half first", "x across"],
)
def test_why_not(kernel: Kernel, why: str) -> None:
    contract = contraction_of(kernel)
    assert contract is not None and few_rows(kernel, contract, describe_host_warps("test", 8)) == why


def layer(
    kind: str, rows: int, cols: int = 4096, groups: int = 64, dtype: str = "bf16", *, by_halves: bool = False
) -> Kernel:
    """In groups of 64; `by_halves`: with an axis for the two halves of a byte."""
    axes, at = (f"g:{groups}, k:32, h:2", "64*g + 2*k + h") if by_halves else (f"g:{groups}, k:64", "64*g + k")
    terms, packed = 64 * groups, 2 if kind == "u4" else 1
    rounded = f" q = cast p : {dtype}\n" if dtype != "f32" else ""
    return parse_kernel(
        f"kernel layer rows(i:{rows}) cols(j:{cols})\n in x: {dtype}[{rows * terms}]\n"
        f" in w: u8[{cols * terms // packed}]\n in s: {dtype}[{groups * cols}]\n out y: {dtype}[{rows * cols}]\n"
        f" loop:\n p = contract ({axes}) x[{terms}*i + {at}],"
        f" ({kind} w[{terms}*j + {at}] - 8) * s[{groups}*j + g] : f32\n{rounded}"
        f" store y[{cols}*i + j] = {'q' if rounded else 'p'}\n"
    )


def test_halves_of_a_byte_as_an_axis() -> None:
    check(layer("u4", 3, 20, 5, "f32", by_halves=True), 8)


@pytest.mark.parametrize(("kind", "groups"), [("u4", 13), ("u4", 64), ("u8", 9)])
def test_many_groups(kind: str, groups: int) -> None:
    for aligned in (True, False):
        check(layer(kind, 2, 20, groups, "f32"), 8, aligned=aligned)


@assembled_here
@pytest.mark.parametrize("chip", ["sm_75", "sm_90"])
def test_ptx_is_assembled_without_spills(chip: str, tmp_path: Path) -> None:
    kernels = {f"{kind}_{rows}": layer(kind, rows) for kind in ("u4", "u8") for rows in (1, 4)}
    found = assembled(ptx_of(kernels, chip), chip, tmp_path)
    assert {name: spilled for name, (_, spilled) in found.items() if spilled} == {}
    assert len(SUMS) == 5
