"""Train a model that is sharded over several processes with FSDP2: each has a part of every parameter.

    torchrun --nproc-per-node 2 examples/fsdp2.py

Compile each block, then shard it. The hooks of `fully_shard` gather a block's parameters before the block runs, and
reduce its gradients after its backward, while the block before it runs. The same training runs eagerly first.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import smelt

WIDTH, BLOCKS, STEPS = 64, 4, 12


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        return result


def train(compiled: bool) -> list[float]:
    """The loss of each step, averaged over the processes."""
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    blocks = [smelt.compile(Block()) if compiled else Block() for _ in range(BLOCKS)]
    model = nn.Sequential(nn.Linear(8, WIDTH), *blocks, nn.Linear(WIDTH, 1))
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    data = torch.Generator().manual_seed(dist.get_rank())  # each process has batches of its own
    losses = []
    for _ in range(STEPS):
        x = torch.randn(256, 8, generator=data)
        loss = nn.functional.mse_loss(model(x), x.sin().sum(1, keepdim=True))
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
    eager, compiled = train(compiled=False), train(compiled=True)
    if dist.get_rank() == 0:
        for step in range(0, STEPS, 4):
            print(f"step {step:2}: loss {eager[step]:.5f} eagerly, {compiled[step]:.5f} compiled")
        graphs, breaks = smelt.counters["graphs"], smelt.counters["graph_breaks"]
        print(f"{dist.get_world_size()} processes, {graphs} graphs, {breaks} breaks")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
