"""`except*`: groups are taken apart as Python does it; what no clause handles is raised by Python."""

import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt


def _both(x: torch.Tensor) -> Any:
    try:
        raise ExceptionGroup("both", [ValueError("a"), KeyError("b")])
    except* ValueError as group:
        found = [str(error) for error in group.exceptions], group.message, type(group) is ExceptionGroup
    except* KeyError:
        x = x * 2
    return x + 1, found


def _naked(x: torch.Tensor) -> Any:
    try:
        raise ValueError("alone")
    except* ValueError as group:
        found = group.message, len(group.exceptions), repr(group.exceptions[0])
    return x + 1, found


def _nested(x: torch.Tensor) -> Any:
    inner = ExceptionGroup("inner", [KeyError("k"), ValueError("z")])
    try:
        raise ExceptionGroup("outer", [ValueError("a"), inner])
    except* KeyError as group:
        first = group.exceptions[0].message, group.exceptions[0].exceptions[0].args  # type: ignore[union-attr]
    except* Exception as rest:
        second = rest.message, len(rest.exceptions)
    return x * 2, first, second


def _nothing_raised(x: torch.Tensor) -> Any:
    try:
        x = x + 1
    except* ValueError:
        x = x * 3
    return x


def _returned(x: torch.Tensor) -> Any:
    made = ExceptionGroup("m", [ValueError("a"), KeyError("z")])
    return x, made, made.args[0], [repr(each) for each in made.exceptions]


def _worded(x: torch.Tensor) -> Any:
    try:
        raise ValueError("no")
    except ValueError as error:
        only = traceback.format_exception_only
        return x + 1, only(type(error), error), only(error), only(RuntimeError())


@pytest.mark.parametrize("function", [_both, _naked, _nested, _nothing_raised, _returned, _worded])
def test_is_whole(function: Callable[..., Any]) -> None:
    compiled = smelt.compile(function, backend="eager", fullgraph=True)
    x = torch.arange(3.0)
    for _ in range(2):
        assert repr(compiled(x)) == repr(function(x))


def _left(x: torch.Tensor) -> Any:
    try:
        raise ExceptionGroup("m", [ValueError("a"), KeyError("z"), TypeError("t")])
    except* ValueError:
        x = x + 1
    return x


def _unlike(x: torch.Tensor) -> Any:
    try:
        raise BaseExceptionGroup("m", [KeyError("z")])
    except* ValueError:
        x = x + 1
    return x


def _raises_anew(x: torch.Tensor) -> Any:
    try:
        raise ExceptionGroup("m", [ValueError("a")])
    except* ValueError:
        raise KeyError("new") from None


@pytest.mark.parametrize("function", [_left, _unlike, _raises_anew])
def test_what_is_left_is_raised(function: Callable[..., Any]) -> None:
    seen = []
    for each in (function, smelt.compile(function, backend="eager")):
        with pytest.raises((ExceptionGroup, KeyError)) as caught:
            each(torch.ones(2))
        found = caught.value
        seen.append((repr(found), repr(found.__cause__), repr(found.__context__), found.__suppress_context__))
    assert seen[0] == seen[1]
