"""Schedules of exported training steps: what a file cannot do is said when it is exported."""

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

import smelt
from smelt.base.errors import SmeltError, SmeltWarning


def training(schedule_of: Callable[[Any], Any]) -> tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]:
    """A training step after three calls, and its arguments."""
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = schedule_of(optimizer)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss

    batch = torch.randn(8, 6), torch.randn(8, 2)
    for _ in range(3):
        step(*batch)
    return step, batch


def sequential(optimizer: Any) -> Any:
    parts = [lr_scheduler.LinearLR(optimizer, total_iters=10), lr_scheduler.CosineAnnealingLR(optimizer, 50)]
    return lr_scheduler.SequentialLR(optimizer, parts, milestones=[10])


def restarts(optimizer: Any) -> Any:
    return lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 10)


@pytest.mark.parametrize("schedule_of", [sequential, restarts])
def test_warns_of_the_call_at_which_it_stops(schedule_of: Callable[[Any], Any]) -> None:
    step, batch = training(schedule_of)
    with pytest.warns(SmeltWarning, match="stops after") as told:
        artifact = smelt.export(step, batch)
    found = re.search(r"stops after (\d+) calls", str(told[0].message))
    assert found is not None
    for _ in range(int(found[1])):
        torch.testing.assert_close(artifact(*batch), step(*batch).detach(), rtol=1e-4, atol=1e-6)
    with pytest.raises(SmeltError):
        artifact(*batch)


def test_does_not_warn_of_a_schedule_that_goes_on() -> None:
    step, batch = training(lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [8, 20]))
    with warnings.catch_warnings():
        warnings.simplefilter("error", SmeltWarning)
        artifact = smelt.export(step, batch)
    for _ in range(25):
        torch.testing.assert_close(artifact(*batch), step(*batch).detach(), rtol=1e-4, atol=1e-6)


def test_refuses_numbers_that_need_python_when_it_exports() -> None:
    step, batch = training(lambda optimizer: lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, step_size_up=5))
    with pytest.raises(SmeltError, match="a number is computed by mod, which needs Python"):
        smelt.export(step, batch)
