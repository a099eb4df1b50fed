"""Loops as edges back, against eager for no, one and fifty rounds."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from smelt.base.errors import SmeltError
from smelt.capture.explore.explore import explore
from tests.capture.explore import programs
from tests.capture.explore.comparing import explored


def x() -> torch.Tensor:
    return torch.tensor([0.5, -0.25, 0.125])


def numbers(*counts: int) -> list[torch.Tensor]:
    return [torch.tensor(count) for count in counts]


def test_a_while_loop_of_no_one_and_fifty_rounds() -> None:
    inputs = [(x(),), (x() * 4,), (x() * 2.0**50,)]
    machine = explored(programs.halves, *inputs)
    rounds = []
    for args in inputs:
        machine(*args)
        rounds.append(max(map(machine.visited.count, machine.visited)))
    assert rounds == [1, 1, 49]


@pytest.mark.parametrize(
    "function",
    [
        programs.counts,
        programs.counts_down,
        programs.ranges,
        programs.steps_down,
        programs.swaps,
        programs.rotates,
        programs.nested_loops,
        programs.in_place,
        programs.keeps_old,
        programs.keeps_shapes,
    ],
    ids=lambda function: function.__name__,
)
def test_counted_loops(function: Callable[..., Any]) -> None:
    machine = explored(function, *[(x(), n) for n in numbers(0, 1, 2, 7, 50)])
    assert len(machine.machine.states) < 24


@pytest.mark.parametrize("function", [programs.fixed_range, programs.continues], ids=lambda f: f.__name__)
def test_loops_of_a_fixed_length_are_not_unrolled(function: Callable[..., Any]) -> None:
    machine = explored(function, (x() * 20,), (x(),), (-x() * 100,), (x() * 1000,))
    assert len(machine.machine.states) < 24


def test_an_iterative_solver() -> None:
    torch.manual_seed(0)
    a = torch.rand(4, 4) + 6 * torch.eye(4)
    b = torch.rand(4)
    explored(programs.solves, (a, b), (a, torch.zeros(4)), (torch.rand(4, 4), b))


def test_modes_that_a_loop_is_in() -> None:
    explored(programs.without_gradients, (x(),), (x() * 10,), (x() * 1000,))
    assert not torch.is_autocast_enabled("cpu")


def test_recursion() -> None:
    explored(programs.recursive, (x(),), (x() * 4,), (x() * 100,), (x() * 1e6,))


def test_modules() -> None:
    torch.manual_seed(0)
    for model in (programs.Refining(), programs.Indexing()):
        explored(model, *[(x() * scale,) for scale in (1, 3, -5, 30)])


def test_a_bound_on_the_states() -> None:
    def grows(given: torch.Tensor) -> torch.Tensor:
        seen = []
        while given.sum() > 0:
            seen.append(given)
            given = given - 1
        return torch.stack(seen).sum()

    with pytest.raises(SmeltError) as caught:
        explore(grows, (x(),), max_states=20)
    assert caught.value.code == "SM061" and "test_loops.py" in caught.value.where and caught.value.hint


def test_generation_by_concatenation() -> None:
    torch.manual_seed(0)
    table = torch.randn(9, 4)
    prompt = torch.tensor([[1, 2, 3]])
    machine = explored(programs.generates, (prompt, table, 9), (prompt, table, 3), (prompt, table, 60))
    for seed in range(5):
        torch.manual_seed(seed)
        other = torch.randn(9, 4)
        expected = programs.generates(prompt, other, 40)
        assert torch.equal(machine(prompt, other, 40), expected)


def test_generation_with_a_key_value_cache() -> None:
    for seed in range(3):
        torch.manual_seed(seed)
        model = programs.Generator()
        prompt = torch.tensor([[1, 2, 5, 4]])
        explored(model, (prompt, 8, 3), (prompt, 2, 3), (prompt, 1, 3), (prompt, 50, 7), (prompt, 50, 100))


def test_beam_search() -> None:
    torch.manual_seed(0)
    explored(programs.beams, *[(torch.randn(7), torch.randn(7, 7)) for _ in range(4)])
