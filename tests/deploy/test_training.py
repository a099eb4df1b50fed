"""Training steps as artifacts: begun in Python, continued in C, read back; schedules and optimizers of many kinds."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler as schedules

import smelt
from tests.deploy.programs import built, run

Batch = tuple[torch.Tensor, torch.Tensor]


class Training:
    """A small classifier, an optimizer and a schedule."""

    def __init__(self, optimizer: Callable[..., Any], schedule: Callable[..., Any] | None = None) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 3)
        )
        self.optimizer = optimizer(self.model.parameters())
        self.schedule = None if schedule is None else schedule(self.optimizer)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        if self.schedule is not None:
            self.schedule.step()
        return loss


def batches(count: int) -> list[Batch]:
    seeded = torch.Generator().manual_seed(1)
    return [
        (torch.randn(16, 4, generator=seeded), torch.randint(0, 3, (16,), generator=seeded)) for _ in range(count)
    ]


TRAININGS: dict[str, Callable[[], Training]] = {
    "adamw, cosine": lambda: Training(
        partial(torch.optim.AdamW, lr=1e-2), partial(schedules.CosineAnnealingLR, T_max=30)
    ),
    "sgd, steps": lambda: Training(
        partial(torch.optim.SGD, lr=0.1, momentum=0.9), partial(schedules.StepLR, step_size=7)
    ),
    "sgd, one cycle": lambda: Training(
        partial(torch.optim.SGD, lr=0.1, momentum=0.9), partial(schedules.OneCycleLR, max_lr=0.2, total_steps=60)
    ),
    "adam, exponential": lambda: Training(
        partial(torch.optim.Adam, lr=1e-2), partial(schedules.ExponentialLR, gamma=0.97)
    ),
    "sgd, cycles": lambda: Training(
        partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        partial(schedules.CyclicLR, base_lr=0.01, max_lr=0.1, step_size_up=4),
    ),
    "rmsprop": lambda: Training(partial(torch.optim.RMSprop, lr=1e-3)),
    "sgd, a function": lambda: Training(
        partial(torch.optim.SGD, lr=0.1), partial(schedules.LambdaLR, lr_lambda=lambda epoch: 1 / (1 + epoch))
    ),
}
FEW = ("adamw, cosine", "sgd, one cycle")


@pytest.mark.parametrize(
    "name", [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in TRAININGS]
)
def test_a_training_goes_on_in_c_and_comes_back(name: str, tmp_path: Path) -> None:
    training, data = TRAININGS[name](), batches(50)
    for batch in data[:10]:
        training.step(*batch)
    path = smelt.export(training.step, data[0], name="step").save(tmp_path / "step.smelt")
    losses = [training.step(*batch).item() for batch in data[10:]]

    (tmp_path / "batches.bin").write_bytes(
        b"".join(tensor.numpy().tobytes() for batch in data[10:] for tensor in batch)
    )
    program = built("examples/deploy/train.c", tmp_path)
    shown = run(program, path, tmp_path / "batches.bin", 40, tmp_path / "checkpoint.smelt")
    found = [float(line.split()[1]) for line in shown.splitlines()]
    assert found == pytest.approx(losses, rel=1e-4, abs=1e-5)

    loaded = smelt.load(tmp_path / "checkpoint.smelt")
    state = loaded.state_dict()
    for parameter, value in training.model.state_dict().items():
        torch.testing.assert_close(state[f"model.{parameter}"], value, rtol=1e-4, atol=1e-5)
    if training.schedule is not None:
        rate = state["optimizer.param_groups[0].lr"]
        assert rate.item() == pytest.approx(training.optimizer.param_groups[0]["lr"])
    # And on in Python, from where C stopped.
    assert loaded(*data[0]).item() == pytest.approx(training.step(*data[0]).item(), rel=1e-4)


def test_batch_norm_counts_its_batches() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8)).train()
    artifact = smelt.export(model, (torch.randn(16, 4),))
    x = torch.randn(16, 4)
    for _ in range(3):
        with torch.no_grad():
            want = model(x)
        torch.testing.assert_close(artifact(x), want)
    loaded = artifact.session()
    assert loaded.state_dict()["1.num_batches_tracked"].item() == 0
    assert artifact.state_dict()["1.num_batches_tracked"].item() == 3
    torch.testing.assert_close(artifact.state_dict()["1.running_mean"], model[1].running_mean)


class Embedding(torch.nn.Module):
    """Writes to buffers before and after it looks something up."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(5, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.register_buffer("cache", torch.zeros(6, 4))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, index: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        found = self.norm(self.table(index))
        self.cache.index_copy_(0, place, found[:2])
        return self.cache.sum(0) + found[-1] * self.calls


def unchanged(artifact: Any, wrong: tuple[torch.Tensor, ...], right: tuple[torch.Tensor, ...]) -> None:
    """A call that fails leaves all of the state as it was, and the next goes on from there."""
    before = {name: each.clone() for name, each in artifact.state_dict().items()}
    with pytest.raises(smelt.SmeltError, match=r"SM052.*out of range"):
        artifact(*wrong)
    after = artifact.state_dict()
    assert before and all(torch.equal(after[name], each) for name, each in before.items())
    artifact(*right)
    assert not all(torch.equal(artifact.state_dict()[name], each) for name, each in before.items())


def test_an_index_out_of_range_is_an_error_before_anything_is_written() -> None:
    training = TRAININGS["adamw, cosine"]()
    x, y = batches(1)[0]
    for _ in range(3):
        training.step(x, y)
    unchanged(smelt.export(training.step, (x, y)), (x, y + 7), (x, y))


def test_buffers_are_not_written_by_a_call_that_fails() -> None:
    index, place = torch.tensor([1, 2, 3]), torch.tensor([0, 5])
    artifact = smelt.export(Embedding().train(), (index, place))
    unchanged(artifact, (index + 3, place), (index, place))
    unchanged(artifact, (index, place + 1), (index, place))
    several = smelt.export(Embedding().train(), (index, place), dynamic={"index": {0: "rows"}})
    unchanged(several, (torch.tensor([0, 1, 2, 3, 5]), place), (index, place))


def test_a_branch_is_not_taken_by_a_call_that_fails() -> None:
    class Branches(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Embedding()

        def forward(self, index: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
            return self.inner(index, place) if index.sum() > 3 else self.inner(index, place.flip(0)) * 2

    artifact = smelt.export(Branches().train(), (torch.tensor([1, 2, 3]), torch.tensor([0, 5])))
    for index in (torch.tensor([1, 2, 3]), torch.tensor([0, 1, 2])):
        unchanged(artifact, (index, torch.tensor([0, 6])), (index, torch.tensor([0, 5])))
