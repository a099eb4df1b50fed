"""Schedules of exported training steps: they run on beyond their ends, or what a file cannot do is said at export."""

import re
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.optim import lr_scheduler

import smelt
from smelt.base.errors import SmeltError, SmeltWarning
from tests.deploy.c_runtime import Session

Step = Callable[..., torch.Tensor]
SGD = partial(torch.optim.SGD, lr=0.1)


def training(
    schedule_of: Callable[[Any], Any], optimizer_of: Callable[..., Any] = SGD, calls: int = 3
) -> tuple[Step, tuple[torch.Tensor, ...]]:
    """A training step after some calls, and its arguments."""
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 2)
    optimizer = optimizer_of(model.parameters())
    schedule = schedule_of(optimizer)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss

    batch = torch.randn(8, 6), torch.randn(8, 2)
    for _ in range(calls):
        step(*batch)
    return step, batch


def exported(step: Step, batch: tuple[torch.Tensor, ...], folder: Path, **options: Any) -> Session:
    """A session of an artifact that was exported without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", SmeltWarning)
        return Session(smelt.export(step, batch, **options).save(folder / "step.smelt"))


def same(step: Step, batch: tuple[torch.Tensor, ...], session: Session, calls: int) -> None:
    for _ in range(calls):
        (got,) = session.run(list(batch))
        torch.testing.assert_close(got, step(*batch).detach(), rtol=1e-4, atol=1e-6)


def sequential(optimizer: Any) -> Any:
    parts = [lr_scheduler.LinearLR(optimizer, total_iters=10), lr_scheduler.CosineAnnealingLR(optimizer, 50)]
    return lr_scheduler.SequentialLR(optimizer, parts, milestones=[10])


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "steps": lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [8, 20]),
    "sequential": sequential,
    "restarts": lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 5),
    "longer restarts": lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 5, T_mult=2),
    "cycles": lambda optimizer: lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, step_size_up=5),
    "smaller cycles": lambda optimizer: lr_scheduler.CyclicLR(
        optimizer, 0.01, 0.1, step_size_up=5, mode="triangular2", cycle_momentum=False
    ),
    "cosine": lambda optimizer: transformers.get_cosine_schedule_with_warmup(optimizer, 5, 20),
    "linear": lambda optimizer: transformers.get_linear_schedule_with_warmup(optimizer, 5, 20),
    "hard restarts": lambda optimizer: transformers.get_cosine_with_hard_restarts_schedule_with_warmup(
        optimizer, 5, 20, num_cycles=2
    ),
    "stable, then decay": lambda optimizer: transformers.get_wsd_schedule(optimizer, 5, 5, num_training_steps=20),
    "inverse square root": lambda optimizer: lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) ** -0.5, (step + 1) * 10**-1.5)
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_goes_on_beyond_its_end(name: str, tmp_path: Path) -> None:
    step, batch = training(SCHEDULES[name], partial(SGD, momentum=0.9))
    same(step, batch, exported(step, batch, tmp_path), 65)


@pytest.mark.parametrize("name", ["cosine", "longer restarts", "sequential"])
def test_begins_at_the_first_step(name: str, tmp_path: Path) -> None:
    step, batch = training(SCHEDULES[name], calls=0)
    same(step, batch, exported(step, batch, tmp_path), 40)


def test_finds_the_end_of_a_long_schedule(tmp_path: Path) -> None:
    """The end is some hundred thousand steps away, and reached from just before it."""
    steps = 300_000

    def schedule_of(optimizer: Any) -> Any:
        return transformers.get_cosine_schedule_with_warmup(optimizer, 1_000, steps)

    step, batch = training(schedule_of)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SmeltWarning)
        artifact = smelt.export(step, batch)
    conditions = [check for variant in artifact.machine.states[0].variants for check in variant.checks]
    assert len(artifact.machine.states[0].variants) == 3, conditions  # warm-up, decay, and the last step


def test_each_size_has_all_of_a_schedule(tmp_path: Path) -> None:
    step, (x, y) = training(SCHEDULES["cosine"])
    session = exported(step, (x, y), tmp_path, dynamic={"x": {0: ("batch", 1, 64)}, "y": {0: ("batch", 1, 64)}})
    for count in (8, 1, 30, 1, 8) * 5:
        same(step, (x[:1].repeat(count, 1), y[:1].repeat(count, 1)), session, 1)


def test_changes_the_betas_of_adam_by_one_cycle_and_says_where_it_ends() -> None:
    step, batch = training(
        lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20),
        partial(torch.optim.AdamW, lr=0.01),
        calls=0,
    )
    with pytest.warns(SmeltWarning, match="stops after") as told:
        artifact = smelt.export(step, batch)
    found = re.search(r"stops after (\d+) calls, where .*last_epoch is 20", str(told[0].message))
    assert found is not None and int(found[1]) == 20
    for _ in range(20):
        torch.testing.assert_close(artifact(*batch), step(*batch).detach(), rtol=1e-4, atol=1e-6)
    with pytest.raises(SmeltError):
        artifact(*batch)
    with pytest.raises(ValueError, match="Tried to step 21 times"):
        step(*batch)


@pytest.mark.parametrize("calls", [0, 3, 10])
def test_refuses_an_optimizer_that_decides_by_its_steps(calls: int) -> None:
    """RAdam rectifies from its sixth step on, which it counts in a tensor."""
    step, batch = training(SCHEDULES["steps"], partial(torch.optim.RAdam, lr=0.01), calls)
    with pytest.raises(SmeltError, match=r"what the function does depends on the value of .* which changes"):
        smelt.export(step, batch)


def test_refuses_a_schedule_that_decides_by_the_loss() -> None:
    model = torch.nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = lr_scheduler.ReduceLROnPlateau(optimizer)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        schedule.step(loss.detach())  # type: ignore[arg-type]
        return loss

    step(torch.randn(3, 6))
    with pytest.raises(SmeltError, match="a training step is exported as one graph"):
        smelt.export(step, (torch.randn(3, 6),))


class Phases:
    """Two phases that share a number: one writes it without reading it, the other reads it."""

    def __init__(self) -> None:
        self.calls, self.scale = 2, 1.5
        self.last: Any = "none"

    def number(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls % 5 == 0:
            self.scale = 0.25
            return x
        if self.calls % 5 == 1:
            self.scale = 3.0
            return x + 1
        return x * self.scale

    def text(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls < 6:
            self.last = "some"
            return x
        return x * 2 if self.last == "some" else x * 3


def test_keeps_a_number_that_only_another_variant_reads(tmp_path: Path) -> None:
    phases, x = Phases(), torch.randn(3)
    session = exported(phases.number, (x,), tmp_path)
    same(phases.number, (x,), session, 23)


def test_warns_of_what_only_another_variant_reads_and_is_no_number() -> None:
    with pytest.warns(SmeltWarning, match=r"stops after 3 calls.*last changes with each call"):
        smelt.export(Phases().text, (torch.randn(3),))
