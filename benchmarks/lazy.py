"""Lazy tensors beside eager and smelt.compile: what recording costs, a chain of operators, and training steps.

    python -m benchmarks.lazy            all, on one thread; each row's contestants take turns, in processor time

Times are the best of several rounds in which all of a row are measured one after another, so that a busy machine
disturbs them alike.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

import smelt

ROUNDS = 15
CALLS = 300

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "x + y": lambda x, y: x + y,
    "x * 2.0": lambda x, y: x * 2.0,
    "relu(x)": lambda x, y: torch.relu(x),
    "x.neg_()": lambda x, y: x.neg_(),
    "x.sum()": lambda x, y: x.sum(),
    "mm(x, y)": torch.mm,
    "x.view(16)": lambda x, y: x.view(16),
}


def best(contestants: Sequence[Callable[[], object]], rounds: int = ROUNDS) -> list[float]:
    """The least processor time of each, in seconds."""
    found = [float("inf")] * len(contestants)
    for _ in range(rounds):
        for number, contestant in enumerate(contestants):
            started = time.process_time()
            contestant()
            found[number] = min(found[number], time.process_time() - started)
    return found


def recording() -> None:
    print("recording a small operator again, without gradients (us a call)")
    for name, operator in OPERATORS.items():
        x, y = torch.randn(4, 4), torch.randn(4, 4)

        def calls(x: torch.Tensor, y: torch.Tensor, operator: Callable[[Any, Any], Any] = operator) -> None:
            for _ in range(CALLS):
                operator(x, y)

        there = (x.to("lazy"), y.to("lazy"))
        eager, lazy = [float("inf")], [float("inf")]
        with torch.no_grad():
            for _ in range(ROUNDS):
                for found, given in ((eager, (x, y)), (lazy, there)):
                    found[0] = min(found[0], best([partial(calls, *given)], 1)[0])
                smelt.lazy.step()
        print(f"  {name:12} eager {eager[0] / CALLS * 1e6:6.2f}  lazy {lazy[0] / CALLS * 1e6:6.2f}"
              f"  {lazy[0] / eager[0]:.2f} x")  # fmt: skip


def chain() -> None:
    x = torch.randn(1_000_000)
    there = x.to("lazy")

    def run(x: torch.Tensor) -> torch.Tensor:
        for _ in range(50):
            x = x * 1.01 + 0.5
        return x

    def lazily() -> None:
        found = run(there)
        smelt.lazy.step()
        del found

    with torch.no_grad():
        for _ in range(3):
            lazily()
        eager, lazy = best([lambda: run(x), lazily], 7)
    print(f"100 element-wise operators on 1,000,000 numbers: eager {eager * 1e3:.1f} ms, lazy {lazy * 1e3:.1f} ms: "
          f"{eager / lazy:.2f} x as fast")  # fmt: skip


def mlp() -> tuple[nn.Module, torch.Tensor]:
    layers = [nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10)]
    return nn.Sequential(*layers), torch.randn(64, 256)


def gpt2() -> tuple[nn.Module, torch.Tensor]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=2, n_embd=128, n_head=4, vocab_size=512, n_positions=64)
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    config.use_cache = False
    return GPT2LMHeadModel(config), torch.randint(0, 512, (4, 64))


def resnet() -> tuple[nn.Module, torch.Tensor]:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic")
    config.num_labels = 10
    return ResNetForImageClassification(config).train(), torch.randn(4, 3, 96, 96)


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    found: Any = model(x)
    logits: torch.Tensor = getattr(found, "logits", found)
    return logits.square().mean()


def training(make: Callable[[], tuple[nn.Module, torch.Tensor]]) -> None:
    steps: list[Callable[[], object]] = []
    firsts = []
    for kind in ("eager", "compiled", "lazy"):
        torch.manual_seed(0)
        model, x = make()
        if kind == "lazy":
            model, x = model.to("lazy"), x.to("lazy")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        called: Any = smelt.compile(model) if kind == "compiled" else model

        def step(called: Any = called, optimizer: Any = optimizer, x: torch.Tensor = x) -> None:
            optimizer.zero_grad()
            loss_of(called, x).backward()
            optimizer.step()

        started = time.perf_counter()
        step()
        firsts.append(time.perf_counter() - started)
        for _ in range(4):
            step()
        steps.append(step)
    eager, compiled, lazy = best(steps, 20)
    print(f"  {make.__name__}: eager {eager * 1e3:.2f} ms, compiled {compiled * 1e3:.2f}, lazy {lazy * 1e3:.2f}: "
          f"{eager / lazy:.2f} x eager's speed, {compiled / lazy:.2f} of compiled's; "
          f"first step {firsts[2] / firsts[1]:.2f} x compiled's")  # fmt: skip


def main() -> None:
    torch.set_num_threads(1)
    smelt.lazy.enable(background=False)
    recording()
    chain()
    print("a training step (forward, backward, AdamW)")
    for make in (mlp, gpt2, resnet):
        training(make)


if __name__ == "__main__":
    main()
