"""`DTensor`s inside compiled functions: the graph has their local tensors, and guards hold their placements."""

from tests.capture.distributed.two_processes import in_two_processes
from tests.processes import run

BEGIN = """
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
torch.manual_seed(0)
x = distribute_tensor(torch.randn(6, 8), mesh, [Shard(0)]).requires_grad_()
w = distribute_tensor(torch.randn(8, 8), mesh, [Replicate()]).requires_grad_()
v = distribute_tensor(torch.randn(8, 10), mesh, [Shard(1)]).requires_grad_()
"""


def test_operators_and_conversions() -> None:
    in_two_processes(
        BEGIN
        + """
same(lambda x, w: (x @ w).relu().redistribute(mesh, [Replicate()]).to_local().sum(-1), x, w)
same(lambda x, w: ((x @ w).relu() * 2 + 1, x), x, w)
same(lambda x, w: torch.softmax(x @ w, -1).full_tensor(), x, w)
same(lambda x, v: (x.redistribute(mesh, (Replicate(),)) @ v).tanh(), x, v)
same(lambda x: (DTensor.from_local(x.to_local() + 1, mesh, [Shard(0)]) + x).to_local(), x)
same(lambda x: nn.functional.layer_norm(x, (8,)).sum(), x)
same(lambda x, w: torch.cat([x, x @ w], 1)[:, 1:12].mean(0), x, w)
same(lambda x: x.to_local() * x.shape[0] + x.ndim + x.device_mesh.size() + x.placements[0].dim, x)
same(lambda x: x.to_local() * 2 if isinstance(x, DTensor) and isinstance(x.placements[0], Shard) else x + 1, x)
"""
    )


def test_tensor_parallel_trains_as_without() -> None:
    in_two_processes("""
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))

plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
sequence = {"norm": SequenceParallel(use_local_output=True), "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(output_layouts=Shard(1))}
for chosen in (plan, sequence):
    found = []
    for backend in (None, "aot_eager", "llvm"):
        torch.manual_seed(0)
        model = parallelize_module(Block(), mesh, chosen)
        smelt.reset()
        call = model if backend is None else smelt.compile(model, fullgraph=True, backend=backend)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(5 if chosen is plan else rank)
        for _ in range(3):
            loss = call(torch.randn(2, 4, 8)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        found.append([whole(each).detach() for each in model.parameters()])
        assert backend is None or (smelt.counters["graphs"], smelt.counters["graph_breaks"]) == (1, 0), smelt.counters
        assert smelt.counters["eager_graphs"] == 0 and (backend != "llvm" or smelt.counters["kernels"] > 0)
        with torch.no_grad():
            torch.manual_seed(7)
            found[-1].append(call(torch.randn(2, 4, 8)))
    agree(found[1], found[0])
    agree(found[2], found[0])
""")


def test_a_vocabulary_in_parts_is_looked_up_in_the_graph() -> None:
    in_two_processes("""
import gc
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor._ops._mask_buffer import MaskBuffer
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

def held():
    return [each.data for each in gc.get_objects() if type(each) is MaskBuffer and each.data is not None]

def made():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 16))
    return parallelize_module(model, mesh, {"0": RowwiseParallel(input_layouts=Replicate()), "1": ColwiseParallel()})

found = []
for backend in (None, "aot_eager", "llvm"):
    model = made()
    smelt.reset()
    call = model if backend is None else smelt.compile(model, fullgraph=True, backend=backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(5)
    for _ in range(3):
        loss = call(torch.randint(0, 16, (3, 5))).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found.append([whole(each).detach() for each in model.parameters()])
    assert not held()
    assert smelt.counters["eager_graphs"] == 0 and (backend != "llvm" or smelt.counters["kernels"] > 0)
agree(found[1], found[0])
agree(found[2], found[0])

weight = distribute_tensor(torch.arange(32.0).view(16, 2), mesh, [Shard(0)])
def broken(tokens):
    rows = nn.functional.embedding(tokens, weight)  # a placement with a mask
    smelt.graph_break()
    return rows.redistribute(mesh, [Replicate()]).to_local() + 1
def failed(tokens):
    rows = nn.functional.embedding(tokens, weight)
    return torch.linalg.lstsq(rows, rows)  # which no DTensor can be given
smelt.config.suppress_errors = True
for _ in range(2):
    tokens = distribute_tensor(torch.randint(0, 16, (3,)), mesh, [Replicate()])
    agree(smelt.compile(broken)(tokens), weight.full_tensor()[tokens.to_local()] + 1)
try:
    smelt.compile(failed)(tokens)
except Exception as error:
    assert "lstsq" in str(error), error
from smelt.meta.fake_tensor import FakeTensor
assert not any(isinstance(each, FakeTensor) for each in held())
""")


def test_a_sequence_parallel_language_model_with_a_loss_in_parts() -> None:
    in_two_processes("""
import contextlib
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, loss_parallel, parallelize_module)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.RMSNorm(8), nn.Linear(8, 16, bias=False), nn.Linear(16, 8, bias=False)
    def forward(self, x):
        return x + self.down(nn.functional.silu(self.up(self.norm(x))))

def made(in_parts):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(16, 8), Block(), nn.RMSNorm(8), nn.Linear(8, 16))
    head = {"output_layouts": Shard(-1) if in_parts else Replicate(), "use_local_output": not in_parts}
    parallelize_module(model, mesh, {
        "0": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)), "1.norm": SequenceParallel(),
        "1.up": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
        "1.down": RowwiseParallel(output_layouts=Shard(1)), "2": SequenceParallel(),
        "3": ColwiseParallel(input_layouts=Shard(1), **head)})
    return parallelize_module(model, mesh, {"1.up": ColwiseParallel()})

for in_parts in (False, True):
    found = []
    for backend in (None, "aot_eager", "llvm"):
        model = made(in_parts)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        def loss_of(ids, targets):
            return nn.functional.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
        smelt.reset()
        call = loss_of if backend is None else smelt.compile(loss_of, fullgraph=True, backend=backend)
        torch.manual_seed(5)
        losses = []
        for _ in range(3):
            with loss_parallel() if in_parts else contextlib.nullcontext():
                loss = call(*torch.randint(0, 16, (2, 3, 4)))
                optimizer.zero_grad()
                loss.backward()
            assert all(type(each.grad) is type(each) for each in model.parameters())
            optimizer.step()
            losses.append(whole(loss).detach())
        found.append(losses + [whole(each).detach() for each in model.parameters()])
        assert backend is None or smelt.counters["graphs"] == 1, smelt.counters
        assert smelt.counters["eager_graphs"] == 0 and (backend != "llvm" or smelt.counters["kernels"] > 0)
    agree(found[1], found[0])
    agree(found[2], found[0])
""")


def test_batches_of_other_sizes() -> None:
    """A short last batch raised: PyTorch hashes the sizes by which it finds placements, and symbols have no hash."""
    in_two_processes("""
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
found = []
for compiled in (False, True):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    plan = {"0": RowwiseParallel(input_layouts=Replicate()), "1": ColwiseParallel(), "3": RowwiseParallel()}
    parallelize_module(model, mesh, plan)
    call = smelt.compile(model) if compiled else model
    results = []
    for rows in (3, 4, 5, 3):
        result = call(torch.arange(rows * 4).reshape(rows, 4) % 16)
        result.square().sum().backward()
        results += [result.detach(), model[1].weight.grad.to_local().clone()]
    found.append(results)
torch.testing.assert_close(found[1], found[0])
""")


def test_other_placements_are_another_graph() -> None:
    in_two_processes(
        BEGIN
        + """
compiled = smelt.compile(lambda x: (x.sin().sum(0) * 2).full_tensor(), fullgraph=True)
for placement in (Shard(0), Replicate(), Shard(1), Shard(0)):
    given = distribute_tensor(torch.randn(6, 8), mesh, [placement])
    torch.testing.assert_close(compiled(given), given.full_tensor().sin().sum(0) * 2)
assert smelt.counters["graphs"] == 3, smelt.counters
"""
    )


def test_what_writes_or_draws_is_left_to_python() -> None:
    in_two_processes(
        BEGIN
        + """
def writes(x, w):
    y = x.detach().clone() @ w
    y.add_(1)
    return y.full_tensor()
agree(smelt.compile(writes)(x, w), writes(x, w))
assert smelt.counters["graph_breaks"] > 0
given = x.detach().clone()
smelt.compile(lambda x: x.mul_(2))(given)
agree(given, x.detach() * 2)
"""
    )


def test_fsdp_breaks_once_a_block() -> None:
    done = run(
        """
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo", store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))

def made(blocks):
    torch.manual_seed(0)
    plain = [nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)) for _ in range(blocks)]
    return fully_shard(nn.Sequential(*[fully_shard(block, mesh=mesh) for block in plain]), mesh=mesh)

def step(model, call):
    found = call(torch.ones(4, 8))
    found.sum().backward()
    return [found.detach(), *(each.grad.full_tensor() for each in model.parameters())]

for blocks in (2, 6):
    smelt.reset()
    plain, model = made(blocks), made(blocks)
    for have, want in zip(step(model, smelt.compile(model)), step(plain, plain), strict=True):
        torch.testing.assert_close(have, want)
    assert smelt.counters["graphs"] > 0 and smelt.counters["graph_breaks"] <= blocks + 1, smelt.counters
""",
        warns=False,
    )
    assert done.returncode == 0, done.stderr


def test_layout_changes_in_place_and_dtensor_handlers_are_left_to_python() -> None:
    """Frames that a handler of `DTensor` calls were captured, with autograd off: the call raised a `TypeError`."""
    done = run(
        """
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import loss_parallel
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
torch.manual_seed(0)
w = distribute_tensor(torch.randn(8, 8), mesh, [Shard(1)])
targets = torch.arange(6)

def loss_of(x):
    scores = (x @ w).sin()
    with loss_parallel():
        return nn.functional.cross_entropy(scores, targets)

def differentiated(function):
    x = distribute_tensor(torch.linspace(0, 1, 48).view(6, 8), mesh, [Replicate()]).requires_grad_()
    loss = function(x)
    with loss_parallel():
        loss.backward()
    return loss.to_local().detach(), x.grad.to_local()

def squeezed(x):
    y = x.detach()[:1] * 2
    y.squeeze_(0)
    return (y + 1).to_local()

compiled = smelt.compile(loss_of)
for _ in range(2):
    torch.testing.assert_close(differentiated(compiled), differentiated(loss_of))
assert torch.equal(smelt.compile(squeezed)(w), squeezed(w))
""",
        warns=False,
    )
    assert done.returncode == 0, done.stderr
