"""Level `training`: four models train with AdamW, eagerly and compiled, with the losses of the host."""

from typing import Any

import torch

from smelt.device.host_library import HOST
from smelt_conform.bench import Bench, expect, same
from smelt_conform.check import Check, Level
from smelt_conform.programs.models import MODELS

_STEPS = 4


def losses(bench: Bench, device: str, name: str, compiled: bool) -> list[float]:
    """The losses of a few training steps of a model on a device."""
    make, batch = MODELS[name]
    torch.manual_seed(0)
    model: Any = make().to(device)
    called = bench.compile(model, fullgraph=True) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    values = []
    for step in range(_STEPS):
        x, y = (tensor.to(device) for tensor in batch(step % 2))
        optimizer.zero_grad()
        loss = called(x, y)
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


def _trains(name: str, compiled: bool) -> Any:
    def run(bench: Bench) -> None:
        bench.needs(torch.float32, torch.int64)
        actual = torch.tensor(losses(bench, bench.name, name, compiled))
        expected = torch.tensor(losses(bench, HOST.type, name, False))
        expect(bool(actual.isfinite().all()), f"losses are {actual.tolist()}")
        same(actual, expected, "the losses", rtol=1e-3, atol=1e-4)

    return run


_MODES = (("", False, "eagerly"), ("_compiled", True, "through smelt.compile"))

LEVEL = Level(
    "training",
    "Training of four models",
    tuple(
        Check(
            f"{name}{suffix}", f"{name} trains with AdamW {how}", "the levels before this one", _trains(name, compiled)
        )
        for name in MODELS
        for suffix, compiled, how in _MODES
    ),
)
