"""`DistributedDataParallel` in two processes on this machine: gradients are those of eager, reduced over both."""

import os
import tempfile

from tests.processes import start

RANK = """
import os, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import smelt
from smelt.compiled_autograd import enable
from smelt.torch_abi.probe import why_not_probe

rank, meeting = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
smelt.config.suppress_errors = False


def trained(way):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))
    parallel = DistributedDataParallel(model, bucket_cap_mb=0.0005)  # several buckets
    call = parallel
    if way != "eager":
        call = smelt.compile(parallel, backend="aot_eager")
    torch.manual_seed(rank)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    found = []
    for _ in range(4):
        x, y = torch.randn(5, 6), torch.randn(5, 3)
        optimizer.zero_grad()
        loss = (call(x) - y).square().mean()
        if way == "compiled autograd":
            with enable(smelt.compile(backend="aot_eager")):
                loss.backward()
        else:
            loss.backward()
        found += [parameter.grad.clone() for parameter in model.parameters()]
        optimizer.step()
    return found + [parameter.detach().clone() for parameter in model.parameters()]


wanted = trained("eager")
for way in ("compiled", "compiled autograd"):
    smelt.counters.clear()
    for have, want in zip(trained(way), wanted, strict=True):
        assert torch.allclose(have, want, rtol=1e-5, atol=1e-6), (way, have, want)
    assert smelt.counters["graphs"] > 0
captured = why_not_probe() is None
assert (smelt.counters["compiled_autograd_captures"] > 0) == (smelt.counters["engine_backwards"] == 0) == captured
print("rank", rank, "agrees", dict(smelt.counters))
dist.destroy_process_group()
"""


def test_gradients_are_those_of_eager() -> None:
    with tempfile.TemporaryDirectory() as folder:
        meeting = os.path.join(folder, "meeting")
        ranks = [start(RANK, arguments=[str(rank), meeting], warns=False) for rank in range(2)]
        ended = [rank.done(120) for rank in ranks]
    for number, rank in enumerate(ended):
        assert rank.returncode == 0 and f"rank {number} agrees" in rank.stdout, rank
