"""A script in two processes that talk to each other by gloo.

    in_two_processes(BODY)      BODY finds `rank`, `mesh`, torch, smelt, `agree(have, want)`
"""

import os
import tempfile

from tests.processes import start

_BEGIN = """
import os, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as funcol
from torch.distributed.device_mesh import init_device_mesh
import smelt

rank, meeting = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
smelt.config.suppress_errors = False

def leaves(found):
    return [found] if isinstance(found, torch.Tensor) else [leaf for item in found for leaf in leaves(item)]

def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor

def agree(have, want):
    for one, other in zip(leaves(have), leaves(want), strict=True):
        assert getattr(one, "placements", None) == getattr(other, "placements", None), (one, other)
        torch.testing.assert_close(whole(one), whole(other), rtol=1e-5, atol=1e-5)

def same(function, *args, backends=("eager", "aot_eager", "llvm")):
    "Compiled whole, with results and gradients as without."
    inputs = [each for each in args if isinstance(each, torch.Tensor) and each.requires_grad]
    def gradients(found):
        loss = sum(whole(each).square().sum() for each in leaves(found) if each.requires_grad)
        differentiated = inputs and isinstance(loss, torch.Tensor)
        given = torch.autograd.grad(loss, inputs, allow_unused=True) if differentiated else ()
        return [whole(each) for each in given if each is not None]
    want = function(*args)
    wanted = gradients(want)
    for backend in backends:
        smelt.reset()
        compiled = smelt.compile(function, fullgraph=True, backend=backend)
        for _ in range(2):
            found = compiled(*args)
            agree(found, want)
            agree(gradients(found), wanted)
        assert smelt.counters["graphs"] == 1 and smelt.counters["recompiles"] == 0, (backend, smelt.counters)
        assert smelt.counters["eager_graphs"] == 0, (backend, smelt.counters)
"""

_END = """
print("rank", rank, "agrees")
dist.destroy_process_group()
"""


def in_two_processes(body: str) -> None:
    """Run a script twice, and fail if either fails."""
    script = _BEGIN + body + _END
    with tempfile.TemporaryDirectory() as folder:
        meeting = os.path.join(folder, "meeting")
        ranks = [start(script, arguments=[str(rank), meeting], warns=False) for rank in range(2)]
        ended = [rank.done(240) for rank in ranks]
    for number, rank in enumerate(ended):
        assert rank.returncode == 0 and f"rank {number} agrees" in rank.stdout, rank
