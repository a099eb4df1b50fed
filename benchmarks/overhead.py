"""What a call costs beyond its work: µs per call of a function that does next to nothing.

    python -m benchmarks.overhead [--rounds 15] [--json FILE]

`bare` is the plain function; the backends take turns in one process, and `+` is what each adds to it. The decoder has
28 layers of twelve modules each, all of which a compiled entry has to be sure of at every call; its last line is the
time before the graph starts: a backend is plugged in whose graph computes nothing.

What counts is the processor time of the calling thread, on which all of this runs: on a busy machine the time on the
wall says more about the neighbours.
"""

import argparse
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.harness import compiled_by
from benchmarks.measure import interleaved


def tiny(x: torch.Tensor) -> torch.Tensor:
    return x + 1


class Deep(nn.Module):
    """28 linear layers of width 4: almost no arithmetic, many parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(28))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = 1e-6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.v_proj, self.o_proj = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            projection(x).view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed: torch.Tensor = self.o_proj(y.transpose(1, 2).reshape(batch, length, width))
        return mixed


class FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down_proj, self.act_fn = nn.Linear(2 * width, width, bias=False), nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
        return y


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(width), Norm(width)
        self.self_attn, self.mlp = Attention(width, 2), FeedForward(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        y: torch.Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return y


class Decoder(nn.Module):
    """The modules of a Llama with 28 layers, of width 8."""

    def __init__(self, layers: int = 28, width: int = 8) -> None:
        super().__init__()
        self.embed_tokens, self.norm = nn.Embedding(16, width), Norm(width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.lm_head = nn.Linear(width, 16, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        logits: torch.Tensor = self.lm_head(self.norm(x))
        return logits


def idle(module: torch.fx.GraphModule, examples: Any) -> Callable[..., Any]:
    """A backend whose graphs return zeros made beforehand."""
    returned: Any = module.graph.output_node().args[0]
    zeros = tuple(torch.zeros(1, 4, 16) for _ in returned)
    return lambda *inputs: zeros


def idle_by(backend: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` compiled to nothing; the plain one calls nothing either."""
    if backend == "smelt":
        import smelt

        compiled: Callable[..., Any] = smelt.compile(function, backend=idle)
        return compiled
    if backend == "torch.compile":
        return torch.compile(function, backend=idle)
    return lambda *args: None


def measured(
    function: Callable[..., Any],
    x: torch.Tensor,
    backends: list[str],
    rounds: int,
    compiled: Callable[[str, Callable[..., Any]], Callable[..., Any]] = compiled_by,
) -> dict[str, float]:
    """Median µs per call of `function(x)` under each backend; one that fails is reported and left out."""
    calls: dict[str, Callable[[], object]] = {}
    for backend in backends:
        call = functools.partial(compiled(backend, function), x)
        try:
            for _ in range(5):
                call()
        except Exception as error:  # the other backends' figures still count
            print(f"{backend} failed: {error}", file=sys.stderr)
            continue
        calls["bare" if backend == "eager" else backend] = call
    for each in calls.values():  # importing a compiler makes the first call of another one check what has changed
        each()
    seconds = interleaved(calls, rounds, per_round=0.02, clock=time.thread_time)
    return {name: statistics.median(found) * 1e6 for name, found in seconds.items()}


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.overhead", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--backends", nargs="+", default=["eager", "smelt", "torch.compile"])
    parser.add_argument("--json", type=Path, help="also write every figure here")
    args = parser.parse_args()
    small, tokens = torch.randn(4), torch.randint(0, 16, (1, 4))
    with torch.no_grad():
        figures = {
            "x + 1": measured(tiny, small, args.backends, args.rounds),
            "28 linear layers": measured(Deep(), small, args.backends, args.rounds),
            "decoder, before the graph": measured(Decoder(), tokens, args.backends, args.rounds, idle_by),
        }
    figures["x + 1 with gradient"] = measured(tiny, torch.randn(4, requires_grad=True), args.backends, args.rounds)
    for what, found in figures.items():
        bare = found.get("bare", 0.0)
        shown = (
            f"{name} {value:8.1f} µs" + (f" (+{value - bare:.1f})" if name != "bare" else "")
            for name, value in found.items()
        )
        print(f"{what:26}" + "  ".join(shown))
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1))
    return int("smelt" in args.backends and not all("smelt" in found for found in figures.values()))


if __name__ == "__main__":
    sys.exit(main())
