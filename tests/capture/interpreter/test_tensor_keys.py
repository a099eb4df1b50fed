"""Tensors as keys of dicts and items of sets: one may be reached as an argument, through a cell, and by a name."""

from typing import Any

import pytest
import torch

import smelt

LASTING = [torch.ones(2)]


def on_the_stack_and_in_a_cell(x: torch.Tensor) -> Any:
    z = x - 1

    def cell() -> torch.Tensor:
        return z

    table = {z: 1, "b": smelt.graph_break()}
    table[z] = 2
    return table[z], len(table), z in table, cell() in table


def in_a_dict_from_before_a_break(x: torch.Tensor) -> Any:
    table = {x: 0, "b": 1}
    smelt.graph_break()
    table[x] = 2
    return table[x], len(table), x in table


def argument_first(x: torch.Tensor) -> Any:
    table = {x: 1}
    table[LASTING[0]] = 2
    return table[x], len(table), x + 1


def argument_second(x: torch.Tensor) -> Any:
    table = {LASTING[0]: 1}
    table[x] = 2
    return table[LASTING[0]], len(table), x + 1


def items_of_a_set(x: torch.Tensor) -> Any:
    return len({LASTING[0], x}), x in {LASTING[0]}, x + 1


PROGRAMS = (
    on_the_stack_and_in_a_cell,
    in_a_dict_from_before_a_break,
    argument_first,
    argument_second,
    items_of_a_set,
)


@pytest.mark.parametrize("program", PROGRAMS)
def test_one_tensor_by_two_ways_is_one_key(program: Any) -> None:
    compiled = smelt.compile(program, backend="eager")
    for x in (LASTING[0], torch.ones(2), LASTING[0], torch.zeros(2)):
        assert str(compiled(x)) == str(program(x))
