"""Random numbers in artifacts: of a generator that is part of their state."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt
from tests.deploy.programs import built, run


def drawn(function: Callable[..., torch.Tensor], *args: Any) -> tuple[Any, torch.Tensor]:
    torch.manual_seed(5)
    artifact = smelt.export(function, args)
    return artifact, artifact(*args)


def test_dropout_keeps_as_many_as_it_should_and_others_each_time() -> None:
    x = torch.ones(200, 50)
    artifact, first = drawn(torch.nn.Dropout(0.3).train(), x)
    second = artifact(x)
    for got in (first, second):
        torch.testing.assert_close(got.unique(), torch.tensor([0.0, 1 / 0.7]))
        assert abs(float((got == 0).float().mean()) - 0.3) < 0.02
    both = float(((first == 0) & (second == 0)).float().mean())
    assert abs(both - 0.09) < 0.02
    assert artifact.state_dict()["generator.offset"].item() == 2


def test_what_is_drawn_follows_from_the_state(tmp_path: Path) -> None:
    x = torch.ones(64)
    artifact, first = drawn(lambda x: F.dropout(x) + torch.rand(64), x)
    again, same = drawn(lambda x: F.dropout(x) + torch.rand(64), x)
    assert torch.equal(first, same)
    loaded = smelt.load(artifact.save(tmp_path / "model.smelt"))
    assert torch.equal(loaded(x), first)
    loaded.save(tmp_path / "checkpoint.smelt")
    other = smelt.load(tmp_path / "checkpoint.smelt")
    assert torch.equal(other(x), loaded(x)) and not torch.equal(other(x), first)
    state = {"generator.seed": torch.tensor(77), "generator.offset": torch.tensor(1)}
    other.load_state_dict({**other.state_dict(), **state})
    assert not torch.equal(other(x), again(x))


def moments(x: torch.Tensor) -> tuple[float, float]:
    return float(x.double().mean()), float(x.double().std())


COUNT = 40_000
DISTRIBUTIONS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], float, float]] = {
    "rand": (lambda x: torch.rand(COUNT), 0.5, 12**-0.5),
    "rand in float64": (lambda x: torch.rand(COUNT, dtype=torch.float64), 0.5, 12**-0.5),
    "rand_like": (lambda x: torch.rand_like(x), 0.5, 12**-0.5),
    "uniform": (lambda x: torch.empty(COUNT).uniform_(2, 6), 4.0, 4 * 12**-0.5),
    "randn": (lambda x: torch.randn(COUNT), 0.0, 1.0),
    "randn_like": (lambda x: torch.randn_like(x), 0.0, 1.0),
    "normal": (lambda x: torch.empty(COUNT).normal_(3, 2), 3.0, 2.0),
    "exponential": (lambda x: torch.empty(COUNT).exponential_(2.0), 0.5, 0.5),
    "randint": (lambda x: torch.randint(3, 7, (COUNT,)), 4.5, (15 / 12) ** 0.5),
    "bernoulli": (lambda x: torch.bernoulli(torch.full((COUNT,), 0.25)), 0.25, 0.1875**0.5),
    "multinomial": (lambda x: torch.multinomial(torch.tensor([1.0, 0.0, 3.0]), COUNT, True), 1.5, 0.75**0.5),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions(name: str) -> None:
    function, mean, deviation = DISTRIBUTIONS[name]
    _, got = drawn(function, torch.zeros(COUNT))
    assert got.dtype is function(torch.zeros(COUNT)).dtype
    found = moments(got)
    assert found[0] == pytest.approx(mean, abs=0.02 * max(1, deviation))
    assert found[1] == pytest.approx(deviation, rel=0.02)


def test_bounds_are_kept() -> None:
    _, got = drawn(lambda x: torch.rand(COUNT), torch.zeros(1))
    assert float(got.min()) >= 0 and float(got.max()) < 1
    _, whole = drawn(lambda x: torch.randint(-2, 3, (COUNT,)), torch.zeros(1))
    assert set(whole.unique().tolist()) == {-2, -1, 0, 1, 2}
    _, order = drawn(lambda x: torch.randperm(50), torch.zeros(1))
    assert sorted(order.tolist()) == list(range(50)) != order.tolist()
    _, few = drawn(lambda x: torch.multinomial(x, 3), torch.tensor([[1.0, 2.0, 3.0, 0.0], [0.0, 1.0, 1.0, 1.0]]))
    assert sorted(few[0].tolist()) == [0, 1, 2] and sorted(few[1].tolist()) == [1, 2, 3]


def test_sizes_that_differ_and_branches() -> None:
    def either(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.25) if x.sum() > 0 else x - torch.rand(400)

    artifact, kept = drawn(either, torch.ones(400))
    assert 0.6 < float((kept > 0).float().mean()) < 0.9
    below = artifact(-torch.ones(400))
    assert float(below.max()) <= -1 and float(below.min()) > -2 and len(below.unique()) > 300
    assert artifact.state_dict()["generator.offset"].item() == 2
    rows = smelt.export(torch.nn.Dropout(0.5), (torch.ones(6, 4),), dynamic={"input": {0: "rows"}})
    for count in (1, 2, 500):
        assert set(rows(torch.ones(count, 4)).unique().tolist()) <= {0.0, 2.0}


def test_a_training_with_dropout_goes_on_in_c(tmp_path: Path) -> None:
    """Which draws other numbers than Python: it learns as well, and a checkpoint goes on as it would have."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(32, 3)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    x = torch.randn(64, 4)
    y = x[:, :3].argmax(1)
    for _ in range(3):
        step(x, y)
    artifact = smelt.export(step, (x, y), name="step")
    path = artifact.save(tmp_path / "step.smelt")
    batch = x.numpy().tobytes() + y.numpy().tobytes()
    (tmp_path / "batches.bin").write_bytes(batch * 60)
    program = built("examples/deploy/train.c", tmp_path)
    shown = run(program, path, tmp_path / "batches.bin", 60, tmp_path / "checkpoint.smelt")
    losses = [float(line.split()[1]) for line in shown.splitlines()]
    assert losses == pytest.approx([artifact(x, y).item() for _ in range(60)], rel=1e-4, abs=1e-5)
    assert sum(losses[-5:]) < 0.6 * sum(losses[:5])
    loaded = smelt.load(tmp_path / "checkpoint.smelt")
    assert loaded.state_dict()["generator.offset"].item() == 60
    assert loaded(x, y).item() == pytest.approx(artifact(x, y).item(), rel=1e-4)
