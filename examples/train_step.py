"""A whole training step as one graph: the same ten steps eagerly and compiled, and what was compiled.

    python -m examples.train_step

The first step makes the optimizer's state, from the second on it is there: so it is compiled twice.
"""

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

import smelt


def step(model: nn.Module, opt: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Everything that happens between two batches."""
    opt.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    return loss


def train(run: Callable[..., torch.Tensor], steps: int = 10) -> tuple[list[float], float, nn.Module]:
    """Losses, seconds of the last step, and the model."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 10))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    x, y = torch.randn(128, 256), torch.randint(0, 10, (128,))
    losses, seconds = [], 0.0
    for _ in range(steps):
        start = time.perf_counter()
        losses.append(run(model, opt, x, y).item())
        seconds = time.perf_counter() - start
        schedule.step()
    return losses, seconds, model


def main() -> None:
    plain, plain_seconds, theirs = train(step)
    losses, seconds, ours = train(smelt.compile(step, fullgraph=True))
    print(f"{'step':>4} {'eager':>10} {'one graph':>10}")
    for number, (one, other) in enumerate(zip(plain, losses, strict=True), 1):
        print(f"{number:4} {one:10.6f} {other:10.6f}")
    pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
    furthest = max((one - other).abs().max().item() for one, other in pairs)
    print(f"parameters differ by at most {furthest:.1e}")
    print(f"compiled {smelt.counters['graphs']} times; breaks: {smelt.counters['graph_breaks']}")
    print(f"a step takes {1000 * seconds:.1f} ms, eagerly {1000 * plain_seconds:.1f} ms")


if __name__ == "__main__":
    main()
