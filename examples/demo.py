"""`make demo`: one small transformer trained eagerly and through smelt, side by side, from equal seeds.

    python -m examples.demo [--torch-compile] [--steps 300] [--seconds 60] [--device cuda]

Every step gives each run the same batch, one after the other, so a busy machine slows all alike. The end is a table and
a sample of text from each. The exit code is 1 if a run fails or if smelt's losses leave the stated tolerance. Where
PyTorch has a GPU the training is there; a step is over when the GPU is done with it.
"""

import argparse
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

import smelt
from benchmarks.measure import saved_bytes
from examples.model import CharTransformer

SEED, CONTEXT, BATCH = 1, 64, 16
FIRST_TOLERANCE = 1e-4  # relative; equal weights and equal batch, so only rounding separates the first losses
FINAL_TOLERANCE = 0.02  # relative, on the mean of the last 20 losses: rounding grows over hundreds of updates
WARM = 5  # steps left out of the timing
WIDTHS = {"cpu": 128, "cuda": 512}  # of the model: a GPU is to have something to do
BLANK = "–"


class Text:
    """The text that ships with the repository, as numbers."""

    def __init__(self, device: torch.device) -> None:
        text = (Path(__file__).parent / "data" / "forge.txt").read_text(encoding="utf-8")
        self.characters = sorted(set(text))
        self.numbers = torch.tensor([self.characters.index(c) for c in text])
        self.device = device

    def batch(self, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        starts = torch.randint(len(self.numbers) - CONTEXT - 1, (BATCH,), generator=generator)
        rows = starts[:, None] + torch.arange(CONTEXT + 1)
        return self.numbers[rows[:, :-1]].to(self.device), self.numbers[rows[:, 1:]].to(self.device)

    def words(self, numbers: list[int]) -> str:
        return "".join(self.characters[number] for number in numbers)


@dataclass
class Run:
    """One model in training under one backend."""

    name: str
    module: nn.Module
    model: Callable[..., torch.Tensor]
    optimizer: torch.optim.Optimizer
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    handing_over: float = 0.0  # seconds for the call that makes `model` of `module`
    saved: int = 0
    failed: str = ""

    def clock(self) -> float:
        """Seconds, when all that was asked for until now is done."""
        if next(self.module.parameters()).is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    def step(self, tokens: torch.Tensor, targets: torch.Tensor) -> None:
        """zero_grad, forward, backward, optimizer: the time of all of it counts."""
        began, forward = self.clock(), 0.0
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.model(tokens, targets)
        if len(self.losses) == 1:  # counting takes a while, which is no part of the step
            forward = self.clock() - began
            self.saved = saved_bytes(loss, self.module.parameters())
            began = self.clock()
        loss.backward()
        self.optimizer.step()
        self.seconds.append(forward + self.clock() - began)
        self.losses.append(loss.item())

    @property
    def per_step(self) -> float:
        return statistics.median(self.seconds[WARM:] or self.seconds)

    @property
    def final_loss(self) -> float:
        return statistics.fmean(self.losses[-20:])


COMPILERS: dict[str, Callable[[nn.Module], Any]] = {
    "eager": lambda module: module,
    "smelt": smelt.compile,
    "torch.compile": torch.compile,
}


def start(name: str, characters: int, device: torch.device) -> Run:
    torch.manual_seed(SEED)
    module = CharTransformer(characters, CONTEXT, width=WIDTHS.get(device.type, 128)).to(device)
    optimizer = torch.optim.AdamW(module.parameters(), lr=2e-3)
    began = time.perf_counter()
    model = COMPILERS[name](module)
    return Run(name, module, model, optimizer, handing_over=time.perf_counter() - began)


def train(runs: list[Run], text: Text, steps: int, seconds: float) -> None:
    """All runs, step by step in turn, with progress now and then, until `steps` or `seconds` for each are used up."""
    generator = torch.Generator().manual_seed(SEED)
    heads = "".join(f" │ {run.name:>13} loss    ms" for run in runs)
    print(f"\n{'step':>10}{heads}")
    for step in range(1, steps + 1):
        tokens, targets = text.batch(generator)
        for run in runs:
            if run.failed:
                continue
            try:
                run.step(tokens, targets)
            except Exception as error:  # one run failing must not hide the others' figures
                run.failed = f"{type(error).__name__}: {error}"
                print(f"{run.name} failed at step {step}: {run.failed}")
        if step in (1, 2, 5, 10) or step % max(1, steps // 10) == 0:
            cells = "".join(f" │ {run.losses[-1]:18.4f} {run.seconds[-1] * 1e3:5.0f}" for run in runs if not run.failed)
            print(f"{step:>4}/{steps:<5}{cells}", flush=True)
        if statistics.fmean(sum(run.seconds[1:]) for run in runs) > seconds:  # first steps apart
            print(f"this machine is slow or busy: stopping after step {step}")
            break


@torch.no_grad()
def sample(run: Run, text: Text, length: int = 240) -> str:
    """What the trained model writes on from the opening of the text; its window never changes size."""
    generator = torch.Generator().manual_seed(SEED)
    window = text.numbers[:CONTEXT].to(text.device, copy=True)[None]
    written: list[int] = []
    for _ in range(length):
        scores = run.model(window)[0, -1]
        number = torch.multinomial(torch.softmax(scores / 0.6, -1).cpu(), 1, generator=generator)
        written.append(int(number))
        window = torch.cat([window[:, 1:], number[None].to(text.device)], dim=1)
    return text.words(written)


def table(runs: list[Run]) -> str:
    """The comparison: a column per run."""
    eager = runs[0]
    rows = [["", *(run.name for run in runs)]]

    def row(label: str, show: Callable[[Run], str]) -> None:
        rows.append([label, *(show(run) if not run.failed else BLANK for run in runs)])

    row("first step, s", lambda run: f"{run.handing_over + run.seconds[0]:.2f}")
    row("step, ms (median)", lambda run: f"{run.per_step * 1e3:.1f}")
    row("speed-up over eager", lambda run: f"{eager.per_step / run.per_step:.2f}×")
    row("saved for backward, MB", lambda run: f"{run.saved / 1e6:.2f}")
    row("loss, first step", lambda run: f"{run.losses[0]:.5f}")
    row("loss, last 20 steps", lambda run: f"{run.final_loss:.4f}")
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for label, *cells in rows:
        padded = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append(" │ ".join([label.ljust(widths[0]), *padded]))
    return "\n".join([lines[0], "─┼─".join("─" * width for width in widths), *lines[1:]])


def verdict(eager: Run, compiled: Run) -> str:
    """Why the two runs disagree, or nothing."""
    if compiled.failed:
        return f"smelt failed: {compiled.failed}"
    first = abs(compiled.losses[0] - eager.losses[0]) / abs(eager.losses[0])
    final = abs(compiled.final_loss - eager.final_loss) / abs(eager.final_loss)
    if not first <= FIRST_TOLERANCE:
        return f"first losses differ by {first:.1e}, more than {FIRST_TOLERANCE:.0e}"
    if not final <= FINAL_TOLERANCE:
        return f"final losses differ by {final:.1%}, more than {FINAL_TOLERANCE:.0%}"
    return ""


def machine(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} threads"


def what_smelt_did(caught: list[warnings.WarningMessage]) -> str:
    lines = [f"smelt compiled {smelt.counters['graphs']} graph(s), with {smelt.counters['graph_breaks']} break(s)"]
    lines += dict.fromkeys(f"smelt warned: {w.message}" for w in caught if issubclass(w.category, smelt.SmeltWarning))
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="examples.demo", description=__doc__.splitlines()[0])
    parser.add_argument("--torch-compile", action="store_true", help="train a third copy through torch.compile")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=60, help="stop early once a run has trained this long")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="where to train")
    args = parser.parse_args()
    device = torch.device(args.device)
    os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"  # its first step, not a memory of an earlier demo
    text = Text(device)
    names = ["eager", "smelt", *(["torch.compile"] if args.torch_compile else [])]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        runs = [start(name, len(text.characters), device) for name in names]
        parameters = sum(p.numel() for p in runs[0].module.parameters())
        print(f"A transformer of {parameters:,} parameters learns {len(text.numbers):,} characters,")
        print(f"{BATCH} windows of {CONTEXT} a step, on {machine(device)}; {', '.join(names)} in turns.")
        train(runs, text, args.steps, args.seconds)
        samples = {run.name: sample(run, text) for run in runs if not run.failed}
    print(f"\n{table(runs)}\n\n{what_smelt_did(list(caught))}")
    for name, written in samples.items():
        print(f"\n{name} writes:\n  " + written.strip().replace("\n", "\n  "))
    problem = verdict(runs[0], runs[1])
    print(f"\n{problem or 'eager and smelt agree: the same losses within the tolerance.'}")
    return int(bool(problem))


if __name__ == "__main__":
    sys.exit(main())
