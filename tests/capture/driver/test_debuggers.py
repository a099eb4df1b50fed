"""A debugger or a coverage tool that meets a compiled function is told once what it does not see."""

import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import smelt
from smelt.base.errors import SmeltWarning
from smelt.capture.driver import debuggers


@pytest.fixture(autouse=True)
def anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    outer = sys.gettrace()
    sys.settrace(None)
    monkeypatch.setattr(debuggers._Reported, "done", False)
    debuggers.watch()
    yield
    sys.settrace(outer)


def f(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    return y.cos()


def traced(call: Callable[[], Any]) -> list[int]:
    seen: list[int] = []

    def trace(frame: types.FrameType, event: str, argument: Any) -> Any:
        if frame.f_code is f.__code__ and event == "line":
            seen.append(frame.f_lineno)
        return trace

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)
    return seen


def said(caught: list[warnings.WarningMessage]) -> list[str]:
    return [str(each.message) for each in caught if "SM014" in str(each.message)]


@pytest.mark.parametrize("when", ["before the first call", "later"])
def test_a_trace_function_is_told_once(when: str) -> None:
    compiled, other = smelt.compile(f, backend="eager"), smelt.compile(lambda x: x + 1, backend="eager")
    x = torch.ones(3)
    if when == "later":
        compiled(x)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert traced(lambda: compiled(x)) == []  # as the warning says
        traced(lambda: (compiled(x), other(x)))
    (text,) = said(caught)
    assert "sys.settrace" in text and "f is compiled" in text and "smelt.disable" in text
    (warning,) = (each for each in caught if "SM014" in str(each.message))
    assert warning.category is SmeltWarning and warning.filename == __file__


def test_what_the_hint_says_helps() -> None:
    compiled = smelt.compile(f, backend="eager")
    start = f.__code__.co_firstlineno

    def call() -> None:
        with smelt.disable():
            compiled(torch.ones(3))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert traced(call) == [start + 1, start + 2]


def test_nothing_is_said_where_nothing_traces() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        smelt.compile(f, backend="eager")(torch.ones(3))
    assert said(caught) == []


def test_watching_does_not_break_a_program_whose_warnings_are_errors(capsys: pytest.CaptureFixture[str]) -> None:
    compiled = smelt.compile(f, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        traced(lambda: compiled(torch.ones(3)))
    assert "SM014: a debugger or coverage tool (sys.settrace) is active" in capsys.readouterr().err


@pytest.mark.parametrize(("number", "what"), [(0, "a debugger (tool, by"), (1, "a coverage tool (tool, by"), (2, None)])
def test_tools_of_sys_monitoring_are_told(number: int, what: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = types.SimpleNamespace(get_tool=lambda each: "tool" if each == number else None)
    monkeypatch.setattr(sys, "monitoring", tools, raising=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            smelt.compile(f, backend="eager")(torch.ones(3))
    assert [what in text for text in said(caught)] == ([] if what is None else [True])  # type: ignore[operator]
