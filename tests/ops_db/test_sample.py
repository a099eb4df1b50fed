"""A fair sample of PyTorch's operator database; `make test-ops` goes through all of it.

Every thirtieth operator, in the order of the database, so that no family is favoured and none left out by hand.
"""

import json
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from tests import targets
from tests.ops_db.accuracy import Change, Mode, eager_errors, near, off
from tests.ops_db.chance import nudged
from tests.ops_db.comparing import changed, compare, difference
from tests.ops_db.fallbacks import is_listed
from tests.ops_db.sweep import Answer, Case, Task, sweep
from tests.processes import COMPILER, run, run_new

EVERY = 30
# Samples for "cpu" name other devices where there are any.
_BEGIN = f"""
import os
if {targets.chosen[0] == targets.HOST}:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
{COMPILER}
from tests.ops_db.sweep import _database
_database()
"""
_WORK = f"""
import json, sys
from tests.ops_db.sweep import Task, all_cases, work
task = eval(sys.argv[1])
cases = list(all_cases(sys.argv[2:], (), task.device_type))[:: {EVERY} * len(sys.argv[2:])]
print("cases", *cases, sep="\\n", flush=True)
work(task, [json.dumps(vars(case)) for case in cases])
"""


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
    task = replace(task, device=targets.chosen[0], target=targets.chosen[1])
    if task.device == targets.HOST:
        done = run(_WORK, arguments=[repr(task), *dtypes], begin=_BEGIN)
    else:  # the database asks the GPU what it can do, and what has asked cannot be forked
        done = run_new(_BEGIN + _WORK, arguments=[repr(task), *dtypes])
    begun, *told = done.stdout.split("\x1e")
    cases = begun.splitlines()[1:]
    assert len(cases) > 20 and len(told) == len(cases), done
    answers = {case: Answer(**json.loads(line)) for case, line in zip(cases, told, strict=True)}
    assert {case: answer.wrong for case, answer in answers.items() if answer.wrong} == {}
    assert {case: answer.unlisted for case, answer in answers.items() if answer.unlisted} == {}


def test_what_the_comparison_notices() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    assert difference(x, x.clone(), x.double()) == []
    assert "strides" in difference(x.t().contiguous().t(), x, None)[0]
    assert "dtype" in difference(x.double(), x, None)[0]
    assert "requires_grad" in difference(x.clone().requires_grad_(), x, None)[0]
    assert "wrong" in difference(x + 1e-5, x, x.double())[0]
    assert "nan" in difference(x, x.clone().fill_(torch.nan), None)[0]
    assert difference(x, None, None) == [f"is {x}, eager None"]


def test_each_element_is_held_to_its_own_size() -> None:
    eager = torch.tensor([1e6, 1e-3])
    assert off(eager + torch.tensor([0.0, 1e-8]), eager, eager.double(), None) != []
    assert off(eager + torch.tensor([0.125, 0.0]), eager, eager.double(), None) == []
    assert off(eager + torch.tensor([0.0, 1e-8]), eager, eager.double() + 1e-8, None) == []
    assert off(eager + torch.tensor([0.0, 1e-8]), eager, eager.double(), torch.tensor([0.0, 1e-8])) == []


def test_what_is_right_where_eager_is_not_is_right() -> None:
    inf, nan = torch.inf, torch.nan
    eager, true = torch.tensor([nan, nan, inf, nan]).half(), torch.tensor([2.0, 1e9, 3.0, nan]).double()
    assert off(torch.tensor([2.0, inf, 3.0, nan]).half(), eager, true, None) == []
    assert "2 of 4" in off(torch.tensor([3.0, 7.0, inf, nan]).half(), eager, true, None)[0]
    assert "1 of 1" in off(torch.tensor([inf]), torch.tensor([1.0]), torch.tensor([1.0]).double(), None)[0]


def test_eagers_error_is_not_one_runs_luck() -> None:
    """A sum that cancels to the last place: exact at this point, off by an ulp of its terms at those around it."""
    x = torch.tensor([1.5, 2.0**-12, -1.5])

    def run(
        change: Change, dtype: torch.dtype | None, tangents: bool = False, mode: Mode | None = None
    ) -> list[torch.Tensor | None]:
        (a, b, c) = changed(x, change, dtype)
        with mode or nullcontext():
            return [(a + b) + c]

    (error,) = eager_errors(run, double=False)
    assert run(lambda tensor: tensor, None) == [x[1]]
    assert error is not None and 2.0**-26 < error <= 2.0**-23


def test_numbers_are_moved_within_bounds() -> None:
    x = torch.tensor([0.5, -0.5, 0.0, torch.inf, torch.nan, 3.0])
    moved, apart = near(x, torch.Generator().manual_seed(1)), nudged(x, torch.Generator().manual_seed(1))
    assert 0.49 < moved[0] < 0.5 and -0.5 < moved[1] < -0.49 and moved[5] == 3.0
    assert ((apart - x)[:2].abs() <= 2.0**-23).all()
    for made in (moved, apart):
        assert made[2] == 0.0 and made[3] == torch.inf and torch.isnan(made[4])


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
