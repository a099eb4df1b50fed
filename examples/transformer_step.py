"""A transformer's whole training step as one graph: forward, loss, backward, clipping, optimizer.

    python -m examples.transformer_step

A small character model learns a line by heart, eagerly and compiled from the same weights. Parameters are updated in
place by the same kernels that end the backward; the learning rate may change at every step and compiles nothing.
"""

import copy
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

import smelt
from examples.model import CharTransformer

LINE = "the smith heats the iron, and the iron takes the shape. "
Step = Callable[[nn.Module, torch.optim.Optimizer, torch.Tensor, torch.Tensor], torch.Tensor]


def step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """Everything that happens between two batches."""
    optimizer.zero_grad()
    loss: torch.Tensor = model(tokens, after)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss


def train(run: Step, model: nn.Module, batches: list[torch.Tensor]) -> tuple[list[float], list[float]]:
    """The loss of each step, and its seconds."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(batches))
    losses, seconds = [], []
    for batch in batches:
        start = time.perf_counter()
        losses.append(run(model, optimizer, batch[:, :-1], batch[:, 1:]).item())
        seconds.append(time.perf_counter() - start)
        schedule.step()
    return losses, seconds


def main(steps: int = 30) -> None:
    torch.manual_seed(0)
    characters = sorted(set(LINE))
    text = torch.tensor([characters.index(character) for character in LINE * 20])
    starts = torch.randint(0, len(text) - 33, (steps, 8))
    batches = [torch.stack([text[start : start + 33] for start in row]) for row in starts.tolist()]

    model = CharTransformer(len(characters), context=32, width=64, heads=2, depth=2)
    twin = copy.deepcopy(model)
    eager, eager_seconds = train(step, model, batches)
    ours, our_seconds = train(smelt.compile(step, fullgraph=True), twin, batches)

    for number in (0, steps // 2, steps - 1):
        print(f"step {number + 1:2}: loss {eager[number]:.4f} eagerly, {ours[number]:.4f} in one graph")
    print(f"compiled {smelt.counters['graphs']} times; breaks: {smelt.counters['graph_breaks']}")
    later, eagerly = (1e3 * statistics.median(seconds[2:]) for seconds in (our_seconds, eager_seconds))
    print(f"first step {our_seconds[0]:.2f} s; later {later:.1f} ms, eagerly {eagerly:.1f} ms")


if __name__ == "__main__":
    main()
