"""A program that pauses between steps: results leave when they are complete, and what is not taken is let go."""

import gc
import weakref
from typing import Any

import pytest

from smelt._native import PausedRun, Runner
from smelt.ir.table.records import Call, Drop, Ref
from tests.native.test_native_runner import Buffer, runner


class Steps:
    """A program of three calls, each with one result, and what happened."""

    def __init__(self, fails: int | None = None) -> None:
        self.events: list[Any] = []
        self.fails = fails
        self.made: list[weakref.ref[Buffer]] = []

        def call(number: int, argument: int) -> Call:
            return Call("f", lambda tensor: self._run(number), (Ref(argument),), results=(number,), is_one=True)

        steps = [call(1, 0), Drop((0,)), call(2, 1), call(3, 1)]
        self.runner: Runner = runner(
            steps,
            (Ref(1), Ref(2), Ref(3), None),
            consuming=True,
            arena=0,
            acquire=lambda: [],
            release=lambda arena: self.events.append("released"),
            fit=lambda tensor, *how: tensor,
        )

    def _run(self, number: int) -> Buffer:
        if number == self.fails:
            raise ArithmeticError(number)
        self.events.append(number)
        result = Buffer(number)
        self.made.append(weakref.ref(result))
        return result

    def alive(self) -> list[bool]:
        return [each() is not None for each in self.made]


def begin(steps: Steps) -> PausedRun:
    inputs: list[Any] = [Buffer(0)]
    run = steps.runner.begin(inputs)
    assert inputs == [] and steps.events == []
    return run


def test_results_leave_as_soon_as_their_steps_have_run() -> None:
    steps = Steps()
    run = begin(steps)
    assert run.advance(0, ()) == ()
    (second,) = run.advance(3, (1,))
    assert steps.events == [1, 2] and second.address == 2
    del second
    assert steps.alive() == [True, False]  # the run does not keep what has left
    first, third, nothing = run.advance(4, (0, 2, 3))
    assert steps.events == [1, 2, 3] and (first.address, third.address, nothing) == (1, 3, None)


def test_a_step_runs_once_however_often_it_is_asked_for() -> None:
    steps = Steps()
    run = begin(steps)
    run.advance(3, ())
    run.advance(1, ())
    run.advance(3, ())
    assert steps.events == [1, 2]


def test_a_run_that_is_dropped_lets_everything_go() -> None:
    steps = Steps()
    argument = Buffer(0)
    reference = weakref.ref(argument)
    run = steps.runner.begin([argument])
    del argument
    assert reference() is not None
    run.advance(1, ())
    del run
    gc.collect()
    assert reference() is None and steps.alive() == [False]
    assert [each.address for each in steps.runner([Buffer(0)])[:3]] == [1, 2, 3]


def test_a_run_ends_with_its_last_step_or_an_error() -> None:
    ended = begin(Steps())
    ended.advance(4, (0, 1, 2, 3))
    failed = begin(Steps(fails=2))
    with pytest.raises(ArithmeticError):
        failed.advance(4, ())
    for run in (ended, failed):
        with pytest.raises(RuntimeError, match="ended"):
            run.advance(4, ())


def test_two_runs_at_once_do_not_meet() -> None:
    steps = Steps()
    one, other = begin(steps), steps.runner.begin([Buffer(0)])
    one.advance(3, ())
    assert [each.address for each in other.advance(4, (0, 1, 2))] == [1, 2, 3]
    assert [each.address for each in one.advance(4, (0, 1, 2))] == [1, 2, 3]
    assert steps.events == [1, 2, 1, 2, 3, 3]


def test_a_run_that_is_running_is_not_advanced_again() -> None:
    runs: list[PausedRun] = []
    errors: list[Exception] = []

    def again(tensor: Any) -> Buffer:
        try:
            runs[0].advance(1, ())
        except RuntimeError as error:
            errors.append(error)
        return Buffer(1)

    steps = [Call("f", again, (Ref(0),), results=(1,), is_one=True)]
    runs.append(runner(steps, (Ref(1),), consuming=True, fit=lambda tensor, *how: tensor).begin([Buffer(0)]))
    runs[0].advance(1, (0,))
    assert "running" in str(errors[0])


def test_refuses_what_does_not_fit() -> None:
    steps = Steps()
    with pytest.raises(TypeError, match="1 tensors in a list"):
        steps.runner.begin([])
    with pytest.raises(TypeError, match="list"):
        steps.runner.begin((Buffer(0),))  # type: ignore[arg-type]
    run = begin(steps)
    with pytest.raises(ValueError, match="4 steps"):
        run.advance(5, ())
    with pytest.raises(IndexError, match="4 results"):
        run.advance(1, (4,))
    with pytest.raises(TypeError, match="consumes"):
        runner([Call("f", lambda tensor: None, (Ref(0),))], (), inputs=1).begin(Buffer(0))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        PausedRun()
