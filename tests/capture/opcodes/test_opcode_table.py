"""The table of instruction semantics: it holds what is known of it without torch, and pairs do what halves do."""

import dis

import pytest
import torch

import smelt
from smelt.capture.driver.capture_frame import HANDLERS
from smelt.capture.driver.eager_step import STEPS
from tests.versions.test_instructions import handled


def test_what_tests_of_other_versions_read_is_the_table() -> None:
    assert handled() == set(HANDLERS)


def test_steps_execute_only_what_the_interpreter_knows_or_python_has() -> None:
    assert set(STEPS) <= set(HANDLERS) | set(dis.opmap)


def test_names_that_a_comprehension_borrowed_are_unbound_again() -> None:
    """From 3.12 it runs in the function's own frame, and 3.13 puts two names back with one instruction."""

    def function(x, bind):
        y = sum([x * a + b for a, b in ((1, 2), (3, 4))])
        if bind:
            a = b = 1.0
        return y * a + b

    compiled = smelt.compile(function, backend="eager")
    x = torch.ones(3)
    assert torch.equal(compiled(x, True), function(x, True))
    with pytest.raises(UnboundLocalError, match="'a'"):
        compiled(x, False)
