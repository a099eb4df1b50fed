"""Versions of a function come to an end, whatever keeps changing: objects made for one call, places behind breaks."""

import warnings
from typing import Any

import pytest
import torch

import smelt
from smelt.base.options import config


class Box:
    """What a library makes anew in each call."""

    def __init__(self, held: Any) -> None:
        self.held = held


@smelt.disable
def boxed(x: torch.Tensor) -> Box:
    return Box(x)


def test_an_object_made_in_the_call_is_compared_without_a_version_for_each() -> None:
    """`is` relies on whether two objects are one, not on which they are."""
    kept = Box(None)

    def program(x: torch.Tensor) -> torch.Tensor:
        box = boxed(x + 1)  # a break: the box comes from outside
        return box.held * 2 if box is not kept else x

    compiled = smelt.compile(program, backend="eager")
    smelt.counters.clear()
    for _ in range(4):
        assert compiled(torch.ones(2)).tolist() == [4.0, 4.0]
    graphs = smelt.counters["graphs"]
    for _ in range(20):
        assert compiled(torch.ones(2)).tolist() == [4.0, 4.0]
    assert smelt.counters["graphs"] == graphs


def test_both_answers_of_a_comparison_are_right() -> None:
    def program(x: torch.Tensor, left: Box, right: Box) -> torch.Tensor:
        return x + 1 if left is right else x - 1

    compiled = smelt.compile(program, backend="eager")
    for number in range(12):
        one, other = Box(None), Box(None)
        pair = (one, one) if number % 3 == 0 else (one, other)
        assert compiled(torch.ones(2), *pair).tolist() == program(torch.ones(2), *pair).tolist()


def test_an_object_made_in_the_call_that_must_be_this_very_one_breaks() -> None:
    """A dict finds it by its identity: Python looks it up, once three versions were made for three such objects."""

    def program(x: torch.Tensor, table: dict[Any, int]) -> torch.Tensor:
        box = boxed(x + 1)
        table[box] = 2
        found = box.held * table[box]
        del table[box]
        return found + 1

    compiled = smelt.compile(program, backend="eager")
    smelt.counters.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # SM011
        table: dict[Any, int] = {}
        for _ in range(10):
            assert compiled(torch.ones(2), table).tolist() == [5.0, 5.0]
        graphs = smelt.counters["graphs"]
        for _ in range(10):
            assert compiled(torch.ones(2), table).tolist() == [5.0, 5.0]
    assert smelt.counters["graphs"] == graphs
    assert not table


@smelt.disable
def next_number(numbers: list[int]) -> int:
    return numbers.pop()


def test_the_limit_holds_for_a_function_whatever_place_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each frame that a changing value passes on its way out is a place of its own, with versions of its own."""
    monkeypatch.setattr(config, "cache_size_limit", 2)
    source = "def frame0(x, numbers):\n    n = next_number(numbers)\n    return x * (n if n != 77 else 0), n\n"
    for depth in range(1, 12):
        inner = f"frame{depth - 1}(x + 1, numbers)"
        source += f"def frame{depth}(x, numbers):\n    y, n = {inner}\n    return y + 1 if n != {depth} else y, n\n"
    names: dict[str, Any] = {"next_number": next_number}
    exec(source, names)
    program = names["frame11"]
    compiled = smelt.compile(program, backend="eager", dynamic=False)
    smelt.counters.clear()
    with pytest.warns(UserWarning, match="SM011: frame11 was compiled further in each of 4 calls"):
        for number in range(100, 112):
            assert compiled(torch.ones(2), [number])[0].tolist() == program(torch.ones(2), [number])[0].tolist()
    graphs = smelt.counters["graphs"]
    for number in range(200, 212):
        assert compiled(torch.ones(2), [number])[0].tolist() == program(torch.ones(2), [number])[0].tolist()
    assert smelt.counters["graphs"] == graphs
