"""Functions that run in pieces are timed against eager, and left to it where it is faster. The clock is a fake one."""

import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import smelt
from smelt.base.errors import SmeltWarning
from smelt.base.options import config
from smelt.capture.driver import trial

X = torch.ones(2)


class Clock:
    """Time that passes where a program says so: so long in a compiled call, so long in an eager one."""

    def __init__(self, compiled: float, eager: float) -> None:
        self.now, self.compiled, self.eager = 0.0, compiled, eager
        self.ways: list[str] = []

    def spend(self) -> None:
        is_compiled = _is_run_by_a_plan()
        self.ways.append("compiled" if is_compiled else "eager")
        self.now += self.compiled if is_compiled else self.eager


def _is_run_by_a_plan() -> bool:
    frame = sys._getframe()
    while frame.f_back is not None and not frame.f_code.co_filename.endswith("run_plan.py"):
        frame = frame.f_back
    return frame.f_back is not None


@pytest.fixture(autouse=True)
def switched_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(config, "leave_slow_code", True)
    smelt.counters.clear()
    yield
    smelt.reset()


def timed(monkeypatch: pytest.MonkeyPatch, compiled: float, eager: float) -> tuple[Clock, Callable[..., Any]]:
    """A clock, and a program with a break at which it spends time."""
    clock = Clock(compiled, eager)
    monkeypatch.setattr(trial, "_now", lambda: clock.now)

    @smelt.disable
    def spend() -> None:
        clock.spend()

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        spend()
        return y + 1

    return clock, program


def call(compiled: Callable[..., Any], times: int) -> None:
    for _ in range(times):
        assert compiled(X).tolist() == [3.0, 3.0]


def test_slower_code_is_left_to_eager_after_the_fifth_call(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, program = timed(monkeypatch, 3e-3, 1e-3)
    compiled = smelt.compile(program)
    with pytest.warns(SmeltWarning, match="SM015: .*program is left to eager: a compiled call took 3 ms, an eager"):
        call(compiled, 5)
    assert clock.ways == ["compiled", "compiled", "eager", "compiled", "eager"]  # each call ran once
    call(compiled, 5)
    assert clock.ways[5:] == ["eager"] * 5
    assert smelt.counters["functions_left_to_eager"] == 1
    assert smelt.counters["calls_left_to_eager"] == 7
    assert smelt.counters["calls"] == 10
    explained = smelt.explain(compiled)(X)
    assert any("left to eager: a compiled call took 3 ms" in reason for reason in explained.skipped_frames)
    assert "left to eager" in str(explained)


def test_faster_code_stays_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, program = timed(monkeypatch, 1e-3, 2e-3)
    compiled = smelt.compile(program)
    call(compiled, 30)
    assert clock.ways.count("eager") == 2
    assert set(clock.ways[5:]) == {"compiled"}


@pytest.mark.parametrize(("seconds", "left"), [(1.04e-3, False), (1.2e-3, True)])
def test_where_it_is_close_six_pairs_decide(monkeypatch: pytest.MonkeyPatch, seconds: float, left: bool) -> None:
    clock, program = timed(monkeypatch, seconds, 1e-3)
    compiled = smelt.compile(program)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmeltWarning)
        call(compiled, 13)
    assert clock.ways[1:] == ["compiled", "eager"] * 6
    call(compiled, 4)
    assert clock.ways[13:] == ["eager" if left else "compiled"] * 4


def test_one_graph_is_never_timed() -> None:
    compiled = smelt.compile(lambda x: x * 2 + 1)
    call(compiled, 20)
    assert smelt.counters["calls_left_to_eager"] == 0


@pytest.mark.parametrize("settings", [{"backend": "eager"}, {"options": {"fallback": False}}])
def test_what_is_to_run_as_captured_is_never_timed(monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]) -> None:
    clock, program = timed(monkeypatch, 3e-3, 1e-3)
    call(smelt.compile(program, **settings), 12)
    assert set(clock.ways) == {"compiled"}


def test_the_setting_switches_it_off_and_reset_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, program = timed(monkeypatch, 3e-3, 1e-3)
    compiled = smelt.compile(program)
    monkeypatch.setattr(config, "leave_slow_code", False)
    call(compiled, 12)
    assert set(clock.ways) == {"compiled"}
    monkeypatch.setattr(config, "leave_slow_code", True)
    with pytest.warns(SmeltWarning, match="SM015"):
        call(compiled, 6)
    assert clock.ways[-1] == "eager"
    monkeypatch.setattr(config, "leave_slow_code", False)
    call(compiled, 1)
    assert clock.ways[-1] == "compiled"
    monkeypatch.setattr(config, "leave_slow_code", True)
    smelt.reset()
    call(compiled, 2)
    assert clock.ways[-2:] == ["compiled", "compiled"]


def test_a_backward_that_pays_keeps_the_forward_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """With gradients the time from one call to the next counts as well: 3 + 1 against 1 + 5."""
    clock, program = timed(monkeypatch, 3e-3, 1e-3)
    compiled = smelt.compile(program)
    for _ in range(20):
        call(compiled, 1)
        clock.now += 1e-3 if clock.ways[-1] == "compiled" else 5e-3
    assert smelt.counters["functions_left_to_eager"] == 0
    assert clock.ways[-1] == "compiled"


def test_each_grad_mode_is_decided_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, program = timed(monkeypatch, 3e-3, 1e-3)
    compiled = smelt.compile(program)
    with pytest.warns(SmeltWarning, match="SM015"):
        call(compiled, 6)
    clock.compiled = 0.5e-3
    with torch.no_grad():
        call(compiled, 12)
        assert clock.ways[-1] == "compiled"
    call(compiled, 1)
    assert clock.ways[-1] == "eager"


def test_other_work_is_tried_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Left on small inputs: every 64th call is timed, and one that takes far longer begins another trial."""
    clock, program = timed(monkeypatch, 3e-3, 1e-3)
    compiled = smelt.compile(program)
    with pytest.warns(SmeltWarning, match="SM015"):
        call(compiled, 5)
    clock.compiled, clock.eager = 50e-3, 100e-3
    call(compiled, 65 + 4)
    assert clock.ways[5 : 5 + 65] == ["eager"] * 65
    call(compiled, 3)
    assert clock.ways[-3:] == ["compiled"] * 3


def test_an_error_leaves_a_timed_call_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, program = timed(monkeypatch, 3e-3, 1e-3)

    def raising(x: torch.Tensor, fails: bool) -> torch.Tensor:
        y = program(x)
        if fails:
            raise KeyError("mine")
        return y

    compiled = smelt.compile(raising)
    compiled(X, False)
    for _ in range(3):
        with pytest.raises(KeyError, match="mine"):
            compiled(X, True)
    assert compiled(X, False).tolist() == [3.0, 3.0]
    assert len(clock.ways) == 5
