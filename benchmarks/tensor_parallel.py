"""Processor time of one rank's training step with tensor parallelism (two gloo ranks): smelt, eager and torch.compile.

    python -m benchmarks.tensor_parallel [--rounds 15] [--only NAME ...] [--json FILE]

All variants run in one process per rank, interleaved, each on a model of its own with the same weights. The first
losses must agree with eager's. A row of smelt's counts if its graphs have kernels and none of them fell back to eager.
"""

import argparse
import contextlib
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional

import smelt

RANKS = 2
BATCH, LENGTH, WIDTH, HEADS, BLOCKS, VOCABULARY = 4, 64, 128, 4, 4, 512
VARIANTS = ("eager", "torch.compile", "smelt")


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        query, key, value = (
            project(x).view(batch, length, -1, WIDTH // HEADS).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        result: torch.Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, -1))
        return result


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, 3 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return result


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention, self.feed_forward = Attention(), FeedForward()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        result: torch.Tensor = x + self.feed_forward(self.norm(x))
        return result


class Llama(nn.Module):
    """A small Llama-like language model."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks: Iterable[nn.Module] = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm = nn.RMSNorm(WIDTH)
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        result: torch.Tensor = self.output(self.norm(x))
        return result


def tensor_parallel(model: Llama, mesh: DeviceMesh) -> None:
    """Attention and feed-forward layers are sharded; the residual stream is replicated."""
    for block in model.blocks:
        plan: dict[str, ParallelStyle] = {f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")}
        plan |= {"attention.out": RowwiseParallel(), "feed_forward.down": RowwiseParallel()}
        plan |= {f"feed_forward.{name}": ColwiseParallel() for name in ("gate", "up")}
        parallelize_module(block, mesh, plan)


def sequence_parallel(model: Llama, mesh: DeviceMesh, shard_scores: bool = False) -> None:
    """Also the residual stream by sequence, the embedding and the output layer by vocabulary."""
    scores = Shard(-1) if shard_scores else Replicate()
    head = ColwiseParallel(input_layouts=Shard(1), output_layouts=scores, use_local_output=not shard_scores)
    embedding = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
    parallelize_module(model, mesh, {"tokens": embedding, "norm": SequenceParallel(), "output": head})
    gather = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    for block in model.blocks:
        plan: dict[str, ParallelStyle] = {"attention": gather, "feed_forward": gather}
        plan |= {"attention_norm": SequenceParallel(), "norm": SequenceParallel()}
        plan |= {f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")}
        plan |= {f"feed_forward.{name}": ColwiseParallel() for name in ("gate", "up")}
        plan |= {name: RowwiseParallel(output_layouts=Shard(1)) for name in ("attention.out", "feed_forward.down")}
        parallelize_module(block, mesh, plan)


PLANS: dict[str, Callable[[Llama, DeviceMesh], None]] = {
    "tensor parallel": tensor_parallel,
    "sequence parallel": sequence_parallel,
    "loss parallel": functools.partial(sequence_parallel, shard_scores=True),  # also the loss by vocabulary
}


def loss_of(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(scores.flatten(0, 1), targets.flatten(0, 1))


def training_step(variant: str, plan: str, mesh: DeviceMesh) -> Callable[[], torch.Tensor]:
    """A step of forward, backward and SGD for one variant, compiled if it is not eager."""
    torch.manual_seed(0)
    model = Llama()
    PLANS[plan](model, mesh)
    compilers: dict[str, Callable[[Any], Any]] = {"torch.compile": torch.compile, "smelt": smelt.compile}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(1)
    ids, targets = torch.randint(0, VOCABULARY, (2, BATCH, LENGTH))

    def forward(ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return loss_of(model(ids), targets)

    if variant != "eager":
        forward = compilers[variant](forward)

    def parallel_loss() -> contextlib.AbstractContextManager[Any]:
        return loss_parallel() if plan == "loss parallel" else contextlib.nullcontext()

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        with parallel_loss():
            loss = forward(ids, targets)
            loss.backward()
        optimizer.step()
        whole: Any = loss.detach()
        result: torch.Tensor = whole.full_tensor() if isinstance(loss, DTensor) else whole
        return result

    return step


@dataclass
class Row:
    """One plan: median processor milliseconds of a step, and how smelt compiled it."""

    plan: str
    milliseconds: dict[str, float]
    counters: dict[str, int]

    def text(self) -> str:
        ours = self.milliseconds["smelt"]
        times = "  ".join(f"{name} {value:7.1f}" for name, value in self.milliseconds.items())
        ratios = "  ".join(f"{name} {v / ours:.2f}" for name, v in self.milliseconds.items() if name != "smelt")
        return f"{self.plan:18} {times} ms   smelt faster than {ratios}   {self.counters}"


def measure(plan: str, mesh: DeviceMesh, rounds: int, variants: tuple[str, ...] = VARIANTS) -> Row:
    """Interleave the variants' steps; ranks keep in step because each takes the same turns."""
    smelt.reset()
    steps = {name: training_step(name, plan, mesh) for name in variants}
    first: dict[str, list[float]] = {}
    for name, step in steps.items():
        began = time.perf_counter()
        first[name] = [step().item() for _ in range(4)]
        if int(os.environ.get("RANK", "0")) == 0:
            print(f"  {plan}, {name}: first four steps {time.perf_counter() - began:.1f} s", flush=True)
    for name, losses in first.items():
        for have, want in zip(losses, first["eager"], strict=True):
            if abs(have - want) > 1e-4 * abs(want):
                raise AssertionError(f"{plan}, {name}: losses {losses} differ from eager's {first['eager']}")
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, step in steps.items():
            step()
            dist.barrier()
            began = time.process_time()
            step()
            seconds[name].append(time.process_time() - began)
    names = ("graphs", "graph_breaks", "eager_graphs", "kernels", "recompiles")
    counters = {name: int(smelt.counters[name]) for name in names}
    return Row(plan, {name: statistics.median(each) * 1e3 for name, each in seconds.items()}, counters)


def _rank(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    os.environ["RANK"] = str(arguments.rank)
    meeting = f"file://{arguments.meeting}"
    dist.init_process_group("gloo", init_method=meeting, rank=arguments.rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    rows = [measure(plan, mesh, arguments.rounds, tuple(arguments.variants)) for plan in arguments.only]
    if arguments.rank == 0:
        for row in rows:
            print(row.text(), flush=True)
        if arguments.json:
            with open(arguments.json, "w") as file:
                json.dump([row.__dict__ for row in rows], file, indent=1)
    dist.destroy_process_group()


def main() -> int:
    """Start one process per rank, or be one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", nargs="+", default=list(PLANS), choices=list(PLANS))
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--json")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--meeting", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        _rank(arguments)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        own = [sys.executable, "-m", "benchmarks.tensor_parallel", *sys.argv[1:], "--meeting", f"{folder}/meeting"]
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        ranks = [subprocess.Popen([*own, "--rank", str(rank)], env=environment) for rank in range(RANKS)]
        return max(rank.wait() for rank in ranks)


if __name__ == "__main__":
    sys.exit(main())
