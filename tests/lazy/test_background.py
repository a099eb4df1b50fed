"""Graphs that are compiled while the program goes on: eager's values at once, no waiting, no hanging at the end."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.lazy.paths.programs import Programs
from smelt.lazy.timeline import LazyRun
from smelt.lazy.trials import Trial
from tests.processes import PLAIN, run


@pytest.fixture(autouse=True)
def background(lazy: torch.device) -> Iterator[None]:
    smelt.lazy.enable(background=True)
    yield
    smelt.lazy.enable(background=False)
    smelt.reset()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Nothing is compiled until this is set."""
    opened, compiled = threading.Event(), Programs._compiled

    def wait(*args: Any, **kwargs: Any) -> Any:
        assert opened.wait(60)
        return compiled(*args, **kwargs)

    monkeypatch.setattr(Programs, "_compiled", wait)
    yield opened
    opened.set()


def runs_since(count: int) -> list[LazyRun]:
    found = smelt.lazy.explain()
    return list(found.runs[len(found.runs) - (found.run_count - count) :]) if found.run_count > count else []


def until_compiled(count: int) -> None:
    end = time.monotonic() + 60
    while smelt.lazy.explain().compile_count < count:
        assert time.monotonic() < end
        time.sleep(0.01)
    time.sleep(0.05)


def test_nobody_waits_for_the_compiler(gate: threading.Event) -> None:
    before = smelt.lazy.explain()
    x = torch.arange(5.0, device="lazy")
    smelt.lazy.step()
    for _ in range(3):
        assert (x * 3 + 0.25).tolist() == [0.25, 3.25, 6.25, 9.25, 12.25]
    assert {run.how for run in runs_since(before.run_count)} == {"meanwhile"}
    gate.set()
    until_compiled(before.compile_count + 2)
    assert (x * 3 + 0.25).tolist() == [0.25, 3.25, 6.25, 9.25, 12.25]
    assert runs_since(before.run_count)[-1].how == "cached"


def test_training_with_dropout_is_eagers() -> None:
    def train(device: str) -> list[float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.4), nn.Linear(16, 3)).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        losses = []
        for size in (8, 8, 8, 8, 5, 8, 3, 8, 8, 7, 8, 8):
            optimizer.zero_grad()
            found = model(torch.randn(size, 6).to(device))
            loss = nn.functional.cross_entropy(found, torch.randint(0, 3, (size,)).to(device))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if device == "lazy" and len(losses) % 4 == 0:
                time.sleep(0.5)  # so that some are compiled and some are not
        return losses

    before = smelt.lazy.explain()
    torch.testing.assert_close(torch.tensor(train("lazy")), torch.tensor(train("cpu")), rtol=1e-5, atol=1e-6)
    assert "meanwhile" in {run.how for run in runs_since(before.run_count)}


def test_errors_name_their_line_meanwhile(gate: threading.Event) -> None:
    x = torch.arange(3.0, device="lazy")
    y = x + 1
    bad = y[torch.tensor([7], device="lazy")]
    with pytest.raises(IndexError, match=r"test_background\.py"):
        bad.tolist()
    assert y.tolist() == [1.0, 2.0, 3.0]


def test_deterministic_programs_wait() -> None:
    before = smelt.lazy.explain()
    torch.use_deterministic_algorithms(True)
    try:
        assert (torch.ones(7, device="lazy") * 5).tolist() == [5.0] * 7
    finally:
        torch.use_deterministic_algorithms(False)
    assert runs_since(before.run_count)[-1].how == "compiled"


def test_a_compiler_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("nothing compiles today")

    monkeypatch.setattr("smelt.lazy.paths.programs.build", fail)
    smelt.lazy.enable(background=False)
    x = torch.ones(11, device="lazy")
    with pytest.warns(smelt.SmeltWarning, match="SM020.*nothing compiles today"):
        assert (x - 3).tolist() == [-2.0] * 11
    assert (x - 3).tolist() == [-2.0] * 11
    assert smelt.lazy.explain().runs[-1].how == "eager"
    assert any("nothing compiles today" in each for each in smelt.lazy.explain().not_compiled)
    assert "nothing compiles today" in str(smelt.lazy.explain())


def test_a_process_ends_while_something_is_compiled() -> None:
    began = time.monotonic()
    done = run(
        """
smelt.lazy.enable()
x = torch.ones(3, device="lazy")
for number in range(40):
    x = (x @ torch.eye(3, device="lazy")).softmax(0) + number
    print(x.sum().item() > 0, flush=True)
""",
        seconds=60,
    )
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["True"] * 40, "")
    assert time.monotonic() - began < 60


def test_forks_while_something_is_compiled() -> None:
    done = run(
        """
import os
smelt.lazy.enable()
x = torch.arange(4.0, device="lazy")
children = []
for number in range(6):
    y = (x * 2 + number).exp().sum(0)
    wanted = (torch.arange(4.0) * 2 + number).exp().sum(0)
    assert abs(y.item() / wanted.item() - 1) < 1e-5
    child = os.fork()
    if not child:
        for _ in range(2):
            z = (x * 3 - number).tanh()
            torch.testing.assert_close(z.cpu(), (torch.arange(4.0) * 3 - number).tanh())
        smelt.lazy.enable(background=False)
        torch.testing.assert_close((x.sin() + number).cpu(), torch.arange(4.0).sin() + number)
        os._exit(7)
    children.append(child)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
""",
        seconds=120,
    )
    assert (done.returncode, done.stdout.strip()) == (0, str([7] * 6)), done.stderr


LEFT_TO_EAGER = """
import time
from torch import nn
from smelt.lazy.trials import Trial

measured = Trial.add_recorded
Trial.add_recorded = lambda self, seconds, is_cached: measured(self, seconds + 1, is_cached)

def trained(how):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y, losses = torch.randn(4, 8), torch.tensor([0, 1, 2, 0]), []

    def step():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss)

    for _ in range(400):
        if how == "entries":
            with smelt.lazy():
                step()
        elif how == "eager":
            step()
        else:
            with smelt.lazy():
                for _ in range(400):
                    step()
                    if len(losses) % 20 == 0 and not smelt.lazy.explain().left_to_eager:
                        time.sleep(0.3)
                    if len(losses) == 400:
                        break
            break
        if how == "entries" and len(losses) % 20 == 0 and not smelt.lazy.explain().left_to_eager:
            time.sleep(0.3)  # until its programs are compiled
    return torch.stack(losses).detach(), torch.cat([each.detach().flatten() for each in model.parameters()])

import sys
want, found = trained("eager"), trained(sys.argv[1])
torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-5)
explained = smelt.lazy.explain()
(place, reason), = explained.left_to_eager.items()
assert place.startswith("the block at <script>:") and "in eager PyTorch" in reason, (place, reason)
assert f"  {place}: {reason}" in str(explained)
assert explained.run_count < 40, explained
"""


@pytest.mark.parametrize("how", ["entries", "a loop"])
def test_a_block_that_records_slower_than_eager_runs_is_left_to_eager(how: str) -> None:
    done = run(LEFT_TO_EAGER, arguments=[how], begin=PLAIN)
    assert done.returncode == 0, done.stderr


def test_a_verdict_needs_rounds_of_both_kinds_and_takes_the_faster() -> None:
    slow, fast, changing = Trial(), Trial(), Trial()
    for trial, seconds in ((slow, 2.0), (fast, 0.5)):
        assert trial.records_next(is_compiling=True)
        trial.add_recorded(9.0, is_cached=False)
        trial.add_recorded(9.0, is_cached=False)
        assert not trial.records_next(is_compiling=True) and not trial.records_next(is_compiling=False)
        for _ in range(3):
            trial.add_eager(1.0)
        assert not trial.records_next(is_compiling=True) and trial.records_next(is_compiling=False)
        for _ in range(3):
            trial.add_recorded(seconds, is_cached=True)
    assert (slow.pays, fast.pays) == (False, True) and not slow.records_next(False) and fast.records_next(True)
    assert slow.reason == "a round takes 2000.00 ms recorded and 1000.00 ms in eager PyTorch"
    changing.add_eager(1.0)
    for _ in range(12):
        changing.add_recorded(0.1, is_cached=False)
    assert changing.pays is False and "12 rounds were recorded" in changing.reason
