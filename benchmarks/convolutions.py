"""Convolutions and attention by kernels of our own beside the library: `python -m benchmarks.convolutions`.

    python -m benchmarks.convolutions [--only resnet depthwise attention] [--backward] [--channels-last] [--rounds 11]
                                      [--threads 1] [--json FILE]

Each line: GFLOP/s of eager, of smelt with the option `products` at "library" and at "own", the library's time over ours
(above one: ours is faster), and the schedules that multiply; a star is where `smelt.compile` chooses them by itself.
With `--backward` it is the forward and the gradients of all inputs. They run alternately; with one thread processor
time counts, with more the clock's.
"""

import argparse
import functools
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

import smelt
from benchmarks.harness import machine
from benchmarks.measure import interleaved, ratio
from benchmarks.products import thread_count
from benchmarks.table import mean
from smelt.base import events
from smelt.codegen.cpu.problem_kinds import KINDS
from smelt.device import find
from smelt.ir.check_kernel import contraction_of
from smelt.ir.kernel import members
from smelt.ir.program import Program

LIBRARY, OWN = "library", "own"


@dataclass(frozen=True, slots=True)
class Convolution:
    """A batch of images and the filters for them."""

    name: str
    batch: int
    channels: int
    size: int
    filters: int
    kernel: int
    stride: int = 1
    padding: int = 0
    groups: int = 1

    @property
    def flops(self) -> int:
        out = (self.size + 2 * self.padding - self.kernel) // self.stride + 1
        return 2 * self.batch * self.filters * out * out * self.channels // self.groups * self.kernel**2

    def inputs(self) -> list[Tensor]:
        channels = self.channels // self.groups
        image = torch.randn(self.batch, self.channels, self.size, self.size)
        return [image, torch.randn(self.filters, channels, self.kernel, self.kernel) / self.kernel]

    def call(self, x: Tensor, w: Tensor) -> Tensor:
        return F.conv2d(x, w, None, self.stride, self.padding, 1, self.groups)


@dataclass(frozen=True, slots=True)
class Attention:
    """Heads of queries, keys and values of one length, or of so many `keys`; heads of keys are `shared` by several of
    queries. In memory tokens come before heads, as projections leave them."""

    name: str
    batch: int
    heads: int
    length: int
    width: int
    causal: bool = False
    keys: int = 0
    shared: int = 1

    @property
    def flops(self) -> int:
        return 4 * self.batch * self.heads * self.length * (self.keys or self.length) * self.width

    def inputs(self) -> list[Tensor]:
        keys, heads = self.keys or self.length, self.heads // self.shared
        shapes = ((self.length, self.heads), (keys, heads), (keys, heads))
        return [torch.randn(self.batch, tokens, each, self.width).transpose(1, 2) for tokens, each in shapes]

    def call(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=self.shared > 1)


Layer = Convolution | Attention

LAYERS: tuple[Layer, ...] = (
    Convolution("resnet stem 7×7/2", 4, 3, 96, 64, 7, 2, 3),
    Convolution("resnet 3×3 64", 4, 64, 24, 64, 3, 1, 1),
    Convolution("resnet 3×3/2 64-128", 4, 64, 24, 128, 3, 2, 1),
    Convolution("resnet 3×3 128", 4, 128, 12, 128, 3, 1, 1),
    Convolution("resnet 3×3 256", 4, 256, 6, 256, 3, 1, 1),
    Convolution("resnet 3×3 512", 4, 512, 3, 512, 3, 1, 1),
    Convolution("resnet 1×1 64-256", 1, 64, 56, 256, 1),
    Convolution("resnet 1×1/2 256-512", 1, 256, 56, 512, 1, 2),
    Convolution("resnet 3×3 64, 56²", 1, 64, 56, 64, 3, 1, 1),
    Convolution("mobilenet 1×1 16-96", 4, 16, 48, 96, 1),
    Convolution("mobilenet 1×1 320-1280", 4, 320, 3, 1280, 1),
    Convolution("depthwise 3×3 96", 4, 96, 48, 96, 3, 1, 1, 96),
    Convolution("depthwise 3×3/2 144", 4, 144, 24, 144, 3, 2, 1, 144),
    Convolution("depthwise 7×7 96", 4, 96, 24, 96, 7, 1, 3, 96),
    Convolution("convnext patch 4×4", 4, 3, 96, 48, 4, 4),
    Convolution("convnext 2×2/2 96-192", 4, 96, 12, 192, 2, 2),
    Convolution("vit patch 16×16", 4, 3, 96, 192, 16, 16),
    Convolution("grouped 3×3 128, 4 groups", 4, 128, 24, 128, 3, 1, 1, 4),
    Attention("attention 4×128×64", 4, 4, 128, 64),
    Attention("attention 4×128×64 causal", 4, 4, 128, 64, causal=True),
    Attention("attention 12×512×64", 1, 12, 512, 64),
    Attention("attention 12×512×64 causal", 1, 12, 512, 64, causal=True),
    Attention("attention vit 12×197×64", 1, 12, 197, 64),
    Attention("attention swin 64×3×49×32", 64, 3, 49, 32),
    Attention("attention 8×256×128", 1, 8, 256, 128),
    Attention("attention shared 16×256×64", 1, 16, 256, 64, causal=True, shared=4),
    Attention("attention 4×32×16", 4, 4, 32, 16),
    Attention("attention 4×8×64×8", 4, 8, 64, 8),
    Attention("attention decode 12×1×512", 1, 12, 1, 64, keys=512),
    Attention("attention decode 4×12×1×128", 4, 12, 1, 64, keys=128),
    Attention("attention decode shared 32×1×512", 1, 32, 1, 64, keys=512, shared=4),
)


@dataclass(frozen=True, slots=True)
class Figure:
    """Median seconds of a layer by each backend, how much faster ours is, and the schedules that multiply."""

    name: str
    flops: int
    threads: int
    seconds: dict[str, float]
    over_library: float
    over_eager: float
    schedules: list[str]
    chosen: bool = False  # whether the compiler makes kernels of it by itself


def schedules_of(programs: Sequence[Program]) -> list[str]:
    """How the kernels with a contraction are computed, in order."""
    launched = [kernel for program in programs for kernel in program.kernels]
    kernels = [kernel for each in launched for kernel in members(each) if contraction_of(kernel) is not None]
    kinds = [next(kind for kind in KINDS if kind.takes(kernel)) for kernel in kernels]
    return [kind.plan(kernel, find(kernel.target)).schedule.name for kind, kernel in zip(kinds, kernels, strict=True)]


def _step(call: Callable[..., Tensor], inputs: Sequence[Tensor], backward: bool) -> Callable[[], object]:
    if not backward:
        return torch.no_grad()(functools.partial(call, *inputs))
    leaves = [x.detach().requires_grad_() for x in inputs]
    upstream = torch.randn_like(call(*leaves))

    def step() -> object:
        return torch.autograd.grad(call(*leaves), leaves, upstream)

    return step


def measured(
    layer: Layer, threads: int, backward: bool, channels_last: bool, rounds: int, per_round: float = 0.02
) -> Figure:
    """Eager, and smelt with the library's products and with its own."""
    inputs = layer.inputs()
    if channels_last and isinstance(layer, Convolution):
        inputs = [x.contiguous(memory_format=torch.channels_last) for x in inputs]
    smelt.reset()
    ways = {"eager": _step(layer.call, inputs, backward)}
    schedules: dict[str, list[str]] = {}
    with thread_count(threads):
        for products in ("auto", LIBRARY, OWN):

            def call(*inputs: Tensor, layer: Layer = layer) -> Tensor:
                return layer.call(*inputs)

            with events.collect() as seen:
                ways[products] = _step(smelt.compile(call, options={"products": products}), inputs, backward)
                ways[products]()
            programs = [event.subject for event in seen if isinstance(event.subject, Program)]
            schedules[products] = schedules_of(programs)
        del ways["auto"]
        clock = time.process_time if threads == 1 else time.perf_counter
        for way in ways.values():
            way()
        seconds = interleaved(ways, rounds, per_round, clock)
    medians = {name: sorted(times)[len(times) // 2] for name, times in seconds.items()}
    flops = layer.flops * (3 if backward else 1)
    library, eager = ratio(seconds, LIBRARY, OWN), ratio(seconds, "eager", OWN)
    chosen = schedules["auto"] == schedules[OWN]
    return Figure(layer.name, flops, threads, medians, library, eager, schedules[OWN], chosen)


def line(figure: Figure) -> str:
    rates = [f"{figure.flops / figure.seconds[name] / 1e9:8.1f}" for name in ("eager", LIBRARY, OWN)]
    how = (", ".join(figure.schedules) or "library calls") + " *" * figure.chosen
    return f"{figure.name:32} {''.join(rates)} {figure.over_eager:10.2f} {figure.over_library:12.2f}  {how}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.convolutions", description="convolutions of our own, attention")
    parser.add_argument("--only", nargs="+", default=[""], help="layers with one of these in their names")
    parser.add_argument("--backward", action="store_true", help="forward and both gradients")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    args = parser.parse_args()
    if os.environ.get("OMP_NUM_THREADS") != str(args.threads):
        print(f"note: set OMP_NUM_THREADS={args.threads}: some of the library keeps the threads it starts with")
    print(", ".join(f"{key} {value}" for key, value in machine().items() if key != "threads"))
    print(f"{'GFLOP/s':32}    eager library     own  eager/own  library/own  schedules", flush=True)
    figures = []
    for layer in [each for each in LAYERS if any(part in each.name for part in args.only)]:
        figures.append(measured(layer, args.threads, args.backward, args.channels_last, args.rounds))
        print(line(figures[-1]), flush=True)
    averages = [mean(getattr(each, name) for each in figures) or 0.0 for name in ("over_eager", "over_library")]
    print(f"{'geometric mean':32} {'':24} {averages[0]:10.2f} {averages[1]:12.2f}")
    if args.json:
        written = {"machine": machine(), "figures": [asdict(each) for each in figures]}
        args.json.write_text(json.dumps(written, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
