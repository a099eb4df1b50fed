"""A fair sample of PyTorch's operator database; `make test-ops` goes through all of it.

Every thirtieth operator, in the order of the database, so that no family is favoured and none left out by hand.
"""

import pytest
import torch

from tests.ops_db.comparing import compare, difference
from tests.ops_db.sweep import KNOWN, Case, all_cases, sweep

EVERY = 30


def test_a_sample_of_all_operators_agrees_with_eager() -> None:
    cases = [case for case in all_cases(["float32"]) if case.operator not in KNOWN][::EVERY]
    assert len(cases) > 20
    answers = dict(sweep(cases, samples=2, limit=60.0))
    assert set(answers) == set(cases)
    assert {str(case): found for case, found in answers.items() if found} == {}


def test_what_the_comparison_notices() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    assert difference(x, x.clone(), x.double()) == []
    assert "strides" in difference(x.t().contiguous().t(), x, None)[0]
    assert "dtype" in difference(x.double(), x, None)[0]
    assert "requires_grad" in difference(x.clone().requires_grad_(), x, None)[0]
    assert "wrong" in difference(x + 1e-5, x, x.double())[0]
    assert "nan" in difference(x, x.clone().fill_(torch.nan), None)[0]
    assert difference(x, None, None) == [f"is {x}, eager None"]


def test_errors_are_compared_too() -> None:
    assert compare(lambda x: x.view(7), (torch.ones(6),), {}) == []


@pytest.mark.parametrize("name", ["dies", "hangs"])
def test_a_worker_that_dies_or_hangs_is_known_by_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code = {"dies": "import os; input(); os._exit(3)", "hangs": "import time; time.sleep(600)"}[name]
    monkeypatch.setattr("tests.ops_db.sweep.WORKER", ("-c", code))
    case = Case("add", "", "float32")
    ((found_case, found),) = sweep([case], limit=2.0)
    assert found_case == case
    assert found == [{"dies": "the process died with status 3", "hangs": "no answer within 2.0 s"}[name]]
