"""Scans as GPUs run them, on the host, against the reference interpreter: every axis, direction, length and fold."""

from pathlib import Path

import pytest
import torch

from smelt.codegen.gpu.bodies.rows_body import Rows
from smelt.codegen.gpu.cuda_target import describe_cuda
from smelt.codegen.gpu.grid_plan import plan
from smelt.ir.kernel import Kernel
from smelt.ir.tensorspec import short_name
from tests.codegen.cpu.test_scans import ALONG_ROWS, DOWN, DTYPES, SHARES
from tests.codegen.gpu.on_host import OnHost, ptx
from tests.codegen.gpu.test_ptx import CHIPS, assembled, assembled_here, ptx_of
from tests.kernel_text import parse_kernel

# Folds of whole rows, and scans along either axis, in one kernel.
TWO_AXES = """
kernel two rows(i:{rows}) cols(s:{down}, j:{cols})
  in x: f32[{total}]
  inout y: f32[{total}]
  out t: f32[{rows}]
  scratch keep: f32[{page}]
  loop:
    v0 = load x[{page}*i + {cols}*s + j]
    v1 = load y[{page}*i + {cols}*s + j]
    v2 = mul v0, v1 : f32
    store keep[{cols}*s + j] = v2
    m = reduce max v2
  loop:
    v3 = load keep[{cols}*s + j]
    v4 = sub v3, m : f32
    v5 = scan sum v4 along s
    v6 = scan max v5 along j backwards
    v7 = add v6, v5 : f32
    store y[{page}*i + {cols}*s + j] = v7
    n = reduce sum v6
  row:
    store t[i] = n
"""


def along(rows: int, cols: int, op: str, dtype: str = "f32", how: str = "") -> Kernel:
    return parse_kernel(ALONG_ROWS.format(rows=rows, cols=cols, total=rows * cols, dtype=dtype, op=op, how=how))


def down(rows: int, length: int, cols: int, op: str, dtype: str = "f32", how: str = "") -> Kernel:
    sizes = {"rows": rows, "down": length, "cols": cols, "page": length * cols, "total": rows * length * cols}
    return parse_kernel(DOWN.format(dtype=dtype, op=op, how=how, **sizes))


def values(dtype: torch.dtype, count: int) -> torch.Tensor:
    """About one in size, so that products stay so."""
    generator = torch.Generator().manual_seed(count)
    if dtype.is_floating_point:
        return torch.rand(count, generator=generator, dtype=dtype) * 0.2 + 0.9
    return torch.randint(0, 7, (count,), generator=generator).to(dtype)


def check(kernel: Kernel, x: torch.Tensor, warps: tuple[int, ...] = (4, 8)) -> None:
    """The error does not grow with the length: sums are kept in f64."""
    for number, warp in enumerate(warps):
        rtol = 2e-7 if x.dtype is torch.float32 else 1e-12
        OnHost(kernel, warp=warp, aligned=number == 0).check(given=[x, torch.empty_like(x)], rtol=rtol)


@pytest.mark.parametrize("how", ["", " backwards"])
@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("dtype", DTYPES, ids=short_name)
def test_along_rows(dtype: torch.dtype, op: str, how: str) -> None:
    for rows, cols in ((3, 40), (2, 67)):
        check(along(rows, cols, op, short_name(dtype), how), values(dtype, rows * cols), (4,))


@pytest.mark.parametrize("how", ["", " backwards"])
@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (2, 5), (9, 3), (3, 128), (3, 1000)])
def test_along_rows_of_every_length(rows: int, cols: int, how: str) -> None:
    check(along(rows, cols, "sum", how=how), values(torch.float32, rows * cols), (4, 8, 32))


@pytest.mark.parametrize("how", ["", " backwards"])
@pytest.mark.parametrize("op", ["sum", "max"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=short_name)
def test_down_columns(dtype: torch.dtype, op: str, how: str) -> None:
    for rows, length, cols in ((2, 5, 40), (1, 9, 67), (3, 4, 1), (2, 1, 33), (1, 300, 24)):
        check(down(rows, length, cols, op, short_name(dtype), how), values(dtype, rows * length * cols), (4,))


@pytest.mark.parametrize("how", ["", " backwards"])
@pytest.mark.parametrize("op", ["any", "all"])
def test_bools(op: str, how: str) -> None:
    for rows, cols in ((3, 40), (2, 67), (1, 5000)):
        x = torch.rand(rows * cols, generator=torch.Generator().manual_seed(1)) < (0.01 if op == "any" else 0.99)
        check(along(rows, cols, op, "bool", how), x)


@pytest.mark.parametrize("how", ["", " backwards"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=short_name)
def test_logs_of_sums_of_exponentials(dtype: torch.dtype, how: str) -> None:
    name = short_name(dtype)
    for kernel in (along(3, 67, "logaddexp", name, how), down(2, 5, 19, "logaddexp", name, how)):
        x = values(dtype, kernel.buffer("x").size).log() * 1000
        x[::7] = -torch.inf
        check(kernel, x)


@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("how", ["", " backwards"])
def test_nan_and_infinities_go_on_to_the_end(op: str, how: str) -> None:
    x = torch.ones(400)
    x[70], x[200], x[300] = torch.inf, -torch.inf, torch.nan
    check(along(1, 400, op, how=how), x)
    check(along(4, 100, op, how=how), x)


@pytest.mark.parametrize("cols", [64, 37, 1, 3, 1000, 5000])
def test_between_other_stages(cols: int) -> None:
    x = values(torch.float32, 5 * cols)
    kernel = parse_kernel(SHARES.format(rows=5, cols=cols, total=5 * cols))
    OnHost(kernel).check(given=[x, torch.empty_like(x), torch.empty(5)])


@pytest.mark.parametrize(("rows", "length", "cols"), [(3, 4, 5), (1, 20, 33), (2, 1, 7)])
def test_scans_along_two_axes_beside_folds(rows: int, length: int, cols: int) -> None:
    sizes = {"rows": rows, "down": length, "cols": cols, "page": length * cols, "total": rows * length * cols}
    OnHost(parse_kernel(TWO_AXES.format(**sizes))).check()


@pytest.mark.parametrize("op", ["sum", "max", "prod"])
@pytest.mark.parametrize("how", ["", " backwards"])
@pytest.mark.parametrize("cols", [20_000, 20_001])
def test_long_rows_go_in_parts(op: str, how: str, cols: int) -> None:
    kernel = along(2, cols, op, how=how)
    x = values(torch.float32, 2 * cols)
    check(kernel, x if op != "prod" else x.clamp(0.9999, 1.0001), (8,))
    assert len(plan(kernel, describe_cuda("sm_75")).phases) == 3


@pytest.mark.parametrize("how", ["", " backwards"])
def test_few_long_columns_go_in_parts(how: str) -> None:
    kernel = down(1, 700, 48, "sum", how=how)
    check(kernel, values(torch.float32, 700 * 48), (8,))
    phases = plan(kernel, describe_cuda("sm_75")).phases[::2]
    assert [isinstance(phase, Rows) and phase.along_rows for phase in phases] == [True, True]


def test_a_long_sum_is_as_exact_as_one_in_float64() -> None:
    for count in (200_000, 3001):
        x, y = values(torch.float32, count), torch.empty(count)
        OnHost(along(1, count, "sum")).run([x, y], {})
        torch.testing.assert_close(y, x.double().cumsum(0).float(), rtol=6e-8, atol=0)


def test_the_sign_of_a_zero_stays() -> None:
    x, y = torch.full((40,), -0.0), torch.empty(40)
    OnHost(along(1, 40, "sum")).run([x, y], {})
    assert torch.equal(y.view(torch.int32), x.view(torch.int32))


@pytest.mark.parametrize("architecture", ["sm_75", "sm_90"])
def test_accesses_of_sixteen_bytes_in_either_direction(architecture: str) -> None:
    for how in ("", " backwards"):
        text = ptx(along(4096, 1024, "sum", how=how), architecture)
        assert "v4.b32" in text and "shfl.sync.up" in text and "ld.global.nc.b32" not in text
        text = ptx(down(64, 128, 1024, "max", how=how), architecture)
        assert "v4.b32" in text and "shfl" not in text


@assembled_here
@pytest.mark.parametrize("chip", CHIPS)
def test_ptxas_takes_them(chip: str, tmp_path: Path) -> None:
    kernels = {f"{op}_{cols}": along(64, cols, op) for op in ("sum", "max", "logaddexp") for cols in (40, 4096)}
    kernels |= {"long": along(1, 1_000_000, "sum", how=" backwards"), "down": down(1, 8192, 1024, "sum")}
    found = assembled(ptx_of(kernels, chip), chip, tmp_path)
    # A word or two it spills by choice, for another block at the same time.
    assert len(found) > len(kernels) and all(spilled <= 16 for _, spilled in found.values())
