"""`DTensor`s that a program keeps, writes and finds things by: the same objects before, in and after a graph."""

import pytest

from tests.capture.distributed.two_processes import in_two_processes
from tests.processes import run

BEGIN = """
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))

def parameter():
    torch.manual_seed(0)
    return nn.Parameter(distribute_tensor(torch.randn(4, 4), mesh, [Shard(0)]))

def shown(found):
    if isinstance(found, DTensor):
        return found.placements, found.requires_grad, found.to_local().detach().clone()
    if isinstance(found, tuple | list):
        return [shown(each) for each in found]
    return found.detach().clone() if isinstance(found, torch.Tensor) else found

def called(function, p):
    try:
        found = [shown(function(p)) for _ in range(3)]
    except RuntimeError as error:
        return str(error)
    return found, shown(p), shown(p.grad), p._version > 0

def same(function, **options):
    want = called(function, parameter())
    smelt.reset()
    have = called(smelt.compile(function, **options), parameter())
    agree(have, want)

def agree(have, want):
    if isinstance(want, torch.Tensor):
        torch.testing.assert_close(have, want)
    elif type(want) in (tuple, list):
        assert len(have) == len(want), (have, want)
        for one, other in zip(have, want):
            agree(one, other)
    else:
        assert have == want, (have, want)
"""


def in_one_process(body: str) -> None:
    done = run(BEGIN + body, warns=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "optimizer",
    [
        "AdamW(p, lr=0.1)",
        "AdamW(p, lr=0.1, foreach=True)",
        "AdamW(p, lr=0.1, fused=True)",
        "SGD(p, lr=0.1, momentum=0.9)",
        "SGD(p, lr=0.1, momentum=0.9, foreach=True)",
    ],
)
def test_a_compiled_step_keeps_its_state_by_dtensors(optimizer: str) -> None:
    in_two_processes(
        f"""
from torch.distributed.fsdp import fully_shard

def trained(compiled):
    torch.manual_seed(0)
    model = fully_shard(nn.Linear(4, 6), mesh=mesh)
    p = list(model.parameters())
    optimizer = torch.optim.{optimizer}
    step = smelt.compile(optimizer.step) if compiled else optimizer.step
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for number in range(5):
        torch.manual_seed(10 * number + rank)
        model(torch.randn(2, 4)).square().sum().backward()
        step()
        schedule.step()
        optimizer.zero_grad()
        if number == 2:
            optimizer.load_state_dict(optimizer.state_dict())
    return [*p, *[value for each in p for value in optimizer.state[each].values() if value is not None]]

want = [whole(each).detach() for each in trained(False)]
smelt.reset()
have = [whole(each).detach() for each in trained(True)]
agree(have, want)
assert smelt.counters["graph_breaks"] == 0 or {"fused" in optimizer}, smelt.counters
"""
    )


def test_a_dtensor_is_a_key_by_which_it_is_found() -> None:
    in_one_process("""
from collections import defaultdict
state = defaultdict(dict)
p = parameter()
@smelt.compile(fullgraph=True)
def counted():
    own = state[p]
    own["step"] = own.get("step", 0) + 1
    if "mean" not in own:
        own["mean"] = torch.zeros_like(p)
    own["mean"].add_(1)
    return p in state, p is p, own["mean"] is p
for number in (1, 2, 3):
    assert counted() == (True, True, False)
    assert list(state) == [p] and state[p]["step"] == number
    assert state[p]["mean"].to_local().eq(number).all()
same(lambda q: (q is p, {q: 1}.get(p), q is q))
""")


def test_averaged_models_and_clipped_gradients() -> None:
    in_one_process("""
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

def trained(compiled):
    torch.manual_seed(0)
    model = nn.Module()
    model.p = parameter()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    def update():
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        average.update_parameters(model)
        return norm
    step, norms = smelt.compile(update) if compiled else update, []
    for number in range(4):
        model.p.grad = distribute_tensor(torch.full((4, 4), number + 1.0), mesh, [Shard(0)])
        norms.append(whole(step()).item())
    steps = optimizer.state[model.p]["step"].item(), average.n_averaged.item()
    return norms, shown(model.p), shown(average.module.p), steps

def whole(found):
    return found.full_tensor() if isinstance(found, DTensor) else found
want = trained(False)
smelt.reset()
have = trained(True)
torch.testing.assert_close(have[1][2], want[1][2])
torch.testing.assert_close(have[2][2], want[2][2])
assert have[0] == want[0] and have[3] == want[3], (have, want)
""")


def test_writes_that_autograd_does_not_record_are_captured() -> None:
    in_one_process("""
@torch.no_grad()
def writes(p):
    q = p.mul_(2)
    r = p.add_(torch.zeros_like(p).add_(1))
    return q is p, r is q, p.contiguous() is p, p.sum()
same(writes, fullgraph=True)

@torch.no_grad()
def in_lists(p):
    torch._foreach_mul_([p], 2.0)
p = parameter()
smelt.compile(in_lists, fullgraph=True)(p)
assert p.to_local().equal(parameter().to_local() * 2) and p._version > 0

saved = p.sin()  # a write between forward and backward is told to autograd
smelt.compile(writes)(p)
try:
    saved.sum().backward()
except RuntimeError as error:
    assert "modified by an inplace operation" in str(error)
else:
    raise AssertionError("nobody noticed the write")
""")


def test_writes_to_shared_memory_and_with_a_history_are_left_to_python() -> None:
    in_one_process("""
def leaf(p):
    return p.mul_(2)
def then_used(p):
    with torch.no_grad():
        p.mul_(2)
    p.sin().sum().full_tensor().backward()
    return p.grad
def base(p):
    with torch.no_grad():
        q = p.view(16)
        p.mul_(2)
        return q + 1
def other_shape(p):
    with torch.no_grad():
        return p.detach().unsqueeze_(0).shape
for function in (leaf, then_used, base, other_shape):
    same(function)
""")


def test_what_requires_a_gradient_says_so_and_keeps_its_history_over_a_break() -> None:
    in_one_process("""
def asked(p):
    with torch.no_grad():
        inside = p.requires_grad, (p * 2).requires_grad, p.is_leaf
    return p.requires_grad, (p * 2).requires_grad, p.detach().requires_grad, p.is_leaf, (p * 2).is_leaf, inside
same(asked, fullgraph=True)

def broken(p):
    y = p * p  # the same bits by whatever kernel
    with torch.no_grad():
        smelt.graph_break()
        z = y * 2
    y.sum().full_tensor().backward()
    return y, z, p.grad
same(broken)
""")
