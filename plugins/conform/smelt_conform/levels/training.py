"""Level `training`: four models train with AdamW, eagerly and compiled, to the host's losses."""

from typing import Any

import torch

from smelt.device.host_library import HOST
from smelt_conform.bench import Bench, expect, same
from smelt_conform.check import Check, Level
from smelt_conform.programs.models import MODELS

_STEPS = 4


def losses(bench: Bench, device: str, name: str, compiled: bool) -> list[float]:
    """Of a few steps of a model on a device."""
    make, batch = MODELS[name]
    torch.manual_seed(0)
    model: Any = make().to(device)
    called = bench.compile(model, fullgraph=True) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    found = []
    for step in range(_STEPS):
        x, y = (each.to(device) for each in batch(step % 2))
        optimizer.zero_grad()
        loss = called(x, y)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def _trains(name: str, compiled: bool) -> Any:
    def run(bench: Bench) -> None:
        bench.needs(torch.float32, torch.int64)
        found = torch.tensor(losses(bench, bench.name, name, compiled))
        wanted = torch.tensor(losses(bench, HOST.type, name, False))
        expect(bool(found.isfinite().all()), f"losses are {found.tolist()}")
        same(found, wanted, "the losses", rtol=1e-3, atol=1e-4)

    return run


_WAYS = (("", False, "by eager calls"), ("_compiled", True, "through smelt.compile"))

LEVEL = Level(
    "training",
    "Training of four models",
    tuple(
        Check(
            f"{name}{suffix}", f"{name} trains with AdamW {how}", "the levels before this one", _trains(name, compiled)
        )
        for name in MODELS
        for suffix, compiled, how in _WAYS
    ),
)
