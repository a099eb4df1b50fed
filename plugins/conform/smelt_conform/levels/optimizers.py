"""Level `optimizers`: three steps on a small model give the same parameters as on the host."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn, optim

from smelt_conform.bench import compared, numbers
from smelt_conform.check import Check, Level

_OPTIMIZERS: dict[str, Callable[..., optim.Optimizer]] = {
    "sgd": partial(optim.SGD, lr=0.1),
    "momentum": partial(optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": partial(optim.Adam, lr=0.01, amsgrad=True),
    "adamw": partial(optim.AdamW, lr=0.01),
    "adamw_foreach": partial(optim.AdamW, lr=0.01, foreach=True),
    "rmsprop": partial(optim.RMSprop, lr=0.01, centered=True),
    "adagrad": partial(optim.Adagrad, lr=0.01),
}


def _steps(device: str, make: Callable[..., optim.Optimizer]) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)).to(device)
    optimizer = make(model.parameters())
    for seed in range(3):
        optimizer.zero_grad()
        model(numbers(device, 7, 6, seed=seed)).square().mean().backward()
        optimizer.step()
    return list(model.parameters())


def _clipped(device: str) -> Any:
    torch.manual_seed(0)
    model = nn.Linear(6, 5).to(device)
    (model(numbers(device, 7, 6)) * 100).square().sum().backward()
    total = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return total / 1000, *[parameter.grad for parameter in model.parameters()]


def _stored(device: str) -> Any:
    """Move state through `state_dict` to another optimizer."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3).to(device)
    first = optim.AdamW(model.parameters(), lr=0.01)
    for optimizer in (first, optim.AdamW(model.parameters(), lr=0.01)):
        if optimizer is not first:
            optimizer.load_state_dict(first.state_dict())
        model.zero_grad()
        model(numbers(device, 5, 4)).square().mean().backward()
        optimizer.step()
    return list(model.parameters())


_LOOK = "element-wise kernels in place, and copies of numbers: levels elementwise and copies"

LEVEL = Level(
    "optimizers",
    "Optimizers",
    (
        *[
            Check(name, f"three steps of {name}", _LOOK, compared(partial(_steps, make=make)))
            for name, make in _OPTIMIZERS.items()
        ],
        Check("clipping", "gradients clipped by their norm", "level reductions: statistics", compared(_clipped)),
        Check("state", "an optimizer's state moves to another", "copies within the chip", compared(_stored)),
    ),
)
