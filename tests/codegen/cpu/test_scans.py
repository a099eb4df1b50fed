"""Scans, compiled, against the reference interpreter: every direction, axis, dtype, and lengths that leave a rest."""

import pytest
import torch

from smelt.codegen.cpu.schedule_passes import plan
from smelt.codegen.cpu.target import describe_host
from smelt.ir.check_kernel import check_kernel
from smelt.ir.kernel import Kernel
from smelt.ir.tensorspec import short_name
from smelt.ir.text import format_kernel
from tests.codegen.running import run
from tests.kernel_reference import run_kernel
from tests.kernel_text import parse_kernel

ALONG_ROWS = """
kernel along rows(i:{rows}) cols(j:{cols})
  in x: {dtype}[{total}]
  out y: {dtype}[{total}]
  loop:
    v0 = load x[{cols}*i + j]
    v1 = scan {op} v0 along j{how}
    store y[{cols}*i + j] = v1
"""
DOWN = """
kernel down rows(i:{rows}) cols(s:{down}, j:{cols})
  in x: {dtype}[{total}]
  out y: {dtype}[{total}]
  loop:
    v0 = load x[{page}*i + {cols}*s + j]
    v1 = scan {op} v0 along s{how}
    v2 = add v1, v0 : {dtype}
    store y[{page}*i + {cols}*s + j] = v2
"""
# Shares of each row's total, from the end on; a row's own fold comes first.
SHARES = """
kernel shares rows(i:{rows}) cols(j:{cols})
  in x: f32[{total}]
  out y: f32[{total}]
  out last: f32[{rows}]
  loop:
    v0 = load x[{cols}*i + j]
    t = reduce sum v0
  loop:
    v1 = load x[{cols}*i + j]
    v2 = exp v1 : f32
    v3 = scan sum v2 along j backwards
    v4 = div v3, t : f32
    store y[{cols}*i + j] = v4
    m = reduce max v3
  row:
    store last[i] = m
"""
DTYPES = (torch.float32, torch.float64, torch.int64, torch.int32, torch.int16, torch.uint8)


def _values(dtype: torch.dtype, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    if dtype.is_floating_point:
        return torch.rand(count, generator=generator, dtype=dtype) + 0.5
    return torch.randint(0, 7, (count,), generator=generator).to(dtype)


def _assert_same(kernel: Kernel, tensors: list[torch.Tensor], outputs: int, threads: int = 1) -> None:
    check_kernel(kernel)
    assert parse_kernel(format_kernel(kernel)) == kernel
    expected = [tensor.clone() for tensor in tensors]
    run_kernel(kernel, expected)
    run(kernel, tensors, threads)
    for have, want in zip(tensors[-outputs:], expected[-outputs:], strict=True):
        ulps = {"rtol": 2e-7, "atol": 0} if have.dtype is torch.float32 else {}
        torch.testing.assert_close(have, want, equal_nan=True, **ulps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=short_name)
@pytest.mark.parametrize("how", ["", " backwards"])
def test_logs_of_sums_of_exponentials(dtype: torch.dtype, how: str) -> None:
    for text, sizes in ((ALONG_ROWS, {"rows": 3, "cols": 67}), (DOWN, {"rows": 2, "down": 5, "cols": 19, "page": 95})):
        total = sizes["rows"] * sizes.get("page", sizes["cols"])
        kernel = parse_kernel(text.format(total=total, dtype=short_name(dtype), op="logaddexp", how=how, **sizes))
        x = _values(dtype, total).log() * 100
        _assert_same(kernel, [x, torch.empty_like(x)], 1)


@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("dtype", DTYPES, ids=short_name)
@pytest.mark.parametrize("how", ["", " backwards"])
def test_along_rows(op: str, dtype: torch.dtype, how: str) -> None:
    for rows, cols in ((3, 40), (1, 1), (2, 5), (1, 67)):
        text = ALONG_ROWS.format(rows=rows, cols=cols, total=rows * cols, dtype=short_name(dtype), op=op, how=how)
        x = _values(dtype, rows * cols)
        _assert_same(parse_kernel(text), [x, torch.empty_like(x)], 1)


@pytest.mark.parametrize("op", ["sum", "prod", "max"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=short_name)
@pytest.mark.parametrize("how", ["", " backwards"])
def test_down_columns(op: str, dtype: torch.dtype, how: str) -> None:
    for rows, down, cols in ((2, 5, 40), (1, 9, 67), (3, 4, 1), (2, 1, 33), (1, 3, 256)):
        sizes = {"rows": rows, "down": down, "cols": cols, "page": down * cols, "total": rows * down * cols}
        text = DOWN.format(dtype=short_name(dtype), op=op, how=how, **sizes)
        x = _values(dtype, rows * down * cols)
        _assert_same(parse_kernel(text), [x, torch.empty_like(x)], 1, threads=2)


def test_few_rows_are_cut_into_blocks_of_columns() -> None:
    sizes = {"rows": 1, "down": 100, "cols": 1024, "page": 102400, "total": 102400}
    kernel = parse_kernel(DOWN.format(dtype="f32", op="sum", how="", **sizes))
    planned = plan(kernel, describe_host())
    assert [axis.size for axis in planned.kernel.rows] == [2] and planned.kernel.cols[-1].size == 512
    x = _values(torch.float32, 102400)
    _assert_same(kernel, [x, torch.empty_like(x)], 1, threads=2)


@pytest.mark.parametrize("cols", [64, 37, 1, 3])
def test_between_other_stages(cols: int) -> None:
    kernel = parse_kernel(SHARES.format(rows=5, cols=cols, total=5 * cols))
    x = _values(torch.float32, 5 * cols)
    tensors, expected = ([x.clone(), torch.empty_like(x), torch.empty(5)] for _ in range(2))
    check_kernel(kernel)
    run_kernel(kernel, expected)
    run(kernel, tensors)
    for have, want in zip(tensors[1:], expected[1:], strict=True):
        torch.testing.assert_close(have, want, rtol=1e-6, atol=0)


def test_a_long_sum_is_as_exact_as_one_in_float64() -> None:
    x = _values(torch.float32, 200_000)
    kernel = parse_kernel(ALONG_ROWS.format(rows=1, cols=200_000, total=200_000, dtype="f32", op="sum", how=""))
    y = torch.empty_like(x)
    run(kernel, [x, y])
    assert torch.equal(y, x.double().cumsum(0).float())


def test_nan_and_infinities_go_on_to_the_end() -> None:
    x = torch.ones(40)
    x[7], x[20], x[30] = torch.inf, -torch.inf, torch.nan
    for op, how in (("sum", ""), ("prod", " backwards"), ("max", ""), ("min", " backwards")):
        kernel = parse_kernel(ALONG_ROWS.format(rows=1, cols=40, total=40, dtype="f32", op=op, how=how))
        _assert_same(kernel, [x, torch.empty_like(x)], 1)


@pytest.mark.parametrize(
    "line, fault",
    [
        ("v1 = scan sum v0 along i", "i is no axis of the cols"),
        ("v1 = scan any v0 along j", "any does not fold f32"),
        ("v2 = scan sum v0 along j backwards\n    v1 = scan sum v2 along j", "j is run along both ways"),
    ],
)
def test_rules(line: str, fault: str) -> None:
    text = ALONG_ROWS.format(rows=2, cols=8, total=16, dtype="f32", op="sum", how="")
    with pytest.raises(Exception, match=fault):
        check_kernel(parse_kernel(text.replace("v1 = scan sum v0 along j", line)))
