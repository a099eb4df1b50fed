"""Train a small language model with tensor, sequence, vocabulary and loss parallelism, compiled as one graph.

    torchrun --nproc-per-node 2 examples/tensor_parallel.py

Each process has half of every large weight. Without a GPU, the processes communicate with gloo.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional

import smelt

VOCABULARY, WIDTH, BLOCKS, BATCH, LENGTH = 64, 32, 2, 8, 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.feed_forward = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.feed_forward(self.norm(x))
        return x + y


def make_model(mesh: DeviceMesh) -> nn.Module:
    """A model whose activations between blocks are sharded by sequence, and whose vocabulary is sharded."""
    torch.manual_seed(0)  # the same weights in each process
    blocks = [Block() for _ in range(BLOCKS)]
    model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), *blocks, nn.Linear(WIDTH, VOCABULARY))
    head = ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False)
    plan = {"0": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)), str(BLOCKS + 1): head}
    parallelize_module(model, mesh, plan)
    for block in blocks:
        plan = {
            "norm": SequenceParallel(),
            "feed_forward": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
            "feed_forward.0": ColwiseParallel(),
            "feed_forward.2": RowwiseParallel(output_layouts=Shard(1)),
        }
        parallelize_module(block, mesh, plan)
    return model


def main(steps: int = 20) -> list[float]:
    world = dist.get_world_size()
    model = make_model(init_device_mesh("cpu", (world,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    @smelt.compile
    def loss_of(ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(model(ids).flatten(0, 1), targets.flatten())

    losses = []
    torch.manual_seed(1)  # the same batches in each process
    for _ in range(steps):
        ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
        with loss_parallel():  # outside the compiled function, round the backward too
            loss = loss_of(ids, (ids + 1) % VOCABULARY)
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
        losses.append(loss.to_local().item())
    return losses


if __name__ == "__main__":
    dist.init_process_group("gloo")
    losses = main()
    counters = smelt.counters
    if dist.get_rank() == 0:
        print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
        print(f"graphs {counters['graphs']}, breaks {counters['graph_breaks']}, in eager {counters['eager_graphs']}")
    dist.destroy_process_group()
