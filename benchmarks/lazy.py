"""Lazy tensors beside eager and smelt.compile: what recording costs, a chain of operators, and training steps.

    python -m benchmarks.lazy                  all, on one thread; each row's contestants take turns, in processor time
    python -m benchmarks.lazy --device cuda    training steps on a GPU, in wall-clock time

Times are the best of several rounds in which all of a row are measured one after another, so that a busy machine
disturbs them alike. On a GPU a round is ten steps, at whose end the program waits for the GPU; "host" is the time until
the last of them is launched.
"""

import argparse
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


def gpt2_wide() -> tuple[nn.Module, torch.Tensor]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=4, n_embd=256, n_head=4, vocab_size=512, n_positions=256)
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    config.use_cache = False
    return GPT2LMHeadModel(config), torch.randint(0, 512, (4, 256))


STEPS = 10  # of a round on a GPU


def training_on_gpu(make: Callable[[], tuple[nn.Module, torch.Tensor]]) -> None:
    steps: dict[str, Callable[[], torch.Tensor]] = {}
    losses: dict[str, list[torch.Tensor]] = {}
    for kind in ("eager", "lazy"):
        torch.manual_seed(0)
        model, x = make()
        device = "cuda" if kind == "eager" else "lazy"
        model, x = model.to(device), x.to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

        def step(model: nn.Module = model, optimizer: Any = optimizer, x: torch.Tensor = x) -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, x)
            loss.backward()
            optimizer.step()
            return loss.detach()

        steps[kind], losses[kind] = step, [step() for _ in range(STEPS)]
    times: dict[str, list[tuple[float, float]]] = {kind: [] for kind in steps}
    for _ in range(ROUNDS):
        for kind, run in steps.items():
            _wait()
            started = time.perf_counter()
            losses[kind] += [run() for _ in range(STEPS)]
            launched = time.perf_counter()
            _wait()
            times[kind].append(((time.perf_counter() - started) / STEPS, (launched - started) / STEPS))
    (eager, eager_host), (lazy, lazy_host) = min(times["eager"]), min(times["lazy"])
    one, other = (torch.stack([each.cpu().double() for each in losses[kind]]) for kind in steps)
    print(f"  {make.__name__}: eager {eager * 1e3:.3f} ms (host {eager_host * 1e3:.3f}), lazy {lazy * 1e3:.3f} "
          f"(host {lazy_host * 1e3:.3f}): {eager / lazy:.2f} x eager's speed; "
          f"losses differ by {float(((one - other) / one).abs().max()):.1e}")  # fmt: skip


def _wait() -> None:
    smelt.lazy.step()
    torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    device = parser.parse_args().device
    if device == "cuda":
        smelt.lazy.enable(on="cuda", background=False)
        print("a training step (forward, backward, AdamW) on a GPU")
        for make in (mlp, gpt2_wide, resnet):
            training_on_gpu(make)
        return
    torch.set_num_threads(1)
    smelt.lazy.enable(background=False)
    recording()
    chain()
    print("a training step (forward, backward, AdamW)")
    for make in (mlp, gpt2, resnet):
        training(make)


if __name__ == "__main__":
    main()
