"""Kernels that scatter, compiled, against the reference interpreter and plain loops, on one, two and three threads."""

from functools import partial

import pytest
import torch

from smelt.base.options import Options
from smelt.codegen import compile_kernels
from smelt.codegen.cpu import schedule
from smelt.codegen.cpu.schedule_passes import plan
from smelt.device import find
from smelt.ir.kernel import Kernel
from smelt.ir.text import format_kernel
from tests.codegen.running import call
from tests.kernel_reference import run_kernel
from tests.kernel_text import parse_kernel


@pytest.fixture(autouse=True)
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Share out even the smallest kernel between threads."""
    monkeypatch.setattr(schedule, "GRAIN", 1)


def same_as_reference(kernel: Kernel, high: int, low: int = 0) -> None:
    """Places are random, with repetitions, from `low` to below `high`."""
    assert parse_kernel(format_kernel(kernel)) == kernel
    compiled = compile_kernels([kernel], Options(check_specs=True))[kernel.name]
    generator = torch.Generator().manual_seed(len(kernel.name))
    given = []
    for buffer in kernel.parameters:
        if buffer.name.startswith("p"):
            given.append(torch.randint(low, high, (buffer.size,), generator=generator).to(buffer.dtype))
        else:
            drawn = torch.randn(buffer.size, generator=generator)
            given.append(drawn.to(buffer.dtype) if buffer.dtype.is_floating_point else (drawn * 9).to(buffer.dtype))
    want = [tensor.clone() for tensor in given]
    run_kernel(kernel, want)
    for count in (1, 2, 3):
        got = [tensor.clone() for tensor in given]
        call(compiled, got, count)
        for buffer, mine, reference in zip(kernel.parameters, got, want, strict=True):
            where = f"buffer {buffer.name}, {count} threads"
            off = 0.05 if buffer.dtype in (torch.bfloat16, torch.float16) else 1e-5
            torch.testing.assert_close(mine, reference, rtol=off, atol=off, msg=partial("{}: {}".format, where))


def rows_kernel(rows: int, cols: int, extent: int, op: str = "sum", dtype: str = "f32", place: str = "i64") -> Kernel:
    """`y[p[i], j] op= x[i, j] + x[i, j]`."""
    wide = "f32" if dtype in ("bf16", "f16") and op != "last" else dtype
    cast = f"b = cast a : {wide}\n" if wide != dtype else ""
    value = "b" if cast else "a"
    if dtype not in ("bool", "bf16", "f16"):
        cast += f"c = add {value}, {value} : {wide}\n"
        value = "c"
    widen = "q = cast p : i64\n" if place != "i64" else ""
    return parse_kernel(
        f"kernel k_{op}_{dtype} rows(i:{rows}) cols(j:{cols})\n in x: {dtype}[{rows * cols}]\n in p: {place}[{rows}]\n"
        f" inout y: {dtype}[{extent * cols}]\n row:\n p = load p[i]\n {widen}"
        f" loop:\n a = load x[{cols}*i + j]\n {cast}"
        f" scatter {op} y[j] by {cols}*{'q' if widen else 'p'} below {extent} = {value}"
    )


@pytest.mark.parametrize(("rows", "cols"), [(1, 2), (5, 3), (40, 8), (33, 13), (7, 100)])
@pytest.mark.parametrize("op", ["sum", "last", "max"])
def test_rows_to_places(rows: int, cols: int, op: str) -> None:
    same_as_reference(rows_kernel(rows, cols, 6, op), 6)


@pytest.mark.parametrize("op", ["sum", "prod", "max", "min", "last"])
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "f16", "i64", "i32", "i16", "i8", "u8"])
def test_every_kind_of_number(op: str, dtype: str) -> None:
    same_as_reference(rows_kernel(9, 11, 7, op, dtype, "i32"), 7)


@pytest.mark.parametrize("op", ["any", "all", "last"])
def test_bools(op: str) -> None:
    same_as_reference(rows_kernel(9, 11, 7, op, "bool"), 7)


@pytest.mark.parametrize("op", ["sum", "last"])
def test_places_outside_leave_nothing(op: str) -> None:
    same_as_reference(rows_kernel(30, 11, 7, op), 12, -5)


@pytest.mark.parametrize("cols", [2, 5, 8, 37])
@pytest.mark.parametrize("op", ["sum", "last", "prod"])
def test_each_element_to_a_place_of_its_own(cols: int, op: str) -> None:
    for rows, extent in ((1, 4), (20, 4), (20, 50)):
        same_as_reference(
            parse_kernel(
                f"kernel k rows(i:{rows}) cols(j:{cols})\n in x: f32[{rows * cols}]\n in p: i64[{rows * cols}]\n"
                f" inout y: f32[{rows * extent}]\n loop:\n a = load x[{cols}*i + j]\n q = load p[{cols}*i + j]\n"
                f" scatter {op} y[{extent}*i] by 1*q below {extent} = a"
            ),
            extent + 2,
            -2,
        )


@pytest.mark.parametrize("op", ["sum", "last"])
def test_two_places_and_strides(op: str) -> None:
    same_as_reference(
        parse_kernel(
            "kernel k rows(b:3, i:10) cols(j:6)\n in x: f32[180]\n in p: i64[10]\n in p2: i64[60]\n inout y: f32[360]\n"
            " row:\n q = load p[i]\n loop:\n a = load x[60*b + 6*i + j]\n r = load p2[6*i + j]\n"
            f" scatter {op} y[120*b + 2*j] by 60*q below 2, 12*r below 5 = a"
        ),
        5,
    )


def test_rows_are_folded_before_they_go_to_their_places() -> None:
    same_as_reference(
        parse_kernel(
            "kernel k rows(i:50) cols(j:40)\n in x: f32[2000]\n in p: i64[50]\n inout y: f32[280]\n out t: f32[40]\n"
            " out z: f32[2000]\n loop:\n a = load x[40*i + j]\n m = reduce max a\n"
            " row:\n q = load p[i]\n loop:\n b = load x[40*i + j]\n c = sub b, m : f32\n store z[40*i + j] = c\n"
            " accumulate sum t[j] = c\n scatter sum y[j] by 40*q below 7 = c"
        ),
        8,
        -1,
    )


def test_the_last_of_those_that_meet_stays() -> None:
    kernel = rows_kernel(6, 5, 3, "last")
    x, places, y = torch.randn(30), torch.tensor([2, 0, 2, 2, 0, 7]), torch.zeros(15)
    call(compile_kernels([kernel], Options())[kernel.name], [x, places, y], 2)
    rows = 2 * x.view(6, 5)
    torch.testing.assert_close(y.view(3, 5), torch.stack([rows[4], torch.zeros(5), rows[3]]), rtol=0, atol=0)


def test_sums_are_taken_in_the_order_of_the_rows() -> None:
    kernel = rows_kernel(300, 16, 4)
    x, places, y = torch.randn(4800), torch.randint(0, 4, (300,)), torch.randn(64)
    want = y.clone().view(4, 16)
    for row, place in zip(2 * x.view(300, 16), places.tolist(), strict=True):
        want[place] += row
    compiled = compile_kernels([kernel], Options())[kernel.name]
    for threads in (1, 2, 3):
        got = y.clone()
        call(compiled, [x, places, got], threads)
        assert torch.equal(got.view(4, 16), want)


def test_who_shares_the_work() -> None:
    target = find("cpu")
    assert plan(rows_kernel(100, 64, 9), target).split is schedule.Split.SCATTER_BUCKETS
    apart = parse_kernel(
        "kernel k rows(i:20) cols(j:8)\n in x: f32[160]\n in p: i64[160]\n inout y: f32[60]\n loop:\n"
        " a = load x[8*i + j]\n q = load p[8*i + j]\n scatter sum y[3*i] by 1*q below 3 = a"
    )
    assert plan(apart, target).split is schedule.Split.INDEPENDENT_ROWS
    meeting = parse_kernel(
        "kernel k rows() cols(j:80)\n in x: f32[80]\n in p: i64[80]\n inout y: f32[60]\n loop:\n"
        " a = load x[j]\n q = load p[j]\n scatter sum y[0] by 1*q below 60 = a"
    )
    assert plan(meeting, target).threads == 1
