"""Reads done one vector early: the same results whatever the sizes, the dtypes and how the work is shared out."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from smelt.codegen import build
from smelt.codegen.cpu import schedule
from smelt.codegen.cpu import target as cpu
from smelt.codegen.cpu.addresses import Workspace
from smelt.codegen.cpu.schedule_passes import plan
from smelt.device import Target, register
from smelt.ir.kernel import Kernel
from tests.codegen.cpu.test_kernels import same_as_reference
from tests.ir.kernels import SOFTMAX, sized
from tests.kernel_text import parse_kernel


@pytest.fixture(params=[False, True], ids=["alone", "shared out"])
def eager(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    """This machine, if loads had to come before stores; with kernels shared out between threads, or not."""
    if request.param:
        monkeypatch.setattr(schedule, "GRAIN", 1)
    target = replace(cpu.describe_host(), hoist_loads_over_stores=True)
    register("cpu", lambda: target)
    build.forget()
    yield target
    register("cpu", cpu.describe_host)
    build.forget()


def early(kernel: Kernel, target: Target) -> list[str]:
    made = plan(kernel, target).kernel
    loops = [stage for stage in made.stages if stage.loop]
    return [load.buffer for stage in loops for load in schedule.pipelined_loads(made, stage, target)]


SIZES = [(1, 3), (1, 64), (1, 1000), (5, 77), (70, 16), (70, 130)]


@pytest.mark.parametrize(("rows", "cols"), SIZES)
@pytest.mark.parametrize("gap", [0, 3])
def test_one_array(rows: int, cols: int, gap: int, eager: Target) -> None:
    kernel = parse_kernel(
        f"kernel k rows(i:{rows}) cols(j:{cols})\n in x: f32[{rows * (cols + gap)}]\n in w: f32[{cols}]\n"
        f" out y: f32[{rows * cols}]\n loop:\n a = load x[{cols + gap}*i + j]\n b = load w[j]\n"
        f" c = tanh a : f32\n d = mul b, c : f32\n store y[{cols}*i + j] = d"
    )
    assert early(kernel, eager) == (["x"] if rows > 1 else [])  # in one row, w is as much of an array as x
    same_as_reference(kernel)


@pytest.mark.parametrize(("rows", "cols"), SIZES)
def test_one_array_of_another_dtype(rows: int, cols: int, eager: Target) -> None:
    count = rows * cols
    kernel = parse_kernel(
        f"kernel k rows(i:{rows}) cols(j:{cols})\n in x: bf16[{count}]\n out y: bf16[{count}]\n"
        f" loop:\n a = load x[{cols}*i + j]\n c = cast a : f32\n d = exp c : f32\n g = cast d : bf16\n"
        f" store y[{cols}*i + j] = g"
    )
    assert early(kernel, eager) == ["x"]
    same_as_reference(kernel)


@pytest.mark.parametrize(("rows", "cols"), SIZES)
def test_two_arrays_of_other_dtypes(rows: int, cols: int, eager: Target) -> None:
    count = rows * cols
    kernel = parse_kernel(
        f"kernel k rows(i:{rows}) cols(j:{cols})\n in x: bf16[{count}]\n in b: bool[{count}]\n out y: bf16[{count}]\n"
        f" loop:\n a = load x[{cols}*i + j]\n c = cast a : f32\n d = exp c : f32\n e = load b[{cols}*i + j]\n"
        f" f = where e, d, c : f32\n g = cast f : bf16\n store y[{cols}*i + j] = g"
    )
    assert early(kernel, eager) == []  # one at most
    same_as_reference(kernel)


@pytest.mark.parametrize(("rows", "cols"), SIZES)
def test_what_is_written_in_place_is_read_when_its_turn_comes(rows: int, cols: int, eager: Target) -> None:
    kernel = parse_kernel(
        f"kernel k rows(i:{rows}) cols(j:{cols})\n inout x: f32[{rows * cols}]\n in z: f32[{rows * cols}]\n loop:\n"
        f" a = load x[{cols}*i + j]\n b = load z[{cols}*i + j]\n c = exp b : f32\n d = mul a, c : f32\n"
        f" store x[{cols}*i + j] = d"
    )
    assert early(kernel, eager) == ["z"]
    same_as_reference(kernel)


@pytest.mark.parametrize("cols", [5, 64, 100, 9000])
def test_between_folds(cols: int, eager: Target) -> None:
    kernel = parse_kernel(sized(SOFTMAX, 3, cols))
    assert early(kernel, eager) == ["x"]  # where it computes; the loop before it stores nothing
    same_as_reference(kernel)


def test_a_loop_carries_what_it_read(eager: Target) -> None:
    kernel = parse_kernel(
        "kernel k rows() cols(j:4096)\n in x: f32[4096]\n out y: f32[4096]\n loop:\n"
        " a = load x[j]\n b = exp a : f32\n store y[j] = b"
    )
    carried = f"phi <{plan(kernel, eager).lanes} x float>"
    assert carried in build.module_text([kernel], eager)
    assert carried not in build.module_text([kernel], replace(eager, hoist_loads_over_stores=False))


def test_private_arrays_do_not_end_in_the_same_bits() -> None:
    """Two sums over rows: what one adds to is not 4 KiB, 8 or 12 away from what the other does."""
    kernel = parse_kernel(
        "kernel k rows(i:50) cols(j:1024)\n in x: f32[51200]\n out y: f32[1024]\n out z: f32[1024]\n loop:\n"
        " a = load x[1024*i + j]\n b = mul a, a : f32\n accumulate sum y[j] = a\n accumulate sum z[j] = b"
    )
    places = Workspace.of_loops(plan(kernel, cpu.describe_host())).places
    assert len(places) == 4 and len({start % 4096 for start, _ in places.values()}) == 4
    same_as_reference(kernel)


@pytest.mark.parametrize("bits", [128, 256, 512])
def test_every_line_of_the_next_row_is_asked_for(bits: int) -> None:
    """As many as a vector reads, whether it is half a line long, one or four."""
    target = replace(cpu.describe_host(), vector_bits=bits, prefetch_next_row=True, prefetch_distance=0)
    kernel = parse_kernel(sized(SOFTMAX, 40, 1024))
    asked = build.module_text([kernel], target).count("call void @llvm.prefetch")
    assert asked == max(1, plan(kernel, target).lanes * 4 // 64)
