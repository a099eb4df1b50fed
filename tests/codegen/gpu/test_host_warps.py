"""The function of a thread, rewritten to that of a warp on the host."""

import pytest
import torch

from smelt import _native
from smelt.base.errors import SmeltError
from smelt.codegen.gpu.grid_plan import plan
from smelt.codegen.llvm import compile as llvm_compile
from smelt.codegen.loops.runtime_sizes import Sizes
from smelt.ir.loops import Compute, Module, Value
from smelt.ir.loops.check import check_module
from tests.kernel_text import parse_kernel
from tests.simt_host.warps import HostSimt, describe_host_warps, warp_function

WARP = 8


def builder(buffers: int) -> HostSimt:
    return HostSimt(describe_host_warps("test", WARP), "k", Sizes(buffers), "i32", buffers=buffers, threads=WARP)


def run(b: HostSimt, *tensors: torch.Tensor) -> None:
    module = Module((warp_function(b, b.grid_function()),))
    check_module(module)
    built = llvm_compile.load([module], b.target)[0]
    phase = (built.address(b.symbol), 1, WARP, b.shared_size, b.has_barrier)
    _native.GridLauncher((phase,), len(tensors), 0, warp=WARP)(1, *tensors)


def test_values_of_a_branch_are_those_of_each_thread() -> None:
    b, found = builder(1), torch.zeros(WARP, dtype=torch.int32)
    lane = b.lane()
    (value,) = b.choice(b.icmp("ult", lane, 3), lambda: [b.mul(lane, 10)], lambda: [b.sub(0, lane)])
    b.store_global(b.parameter(0), lane, [value])
    run(b, found)
    assert found.tolist() == [0, 10, 20, -3, -4, -5, -6, -7]


def test_only_threads_of_all_masks_store() -> None:
    b, found = builder(1), torch.zeros(WARP, dtype=torch.int32)
    lane = b.lane()
    with b.where(b.icmp("uge", lane, 2)), b.where(b.icmp("ult", lane, 5)):
        b.store_global(b.parameter(0), lane, [b.const("i32", 1)])
    run(b, found)
    assert found.tolist() == [0, 0, 1, 1, 1, 0, 0, 0]


def test_a_loop_ends_for_each_thread_by_itself() -> None:
    """What it carries stays as it was when the thread was done."""
    b, found = builder(1), torch.zeros(WARP, dtype=torch.int32)
    lane = b.lane()

    def step(count: Value, total: Value) -> tuple[Value, list[Value]]:
        return b.icmp("ult", b.add(count, 1), lane), [b.add(count, 1), b.add(total, lane)]

    _, total = b.repeat([b.const("i32", 0), b.const("i32", 0)], step)
    b.store_global(b.parameter(0), lane, [total])
    run(b, found)
    assert found.tolist() == [lane * max(1, lane) for lane in range(WARP)]


def test_updates_of_one_element_by_all_threads_add_up() -> None:
    for plain in ("add", None):
        b, found = builder(1), torch.zeros(1, dtype=torch.int32)
        with b.where(b.icmp("ne", b.lane(), 3)):
            b.atomic(b.parameter(0), b.index(0), "i32", b.lane(), b.add, plain)
        run(b, found)
        assert found.tolist() == [sum(range(WARP)) - 3]


def test_what_all_threads_share_stays_a_scalar() -> None:
    b = builder(1)
    b.store_global(b.parameter(0), b.add(b.mul(b.block_number(), WARP), b.lane()), [b.mul(b.warp_number(), 3)])
    nodes = warp_function(b, b.grid_function()).body
    products = [node.out.lanes for node in nodes if isinstance(node, Compute) and node.op == "mul"]
    sums = [node.out.lanes for node in nodes if isinstance(node, Compute) and node.op == "add"]
    assert products == [1, 1] and sums == [WARP]


def test_warps_of_fewer_than_four_threads_are_refused() -> None:
    kernel = parse_kernel("""kernel sums rows(i:2) cols(j:2)
  in x: f32[4]
  out t: f32[1]
  loop:
    a = load x[2*i + j]
    accumulate sum t[0] = a
""")
    with pytest.raises(SmeltError, match="4 or more threads"):
        plan(kernel, describe_host_warps("test", 2))
    assert plan(kernel, describe_host_warps("test", 4)).phases
