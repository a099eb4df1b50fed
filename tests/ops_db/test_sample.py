"""A fair sample of PyTorch's operator database; `make test-ops` goes through all of it.

Every thirtieth operator, in the order of the database, so that no family is favoured and none left out by hand.
"""

import pytest
import torch

from tests.ops_db.comparing import compare, difference
from tests.ops_db.fallbacks import is_listed
from tests.ops_db.sweep import KNOWN, Case, Task, all_cases, sweep

EVERY = 30


@pytest.mark.parametrize(
    ("task", "dtypes"),
    [
        (Task("llvm", samples=2), ["float32"]),
        (Task("aot_eager", samples=3), ["float32", "float64"]),
        (Task("aot_eager", samples=2, second=True), ["float64"]),
    ],
    ids=["llvm", "aot_eager", "second derivatives"],
)
def test_a_sample_of_all_operators_agrees_with_eager(task: Task, dtypes: list[str]) -> None:
    cases = [case for case in all_cases(dtypes) if case.operator not in KNOWN][:: EVERY * len(dtypes)]
    assert len(cases) > 20
    answers = dict(sweep(cases, task, limit=60.0))
    assert set(answers) == set(cases)
    assert {str(case): answer.wrong for case, answer in answers.items() if answer.wrong} == {}
    assert {str(case): answer.unlisted for case, answer in answers.items() if answer.unlisted} == {}


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
    assert compare(lambda x: x.view(7), (torch.ones(6),), {}).wrong == []


def test_bits_are_compared_where_they_must_agree() -> None:
    x = torch.arange(1.0, 7.0)
    off = torch.nextafter(x, torch.tensor(torch.inf))
    assert difference(x, x.clone(), None, exact=True) == []
    assert "6 of 6 differ" in difference(off, x, None, exact=True)[0]
    assert difference(off, x, None, exact=True, ulps=1) == []
    assert "1 of 6 differ" in difference(torch.cat([x[:5], x[:1]]), x, None, exact=True, ulps=1)[0]


def test_a_fallback_is_told_and_must_be_listed() -> None:
    found = compare(torch.nonzero, (torch.ones(3),), {}, backend="aot_eager")
    assert found.wrong == [] and len(found.fallbacks) == 1
    assert is_listed("nonzero", found.fallbacks[0]) and not is_listed("add", found.fallbacks[0])


@pytest.mark.parametrize("name", ["dies", "hangs"])
def test_a_worker_that_dies_or_hangs_is_known_by_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code = {"dies": "import os; input(); os._exit(3)", "hangs": "import time; time.sleep(600)"}[name]
    monkeypatch.setattr("tests.ops_db.sweep.WORKER", ("-c", code))
    case = Case("add", "", "float32")
    ((found_case, answer),) = sweep([case], Task(), limit=2.0)
    assert found_case == case
    assert answer.wrong == [{"dies": "the process died with status 3", "hangs": "no answer within 2.0 s"}[name]]
