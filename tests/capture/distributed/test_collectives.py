"""Functional collectives inside compiled functions: operators like others, which start here and wait there."""

import pytest

from tests.capture.distributed.two_processes import in_two_processes
from tests.processes import run, run_new

COLLECTIVES = """
torch.manual_seed(rank)
x = torch.randn(4, 8, requires_grad=True)
whole_group = dist.group.WORLD
same(lambda x: funcol.all_reduce(x.sin(), "sum", dist.group.WORLD).cos(), x)
same(lambda x: funcol.all_reduce(x.sin(), "sum", mesh).cos() * funcol.all_reduce(x.exp(), "sum", (mesh, 0)), x)
same(lambda x: funcol.all_reduce(x.detach(), "max", "0") + x, x)
same(lambda x: funcol.all_gather_tensor(x + 1, 0, mesh).sin(), x)
same(lambda x: funcol.all_gather_tensor(x + 1, 1, mesh).sin(), x)
same(lambda x: funcol.reduce_scatter_tensor(x * 2, "sum", 0, [0, 1]).sin(), x)
same(lambda x: funcol.reduce_scatter_tensor(x * 2, "sum", 1, whole_group).sin(), x)
same(lambda x: funcol.all_to_all_single(x * 2, None, None, mesh).sin(), x)
sent, received = ([1, 3], [1, 2]) if rank == 0 else ([2, 2], [3, 2])
same(lambda x: funcol.all_to_all_single(x * 2, received, sent, mesh).sin(), x)
same(lambda x: funcol.broadcast(x.detach() * 2, 1, mesh) * x, x)
same(lambda x: sum(funcol.all_reduce_coalesced([x * 2, x.sin()], "sum", mesh)), x)
same(lambda x: [each.sin() for each in funcol.all_gather_into_tensor_coalesced([x * 2, x.sin()], mesh)], x)
same(lambda x: [y.sin() for y in funcol.reduce_scatter_tensor_coalesced([x * 2, x.sin()], "sum", [0, 0], mesh)], x)
"""


def test_each_collective_is_whole() -> None:
    in_two_processes(COLLECTIVES)


def test_memory_is_not_reused_before_somebody_waits() -> None:
    in_two_processes("""
def function(x, y):
    gathered = funcol.all_gather_tensor(x.sin(), 0, mesh)
    for _ in range(20):
        y = (y @ y).tanh() + y.cos()
    return gathered.exp(), y
torch.manual_seed(rank)
compiled = smelt.compile(function, fullgraph=True)
for _ in range(10):
    x, y = torch.randn(256, 256), torch.randn(256, 256)
    want, found = function(x, y), compiled(x, y)
    torch.testing.assert_close(found[0], want[0] + 0)
""")


def test_what_waits_comes_where_its_result_is_read() -> None:
    done = run_new(
        """
import torch
import smelt
import torch.distributed as dist
from torch.distributed import _functional_collectives as funcol
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)

def function(x, y):
    first = funcol.all_reduce(x.sin(), "sum", dist.group.WORLD)
    second = funcol.all_gather_tensor(y @ y, 0, dist.group.WORLD)
    return first * 2 + y.cos() @ y, second.exp()

smelt.compile(function, fullgraph=True)(torch.randn(8, 8), torch.randn(8, 8))
""",
        environment={"SMELT_LOGS": "fusion"},
    )
    assert done.returncode == 0, done.stderr
    names = ("all_reduce", "all_gather_into_tensor", "mm_1", "wait_tensor", "wait_tensor_1")
    places = [done.stderr.index(f"] {name} is a library call") for name in names]
    assert places == sorted(places), done.stderr


QUESTIONS = ["dist.get_rank()", "dist.get_world_size()", "mesh.size()", "mesh.get_local_rank()"]


@pytest.mark.parametrize("question", QUESTIONS)
def test_questions_are_asked_again(question: str) -> None:
    done = run(
        f"""
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

compiled = smelt.compile(lambda x: x + {question}, fullgraph=True, backend="eager")
for rank, size in ((0, 2), (3, 4)):
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    mesh = init_device_mesh("cpu", (size,))
    assert torch.equal(compiled(torch.zeros(3)), torch.zeros(3) + {question})
    assert torch.equal(compiled(torch.zeros(3)), torch.zeros(3) + {question})
    dist.destroy_process_group()
assert smelt.counters["graph_breaks"] == 0 and smelt.counters["graphs"] == 2, smelt.counters
""",
        warns=False,
    )
    assert done.returncode == 0, done.stderr


def test_an_operator_that_nobody_has_used_yet() -> None:
    done = run(
        """
def function(x):
    return torch.ops.aten.logaddexp2(x, torch.ops.prims.erf_inv(x))
x = torch.rand(4)
assert torch.equal(smelt.compile(function, fullgraph=True, backend="eager")(x), function(x))
"""
    )
    assert done.returncode == 0, done.stderr
