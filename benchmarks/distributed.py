"""Training on several processes: processor ms a step, and the share of communication that is exposed.

    python -m benchmarks.distributed [--torch-compile] [--ranks 2] [--rounds 15] [--json FILE] [ddp fsdp2 fsdp2-whole]

The ranks are processes of this machine that talk by gloo, with one thread each. All ways take turns in each of them,
and the figures are those of rank 0. There is no network, so a wire is simulated: it serves collectives one after the
other, each takes a latency and its bytes over a bandwidth, and together they take as long as eager's backward. When a
collective begins, and when its result is needed, is noted in processor time of the thread that trains, so other load on
the machine changes nothing. Exposed is how long the step waits for the wire, as a share of the time the wire is busy. A
shorter backward hides less of the same wire: the last column has a wire that takes as long as each way's own backward.
"""

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

WIDTH, BLOCKS, WORDS, BATCH, TOKENS = 128, 4, 1536, 4, 64
BUCKET_MB = 1  # four or five buckets; torch.compile refuses smaller ones
LATENCY_S = 50e-6


class Block(nn.Module):
    """A block like Llama's."""

    def __init__(self) -> None:
        super().__init__()
        linear = functools.partial(nn.Linear, bias=False)
        self.before, self.between = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.query, self.key, self.value, self.out = (linear(WIDTH, WIDTH) for _ in range(4))
        self.gate, self.up, self.down = linear(WIDTH, 3 * WIDTH), linear(WIDTH, 3 * WIDTH), linear(3 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.before(x)
        projections = (self.query, self.key, self.value)
        query, key, value = (each(h).unflatten(-1, (4, -1)).transpose(1, 2) for each in projections)
        attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        h = self.between(x)
        result: torch.Tensor = x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))
        return result


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return nn.functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


# --- what the wire is asked for ---------------------------------------------------------------------------------


@dataclass
class Request:
    """A collective: when it began, its bytes, and when its result was needed; None: when the backward ended."""

    began: float
    size: int
    needed: float | None = None


@dataclass
class Step:
    """Processor times of one step, from its beginning."""

    forward: float = 0.0
    whole: float = 0.0
    process: float = 0.0  # with the threads of gloo
    requests: list[Request] = field(default_factory=list)

    def bandwidth(self) -> float:
        """Of a wire that is as busy as the backward is long."""
        latencies = LATENCY_S * len(self.requests)
        return sum(request.size for request in self.requests) / (self.whole - self.forward - latencies)

    def exposed(self, bandwidth: float) -> tuple[float, float]:
        """How long the step waits for the wire, and how long the wire is busy."""
        waited = free = busy = 0.0
        events = [(request.began, 0, place) for place, request in enumerate(self.requests)]
        events += [(self.whole if r.needed is None else r.needed, 1, place) for place, r in enumerate(self.requests)]
        finished = [0.0] * len(self.requests)
        for when, is_wait, place in sorted(events):
            if is_wait:
                waited += max(0.0, finished[place] - (when + waited))
            else:
                takes = LATENCY_S + self.requests[place].size / bandwidth
                free = finished[place] = max(when + waited, free) + takes
                busy += takes
        return waited, busy


_IS_SINGLE = hasattr(dist, "all_gather_single")  # as PyTorch 2.13 names them
_FSDP2_CALLS = ("all_gather_single" if _IS_SINGLE else "all_gather_into_tensor",
                "reduce_scatter_single" if _IS_SINGLE else "reduce_scatter_tensor")  # fmt: skip


class Recorder:
    """Notes the collectives of the step that runs."""

    def __init__(self) -> None:
        self.step = Step()
        self.began = 0.0

    def now(self) -> float:
        return time.thread_time() - self.began

    def begin(self) -> Step:
        self.step, self.began = Step(), time.thread_time()
        return self.step

    def bucket(
        self, state: object, bucket: dist.GradBucket  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        """The communication hook of DDP."""
        self.step.requests.append(Request(self.now(), bucket.buffer().nbytes))
        return allreduce_hook(None, bucket)  # type: ignore[arg-type]

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Note what FSDP2 asks for."""
        gather, scatter = (getattr(dist, name) for name in _FSDP2_CALLS)

        def all_gather(output: torch.Tensor, *args: Any, **named: Any) -> Any:
            request = Request(self.now(), output.nbytes)
            self.step.requests.append(request)
            work = gather(output, *args, **named)
            if work is None:
                request.needed = request.began
                return None
            return _Waited(work, functools.partial(self._note_wait, request))

        def reduce_scatter(*args: Any, **named: Any) -> Any:
            source = named["input"] if "input" in named else args[1]
            self.step.requests.append(Request(self.now(), source.nbytes))
            return scatter(*args, **named)

        for name, function in zip(_FSDP2_CALLS, (all_gather, reduce_scatter), strict=True):
            setattr(dist, name, function)
        try:
            yield
        finally:
            for name, function in zip(_FSDP2_CALLS, (gather, scatter), strict=True):
                setattr(dist, name, function)

    def _note_wait(self, request: Request) -> None:
        request.needed = self.now()


class _Waited(dist.Work):
    """A collective at work whose wait is noted."""

    def __init__(self, work: dist.Work, note: Callable[[], None]) -> None:
        super().__init__()
        self._work, self._note = work, note

    def wait(self, *args: Any) -> bool:
        self._note()
        return self._work.wait(*args)


# --- ways to train ----------------------------------------------------------------------------------------------

Train = Callable[[], Step]


def model() -> Model:
    torch.manual_seed(0)
    return Model()


def compiler(way: str) -> Callable[[Any], Any]:
    if way == "eager":
        return lambda module: module
    if way == "torch.compile":
        return torch.compile
    import smelt

    return smelt.compile


def ddp(way: str, recorder: Recorder) -> tuple[nn.Module, Callable[..., Any]]:
    """The whole model."""
    compile_module = compiler(way)
    if way == "torch.compile":
        wrapped = DistributedDataParallel(model(), bucket_cap_mb=BUCKET_MB)
        wrapped.register_comm_hook(None, recorder.bucket)
        return wrapped, compile_module(wrapped)
    wrapped = DistributedDataParallel(compile_module(model()), bucket_cap_mb=BUCKET_MB)
    wrapped.register_comm_hook(None, recorder.bucket)
    return wrapped, wrapped


def fsdp2(way: str, recorder: Recorder, whole: bool = False) -> tuple[nn.Module, Callable[..., Any]]:
    """Each block sharded; compiled block by block, or the whole model."""
    compile_module = compiler(way)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    sharded = model()
    for block in sharded.blocks:
        if not whole and way != "eager":
            block.compile() if way == "torch.compile" else setattr(block, "forward", compile_module(block.forward))
        fully_shard(block, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    sharded._set_unshard_async_op(True)  # type: ignore[operator]
    return sharded, compile_module(sharded) if whole else sharded


KINDS: dict[str, Callable[[str, Recorder], tuple[nn.Module, Callable[..., Any]]]] = {
    "ddp": ddp,
    "fsdp2": fsdp2,
    "fsdp2-whole": functools.partial(fsdp2, whole=True),
}


def trainer(kind: str, way: str) -> Train:
    recorder = Recorder()
    owner, call = KINDS[kind](way, recorder)
    generator = torch.Generator().manual_seed(dist.get_rank())
    ids = torch.randint(0, WORDS, (BATCH, TOKENS), generator=generator)

    def train() -> Step:
        owner.zero_grad()
        with recorder.listening():
            process, step = time.process_time(), recorder.begin()
            loss = call(ids, ids)
            step.forward = recorder.now()
            loss.backward()
            step.whole, step.process = recorder.now(), time.process_time() - process
        return step

    return train


def measured(kind: str, ways: list[str], rounds: int) -> list[dict[str, Any]]:
    """A row for each way."""
    trains = {way: trainer(kind, way) for way in ways}
    for train in trains.values():
        for _ in range(5):
            train()
    steps: dict[str, list[Step]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, train in trains.items():
            dist.barrier()
            steps[way] += [train() for _ in range(2)]
    bandwidths = {way: statistics.median(each.bandwidth() for each in steps[way]) for way in ways}
    rows = []
    for way in ways:
        waits = [step.exposed(bandwidths["eager"]) for step in steps[way]]
        own_waits = [step.exposed(bandwidths[way]) for step in steps[way]]
        with_wire = [step.whole + wait for step, (wait, _) in zip(steps[way], waits, strict=True)]
        rows.append(
            {
                "kind": kind,
                "way": way,
                "step_ms": 1e3 * statistics.median(step.process for step in steps[way]),
                "collectives": len(steps[way][-1].requests),
                "exposed": statistics.median(wait / busy for wait, busy in waits),
                "with_wire_ms": 1e3 * statistics.median(with_wire),
                "exposed_of_own": statistics.median(wait / busy for wait, busy in own_waits),
            }
        )
    return rows


def work(arguments: argparse.Namespace) -> None:
    """One rank."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    meeting = f"file://{arguments.meeting}"
    dist.init_process_group("gloo", init_method=meeting, rank=arguments.rank, world_size=arguments.ranks)
    ways = ["eager", "smelt", *(["torch.compile"] if arguments.torch_compile else [])]
    rows = [row for kind in arguments.kinds or KINDS for row in measured(kind, ways, arguments.rounds)]
    if arguments.rank == 0:
        columns = ["", "", "step, ms", "collectives", "exposed", "step with wire, ms", "exposed, own wire"]
        print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
        for row in rows:
            figures = f"{row['step_ms']:.1f} | {row['collectives']} | {row['exposed']:.0%} | {row['with_wire_ms']:.1f}"
            print(f"| {row['kind']} | {row['way']} | {figures} | {row['exposed_of_own']:.0%} |")
        if arguments.json:
            Path(arguments.json).write_text(json.dumps(rows, indent=1))
    dist.barrier()
    dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.distributed", description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--torch-compile", action="store_true", help="torch.compile too (it takes minutes)")
    parser.add_argument("--json")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--meeting", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        work(arguments)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.distributed", *sys.argv[1:], "--meeting", f"{folder}/meeting"]
        ranks = [subprocess.Popen([*command, "--rank", str(rank)]) for rank in range(arguments.ranks)]
        return max(rank.wait() for rank in ranks)


if __name__ == "__main__":
    sys.exit(main())
