"""Coded errors: the text holds code, place and hint, and an unknown code is a mistake of ours."""

import re

import pytest

from smelt.base.errors import CODES, GraphBreakError, SmeltError, SmeltWarning, SpecError


def test_text_holds_code_place_and_hint() -> None:
    error = SmeltError("SM010", "call of print", where="train.py:31", hint="move it out")
    assert str(error) == "SM010: call of print at train.py:31\n  hint: move it out"
    assert (error.code, error.message) == ("SM010", "call of print")
    assert (error.where, error.hint) == ("train.py:31", "move it out")


def test_place_and_hint_may_be_left_out() -> None:
    assert str(SmeltError("SM020", "no")) == "SM020: no"


def test_unknown_code_is_refused() -> None:
    with pytest.raises(KeyError, match="SM999"):
        SmeltError("SM999", "no")


def test_codes_have_one_form_and_a_meaning() -> None:
    assert all(re.fullmatch(r"SM\d{3}", code) for code in CODES)
    assert all(CODES.values())
    assert list(CODES) == sorted(CODES)


@pytest.mark.parametrize("kind", [GraphBreakError, SpecError])
def test_one_except_clause_catches_all(kind: type[SmeltError]) -> None:
    with pytest.raises(SmeltError):
        raise kind("SM021", "x")
    assert issubclass(kind, RuntimeError)


def test_the_warning_can_be_filtered_alone() -> None:
    assert issubclass(SmeltWarning, UserWarning)
