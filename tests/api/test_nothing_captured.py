"""A compiled function of which nothing is captured says so, once (SM016)."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import smelt


def warnings_of(call: Callable[[], Any], times: int = 12) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(times):
            call()
    return [str(each.message) for each in caught]


def test_warns_once_with_the_reason() -> None:
    seen: list[object] = []
    compiled = smelt.compile(lambda x: seen.append(print(end="")))
    (text,) = warnings_of(lambda: compiled(torch.ones(2)))
    assert text.startswith("SM016: ") and "was called 5 times" in text and "print" in text
    assert len(seen) == 12


def test_warns_of_a_mode_that_is_always_active() -> None:
    compiled = smelt.compile(lambda x: x.sin())

    def call() -> None:
        with FlopCounterMode(display=False):
            compiled(torch.ones(2))

    (text,) = warnings_of(call)
    assert text.startswith("SM016: ") and "mode" in text


def test_warns_of_code_that_only_python_runs() -> None:
    (text,) = warnings_of(lambda: smelt_sum([1, 2]))
    assert text.startswith("SM016: ")


smelt_sum = smelt.compile(sum)


@pytest.mark.parametrize("function", [lambda x: x.sin(), lambda x: x, lambda x: print(end="") or x.sin()])
def test_says_nothing_where_something_is_captured(function: Callable[..., Any]) -> None:
    compiled = smelt.compile(function)
    assert warnings_of(lambda: compiled(torch.ones(2))) == []


def test_says_nothing_where_calls_are_disabled() -> None:
    compiled = smelt.compile(lambda x: x.sin())

    def call() -> None:
        with smelt.disable():
            compiled(torch.ones(2))

    assert warnings_of(call) == []
