"""Kernels of one body in one grid."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from smelt import _native
from smelt.codegen import build
from smelt.codegen.generator import EntryCode
from smelt.codegen.gpu.cuda_target import describe_cuda
from smelt.codegen.gpu.gpu_generator import CudaGenerator, ptx
from smelt.codegen.gpu.grid_plan import plan
from smelt.codegen.gpu.launches import launch_groups
from smelt.codegen.gpu.simt import Simt
from smelt.codegen.llvm.print_module import print_module
from smelt.codegen.targets import GROUP_BUFFERS
from smelt.codegen.write_module import join
from smelt.ir.kernel import Kernel, KernelGroup
from smelt.ir.loops import Function, Value
from tests.codegen.gpu.on_host import ORDERS, OnHost, filled
from tests.codegen.gpu.test_few_rows import linear
from tests.codegen.gpu.test_ptx import assembled, assembled_here
from tests.ir.kernels import SOFTMAX, sized
from tests.kernel_reference import run_kernel
from tests.kernel_text import parse_kernel
from tests.simt_host.warps import HostGenerator, describe_host_warps

WARP = 8
HOST = describe_host_warps("test", WARP)


def update(count: int) -> Kernel:
    return parse_kernel(f"""
kernel update{count} rows() cols(j:{count})
  in g: bf16[{count}]
  in rate: f32[1]
  inout p: f32[{count}]
  inout m: f32[{count}]
  loop:
    a = load g[j]
    b = cast a : f32
    r = load rate[0]
    c = load p[j]
    d = load m[j]
    e = add d, b : f32
    f = fma e, r, c : f32
    store m[j] = e
    store p[j] = f
""")


def text(code: EntryCode) -> str:
    return print_module(join([code]))


def run_alone(kernel: Kernel, tensors: Sequence[torch.Tensor]) -> None:
    OnHost(kernel, warp=WARP).run(tensors, {})


def run_group(
    kernels: Sequence[Kernel], code: EntryCode, offset: int = 0, *, run: Callable[..., None] = run_kernel
) -> None:
    """A launch of all of them leaves what each would leave by `run`. `offset`: elements that buffers begin after."""
    target = describe_host_warps("test", WARP)
    built = HostGenerator().load([join([code])], target)[0]
    given = [[filled(buffer, 9 * n + s) for s, buffer in enumerate(k.parameters)] for n, k in enumerate(kernels)]
    want = [[tensor.clone() for tensor in tensors] for tensors in given]
    for kernel, tensors in zip(kernels, want, strict=True):
        run(kernel, tensors)
    grids = tuple(
        (built.address(grid.symbol), grid.blocks, grid.threads, grid.shared_bytes, grid.has_barrier)
        for grid in code.phases
    )
    for order in ORDERS:
        flat = [moved(tensor, offset) for tensors in given for tensor in tensors]
        _native.set_simt_order(order, 3)
        try:
            _native.GridLauncher(grids, len(flat), code.workspace, warp=WARP)(1, *flat)
        finally:
            _native.set_simt_order("forward")
        for mine, theirs in zip(flat, (tensor for tensors in want for tensor in tensors), strict=True):
            torch.testing.assert_close(mine, theirs)


def moved(tensor: torch.Tensor, offset: int) -> torch.Tensor:
    """A copy that begins elsewhere."""
    memory = torch.empty(tensor.numel() + offset, dtype=tensor.dtype)
    return memory[offset:].copy_(tensor)


LENGTHS = [
    [64, 1000],
    [64, 1000, 77, 4096, 65, 20_001],
    [300_001, 64, 65, 66, 67, 5000, 128],
    [2, 3, 4, 5, 7, 8, 9, 300_003],
    [1, 1, 1],
    [5000, 5000, 5000, 5000],
]


@pytest.mark.parametrize("counts", LENGTHS)
@pytest.mark.parametrize("offset", [0, 1])
def test_all_members_are_run(counts: list[int], offset: int) -> None:
    kernels = [update(count) for count in counts]
    code = HostGenerator().emit_group("group", kernels, HOST, aligned=not offset)
    assert len(code.phases) == 1
    run_group(kernels, code, offset)


def test_kernels_that_are_not_alike_have_a_grid_each() -> None:
    kernels = [update(1000), parse_kernel(sized(SOFTMAX, 8, 64)), update(77)]
    code = HostGenerator().emit_group("group", kernels, describe_host_warps("test", WARP))
    assert len(code.phases) == 3
    run_group(kernels, code)


def norm(count: int) -> Kernel:
    return parse_kernel(f"""
kernel norm{count} rows() cols(j:{count})
  in g: bf16[{count}]
  out y: f32[{count}]
  out n: f32[1]
  loop:
    a = load g[j]
    b = cast a : f32
    store y[j] = b
    c = mul b, b : f32
    d = reduce sum c
  row:
    e = sqrt d : f32
    store n[0] = e
""")


@pytest.mark.parametrize(("count", "members"), [(1, 3), (77, 2), (768, 9), (8192, 4)])
def test_equal_reductions_of_short_rows_share_a_grid(count: int, members: int) -> None:
    kernels = [norm(count)] * members
    code = HostGenerator().emit_group("group", kernels, HOST)
    assert len(code.phases) == 1
    run_group(kernels, code)


def total(rows: int, cols: int) -> Kernel:
    return parse_kernel(f"""
kernel total rows(i:{rows}) cols(j:{cols})
  in x: f32[{rows * cols}]
  out y: f32[1]
  loop:
    a = load x[{cols}*i + j]
    b = mul a, a : f32
    c = reduce sum b
  row:
    accumulate sum y[0] = c
""")


@pytest.mark.parametrize(("rows", "cols", "members"), [(2, 100_000, 2), (40, 8192, 3)])
def test_equal_reductions_in_several_steps_share_their_grids(rows: int, cols: int, members: int) -> None:
    """Each member has partial sums of its own."""
    kernels = [total(rows, cols)] * members
    alone = HostGenerator().emit("alone", plan(kernels[0], HOST), HOST)
    code = HostGenerator().emit_group("group", kernels, HOST)
    assert len(alone.phases) == len(code.phases) > 1
    assert code.workspace == members * alone.workspace > 0
    run_group(kernels, code)


def test_reductions_of_other_lengths_have_a_grid_each() -> None:
    kernels = [norm(768), norm(769)]
    code = HostGenerator().emit_group("group", kernels, HOST)
    assert len(code.phases) == 2
    run_group(kernels, code)


@assembled_here
def test_a_gpu_is_given_one_grid_of_reductions(tmp_path: Path) -> None:
    code = CudaGenerator().emit_group("group", [norm(768)] * 50, describe_cuda("sm_90"))
    (grid,) = code.phases
    assert grid.blocks == 50
    ((_, spilled),) = assembled(ptx(join([code]), describe_cuda("sm_90")), "sm_90", tmp_path).values()
    assert spilled == 0


def test_scalars_come_before_the_loop() -> None:
    """As fusion writes them: they are read once a row, of which there is one."""

    def scaled(count: int) -> Kernel:
        return parse_kernel(f"""
kernel scale{count} rows() cols(j:{count})
  in rate: f64[1]
  inout p: f32[{count}]
  row:
    a = load rate[0]
    r = cast a : f32
  loop:
    c = load p[j]
    d = mul c, r : f32
    store p[j] = d
""")

    kernels = [scaled(count) for count in (5, 2000, 300)]
    code = HostGenerator().emit_group("group", kernels, HOST)
    assert len(code.phases) == 1
    run_group(kernels, code)


@pytest.mark.parametrize("broken", ["blocks", "buffers", "lengths"])
def test_a_broken_group_is_seen(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that go to another kernel, buffers of another one, a length that is too short: nothing is written outside
    of a buffer by any of them."""
    real = launch_groups._grid_function

    def wrong(b: Simt, lengths: Sequence[int], first_blocks: Sequence[int], workspace: int) -> Function:
        if broken == "blocks":
            return real(b, lengths, (0, *(start + 1 for start in first_blocks[1:])), workspace)
        return real(b, (min(lengths),) * len(lengths), first_blocks, workspace)

    search = launch_groups._search

    def of_first(b: Simt, block: Value, starts: Sequence[Value], of_each: Sequence[Sequence[Value]]) -> Sequence[Value]:
        return search(b, block, starts, [[*of_each[0][: b.buffers], *each[b.buffers :]] for each in of_each])

    if broken == "buffers":
        monkeypatch.setattr(launch_groups, "_search", of_first)
    else:
        monkeypatch.setattr(launch_groups, "_grid_function", wrong)
    kernels = [update(count) for count in ((1000, 1000) if broken == "buffers" else (1000, 5000, 77))]
    code = HostGenerator().emit_group("group", kernels, HOST)
    assert len(code.phases) == 1
    with pytest.raises(AssertionError):
        run_group(kernels, code)


@assembled_here
@pytest.mark.parametrize("chip", ["sm_75", "sm_90"])
def test_a_gpu_is_given_one_function(chip: str, tmp_path: Path) -> None:
    kernels = [update(768 * 768 * (1 + n % 4) + n % 3) for n in range(100)]
    target = describe_cuda(chip)
    code = CudaGenerator().emit_group("group", kernels, target)
    assert len(code.phases) == 1
    found = CudaGenerator().assemble(join([code]), target)
    assert found.count(".entry") == 1 and "local" not in found
    assert found.count("st.global.v4.b32") == 4  # eight points of two arrays
    ((registers, spilled),) = assembled(found, chip, tmp_path).values()
    assert registers <= 64 and not spilled


@assembled_here
def test_as_many_buffers_as_fit_are_assembled(tmp_path: Path) -> None:
    kernels = [update(64 + n) for n in range(GROUP_BUFFERS // 4)]
    target = describe_cuda("sm_75")
    code = CudaGenerator().emit_group("group", kernels, target)
    assembled(CudaGenerator().assemble(join([code]), target), "sm_75", tmp_path)


def test_all_is_read_before_anything_is_stored() -> None:
    """A read behind a store waits for it: what an update reads comes at the same time."""
    late = parse_kernel("""
kernel update rows() cols(j:1000000)
  inout m: f32[1000000]
  inout v: f32[1000000]
  inout p: f32[1000000]
  loop:
    a = load m[j]
    b = add a, a : f32
    store m[j] = b
    c = load v[j]
    d = add c, b : f32
    store v[j] = d
    e = load p[j]
    f = add e, d : f32
    store p[j] = f
    g = load m[j]
    h = mul g, f : f32
    store m[j] = h
""")
    lines = build.assembly([parse_on(late, "sm_90")]).splitlines()
    order = [line.split(".")[0].split()[-1] for line in lines if ".global.v4" in line]
    assert order[:4] == ["ld", "ld", "ld", "st"] and order.count("ld") <= 4


def parse_on(kernel: Kernel, target: str) -> Kernel:
    return Kernel(kernel.name, kernel.rows, kernel.cols, kernel.buffers, kernel.stages, target)


def test_what_is_not_grouped() -> None:
    target = describe_cuda("sm_90")
    rows = [parse_kernel(sized(SOFTMAX, count, 64)) for count in (8, 16)]
    for kernels in (rows, [update(64), rows[0]]):
        assert len(CudaGenerator().emit_group("group", kernels, target).phases) == 2


def test_equal_groups_are_built_once() -> None:
    first, second = (
        KernelGroup(name, tuple(parse_on(update(count), "simt-host") for count in (64, 100))) for name in ("g0", "g1")
    )
    found = build.compile_kernels([first, second], build.Options())
    assert found["g0"] is found["g1"] and len(found["g0"].phases) == 1
    assert build.compile_unaligned(first) is not found["g0"]


def test_products_side_by_side() -> None:
    products = [linear(1, 40, 600), linear(1, 9, 600), linear(1, 20, 600)]
    code = HostGenerator().emit_group("group", products, HOST)
    (phase,) = code.phases
    assert phase.blocks == sum(HostGenerator().emit("k", plan(each, HOST), HOST).phases[0].blocks for each in products)
    run_group(products, code, run=run_alone)


def test_pointwise_kernels_of_different_bodies_side_by_side() -> None:
    other = parse_kernel(
        "kernel other rows() cols(j:700)\n in a: f32[700]\n out b: f32[700]\n loop:\n x = load a[j]\n"
        " y = mul x, x : f32\n store b[j] = y\n"
    )
    kernels = [update(1000), other, update(77)]
    code = HostGenerator().emit_group("group", kernels, HOST)
    assert len(code.phases) == 1
    run_group(kernels, code)


@assembled_here
def test_products_side_by_side_wait_for_launches_once_each(tmp_path: Path) -> None:
    kernels = [replace(linear(1, cols, 2048, "bf16"), early=("w",)) for cols in (2048, 512)]
    code = CudaGenerator().emit_group("group", kernels, describe_cuda("sm_90"))
    assert code.phases[0].overlaps
    found = ptx(join([code]), describe_cuda("sm_90"))
    assert (found.count("griddepcontrol.wait"), found.count("griddepcontrol.launch_dependents")) == (2, 1)
    assert assembled(found, "sm_90", tmp_path)["group_0"][1] == 0
