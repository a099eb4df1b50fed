"""Scatters as GPUs run them, on the host: atomic operations, who is last, runs of a sorted list; in any order of
blocks and warps with the same result, bit for bit."""

import re
from pathlib import Path

import pytest
import torch

from smelt import _native
from smelt.codegen.gpu.bodies.rows_body import Rows
from smelt.codegen.gpu.cuda_target import describe_cuda
from smelt.codegen.gpu.grid_plan import plan
from smelt.codegen.gpu.scatters import run_reductions, stable_sort
from smelt.codegen.gpu.scatters.scatter_kernels import places_of, split_scatters
from smelt.ir.check_kernel import check_kernel
from smelt.ir.kernel import Kernel
from smelt.ir.text import format_kernel
from tests.codegen.cpu.test_scatters import rows_kernel
from tests.codegen.gpu.on_host import ORDERS, OnHost, Order, ptx
from tests.codegen.gpu.test_ptx import CHIPS, assembled, assembled_here, ptx_of
from tests.kernel_text import parse_kernel

NARROW = (torch.bfloat16, torch.float16)


@pytest.fixture(params=["compared", "by digits"])
def sorting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to sort, whatever the number of events; and several levels of folds."""
    monkeypatch.setattr(stable_sort, "_MOST_COMPARED", 1 << 30 if request.param == "compared" else 0)
    monkeypatch.setattr(run_reductions, "_ONE_CHUNK", 8)


def drawn(kernel: Kernel, high: int, low: int = 0) -> list[torch.Tensor]:
    """Places are random, with repetitions, from `low` to below `high`."""
    generator = torch.Generator().manual_seed(len(kernel.name))
    given = []
    for buffer in kernel.parameters:
        if buffer.name.startswith("p"):
            given.append(torch.randint(low, high, (buffer.size,), generator=generator).to(buffer.dtype))
        else:
            values = torch.randn(buffer.size, generator=generator)
            given.append(values.to(buffer.dtype) if buffer.dtype.is_floating_point else (values * 9).to(buffer.dtype))
    return given


def check(kernel: Kernel, high: int, low: int = 0, warps: tuple[int, ...] = (8,)) -> None:
    narrow = any(buffer.dtype in NARROW for buffer in kernel.parameters)
    off = 0.05 if narrow else 1e-5
    for number, warp in enumerate(warps):
        OnHost(kernel, warp=warp, aligned=number == 0).check(given=drawn(kernel, high, low), rtol=off, atol=off)


def run_in(order: Order, built: OnHost, tensors: list[torch.Tensor]) -> None:
    _native.set_simt_order(order, 5)
    try:
        built.run(tensors, {})
    finally:
        _native.set_simt_order("forward")


def own_places(rows: int, cols: int, extent: int, op: str) -> Kernel:
    """Each element has a place of its own."""
    return parse_kernel(
        f"kernel k rows(i:{rows}) cols(j:{cols})\n in x: f32[{rows * cols}]\n in p: i64[{rows * cols}]\n"
        f" inout y: f32[{rows * extent}]\n loop:\n a = load x[{cols}*i + j]\n q = load p[{cols}*i + j]\n"
        f" scatter {op} y[{extent}*i] by 1*q below {extent} = a"
    )


@pytest.mark.usefixtures("sorting")
@pytest.mark.parametrize(("rows", "cols"), [(1, 2), (5, 3), (33, 13), (300, 3)])
@pytest.mark.parametrize("op", ["sum", "prod"])
def test_rows_that_meet_are_folded(rows: int, cols: int, op: str) -> None:
    check(rows_kernel(rows, cols, 6, op), 6, warps=(4, 8))


@pytest.mark.parametrize(("rows", "cols"), [(1, 2), (5, 3), (33, 13), (300, 3)])
@pytest.mark.parametrize("op", ["last", "max"])
def test_one_of_the_rows_that_meet_stays(rows: int, cols: int, op: str) -> None:
    check(rows_kernel(rows, cols, 6, op), 6, warps=(4, 8))


@pytest.mark.parametrize("op", ["sum", "prod", "max", "min", "last"])
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "f16", "i64", "i32", "i16", "i8", "u8"])
def test_every_kind_of_number(op: str, dtype: str) -> None:
    check(rows_kernel(9, 11, 7, op, dtype, "i32"), 7)


@pytest.mark.parametrize("op", ["any", "all", "last"])
def test_bools(op: str) -> None:
    check(rows_kernel(9, 11, 7, op, "bool"), 7)


@pytest.mark.usefixtures("sorting")
@pytest.mark.parametrize("op", ["sum", "last"])
def test_places_outside_leave_nothing(op: str) -> None:
    check(rows_kernel(30, 11, 7, op), 12, -5)


@pytest.mark.usefixtures("sorting")
@pytest.mark.parametrize("cols", [2, 37])
@pytest.mark.parametrize("op", ["sum", "last"])
def test_each_element_to_a_place_of_its_own(cols: int, op: str) -> None:
    for rows, extent in ((1, 4), (20, 50)):
        check(own_places(rows, cols, extent, op), extent + 2, -2)


@pytest.mark.parametrize("op", ["sum", "last"])
def test_two_places_and_strides(op: str) -> None:
    check(
        parse_kernel(
            "kernel k rows(b:3, i:10) cols(j:6)\n in x: f32[180]\n in p: i64[10]\n in p2: i64[60]\n inout y: f32[360]\n"
            " row:\n q = load p[i]\n loop:\n a = load x[60*b + 6*i + j]\n r = load p2[6*i + j]\n"
            f" scatter {op} y[120*b + 2*j] by 60*q below 2, 12*r below 5 = a"
        ),
        5,
    )


@pytest.mark.parametrize("op", ["sum", "last"])
def test_places_counted_from_the_end(op: str) -> None:
    check(
        parse_kernel(
            "kernel k rows(i:10) cols(j:6)\n in x: f32[60]\n in p: i64[10]\n inout y: f32[50]\n row:\n q = load p[i]\n"
            f" loop:\n a = load x[6*i + j]\n scatter {op} y[-j + 49] by -9*q below 5 = a"
        ),
        6,
    )


@pytest.mark.parametrize("op", ["sum", "last"])
def test_places_that_overlap(op: str) -> None:
    """Points of different inner positions meet too."""
    check(
        parse_kernel(
            "kernel k rows(i:20) cols(j:6)\n in x: f32[120]\n in p: i64[20]\n inout y: f32[20]\n row:\n q = load p[i]\n"
            f" loop:\n a = load x[6*i + j]\n scatter {op} y[j] by 2*q below 5 = a"
        ),
        5,
    )


def test_rows_are_folded_before_they_go_to_their_places() -> None:
    check(
        parse_kernel(
            "kernel k rows(i:50) cols(j:40)\n in x: f32[2000]\n in p: i64[50]\n inout y: f32[280]\n out t: f32[40]\n"
            " out z: f32[2000]\n loop:\n a = load x[40*i + j]\n m = reduce max a\n"
            " row:\n q = load p[i]\n loop:\n b = load x[40*i + j]\n c = sub b, m : f32\n store z[40*i + j] = c\n"
            " accumulate sum t[j] = c\n scatter sum y[j] by 40*q below 7 = c"
        ),
        8,
        -1,
    )


def test_what_is_updated_in_place_is_scattered_as_it_was_computed() -> None:
    kernel = parse_kernel(
        "kernel k rows(i:30) cols(j:8)\n inout x: f32[240]\n in p: i64[30]\n inout y: f32[56]\n row:\n q = load p[i]\n"
        " loop:\n a = load x[8*i + j]\n b = add a, a : f32\n store x[8*i + j] = b\n scatter sum y[j] by 8*q below 7 = b"
    )
    check(kernel, 7)


@pytest.mark.usefixtures("sorting")
@pytest.mark.parametrize("kernel", [rows_kernel(300, 16, 4), own_places(1, 700, 4, "sum")], ids=["rows", "elements"])
def test_sums_are_the_same_in_every_run(kernel: Kernel) -> None:
    given, found = drawn(kernel, 4), []
    built = OnHost(kernel)
    for order in ORDERS:
        got = [tensor.clone() for tensor in given]
        run_in(order, built, got)
        found.append(got[-1])
    assert all(torch.equal(each, found[0]) for each in found[1:])


def test_the_last_of_those_that_meet_stays() -> None:
    kernel = rows_kernel(6, 5, 3, "last")
    x, places, y = torch.randn(30), torch.tensor([2, 0, 2, 2, 0, 7]), torch.zeros(15)
    run_in("reverse", OnHost(kernel, warp=4), [x, places, y])
    rows = 2 * x.view(6, 5)
    torch.testing.assert_close(y.view(3, 5), torch.stack([rows[4], torch.zeros(5), rows[3]]), rtol=0, atol=0)


def test_narrow_sums_are_rounded_once() -> None:
    """A thousand small ones are not lost beside a large one, as they are where each is rounded."""
    kernel = rows_kernel(1000, 1, 2, "sum", "bf16")
    x, places, y = torch.full((1000,), 0.25, dtype=torch.bfloat16), torch.ones(1000, dtype=torch.int64), torch.ones(2)
    got = y.to(torch.bfloat16)
    OnHost(kernel).run([x, places, got], {})
    assert got.tolist() == [1, 251]


def test_events_are_tokens_not_their_numbers() -> None:
    (part,) = split_scatters(rows_kernel(4096, 768, 32000))[1]
    places = places_of(part)
    assert [axis.name for axis in places.inner] == ["j"] and places.count == 32000 and places.step == 768
    (part,) = split_scatters(own_places(20, 8, 3, "sum"))[1]
    assert places_of(part).inner == ()


@pytest.mark.parametrize("rows", [9, 1000, 20_000])
@pytest.mark.parametrize("op", ["sum", "last", "max"])
def test_kernels_of_a_scatter_keep_the_rules(rows: int, op: str) -> None:
    phases = plan(rows_kernel(rows, 64, 50, op), describe_cuda("sm_75")).phases
    assert (len(phases) == 1) is (op == "max")
    for phase in phases:
        if not isinstance(phase, run_reductions.RunLevel) and not (isinstance(phase, Rows) and phase.bounds):
            check_kernel(phase.kernel, after="the plan", scheduled=True)


def test_points_that_nothing_tells_apart_count_each() -> None:
    check(
        parse_kernel(
            "kernel k rows(i:16) cols(j:512)\n in x: i32[16]\n in p: i64[16]\n inout y: i32[7]\n row:\n"
            " q = load p[i]\n a = load x[i]\n loop:\n scatter sum y[0] by 1*q below 7 = a"
        ),
        8,
    )


@pytest.mark.parametrize(
    ("op", "dtype", "atomic"),
    [("sum", "i32", "add.u32"), ("max", "i64", "max.s64"), ("max", "f32", "cas.b32"), ("prod", "i16", "cas")],
)
@pytest.mark.parametrize("architecture", ["sm_75", "sm_90"])
def test_atomic_operations(op: str, dtype: str, atomic: str, architecture: str) -> None:
    assert f"global.{atomic}" in ptx(rows_kernel(90, 11, 7, op, dtype), architecture)


def unordered(kernel: Kernel) -> Kernel:
    return parse_kernel(f"{format_kernel(kernel)} unordered")


def test_floats_are_not_added_by_atomic_operations() -> None:
    for rows in (90, 40_000):
        assert "atom" not in ptx(rows_kernel(rows, 64, 7, "sum"))


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "f16"])
@pytest.mark.parametrize("op", ["sum", "prod"])
def test_floats_in_any_order_where_that_is_allowed(dtype: str, op: str) -> None:
    kernel = unordered(rows_kernel(90, 11, 7, op, dtype))
    assert len(plan(kernel, describe_cuda("sm_75")).phases) == 1
    check(unordered(rows_kernel(9, 11, 7, op, dtype)), 7)
    found = re.findall(r"atom\.[\w.]*|red\.[\w.]*", ptx(kernel))
    assert len(found) == 1 and ("add.f" in found[0]) is (op == "sum" and dtype in ("f32", "f64"))


@assembled_here
@pytest.mark.parametrize("chip", CHIPS)
def test_ptxas_takes_them(chip: str, tmp_path: Path) -> None:
    kinds = [(op, dtype) for op in ("max", "last") for dtype in ("f32", "bf16")]
    kernels = {f"{op}_{dtype}": rows_kernel(90, 11, 7, op, dtype) for op, dtype in kinds}
    kernels |= {"few": rows_kernel(4096, 768, 32000), "many": rows_kernel(40_000, 64, 32000)}
    kernels |= {f"sum_{dtype}": unordered(rows_kernel(90, 11, 7, "sum", dtype)) for dtype in ("f32", "f64", "f16")}
    found = assembled(ptx_of(kernels, chip), chip, tmp_path, 1)
    assert len(found) > len(kernels) and all(not spilled for _, spilled in found.values())
