"""Train on several processes with DistributedDataParallel: each has all parameters, and they average their gradients.

    torchrun --nproc-per-node 2 examples/ddp.py

Compile the model, then wrap it. From the second step on, DDP reduces the gradients of the last layers while the
compiled backward computes those of the first. The same training runs eagerly first, so that losses can be compared.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import smelt

WIDTH, STEPS = 64, 12


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, WIDTH),
        nn.GELU(),
        *(nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(4)),
        nn.Linear(WIDTH, 1),
    )


def train(model: nn.Module) -> list[float]:
    """The loss of each step, averaged over the processes."""
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=1e-2)
    data = torch.Generator().manual_seed(dist.get_rank())  # each process has batches of its own
    losses = []
    for _ in range(STEPS):
        x = torch.randn(256, 8, generator=data)
        loss = nn.functional.mse_loss(parallel(x), x.sin().sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
    return losses


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    eager, compiled = train(network()), train(smelt.compile(network()))
    if dist.get_rank() == 0:
        for step in range(0, STEPS, 4):
            print(f"step {step:2}: loss {eager[step]:.5f} eagerly, {compiled[step]:.5f} compiled")
        graphs, breaks = smelt.counters["graphs"], smelt.counters["graph_breaks"]
        print(f"{dist.get_world_size()} processes, {graphs} graph, {breaks} breaks")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
