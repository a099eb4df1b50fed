"""Random tensor programs, forward and backward, for several sizes, against eager PyTorch and the same in float64."""

import math

import pytest
import torch
import torch.nn.functional as F

import smelt
from tests.pipeline.generated.campaign import report
from tests.pipeline.generated.eagers import Backwards, Elsewhere, OtherNaN, Rounded
from tests.pipeline.generated.grammar import program_of
from tests.pipeline.generated.running import failure_of
from tests.pipeline.generated.vocabulary import GROWN_FROM

# Numbers of programs, the same every time, so that a change is judged by itself.
SMALL = [range(60), pytest.param(range(60, 200), marks=pytest.mark.slow)]
GROWN = [
    range(GROWN_FROM + 100, GROWN_FROM + 140),
    pytest.param(range(GROWN_FROM + 140, GROWN_FROM + 240), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("numbers", [*SMALL, *GROWN], ids=str)
def test_programs_compute_what_eager_computes(numbers: range, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smelt.config, "suppress_errors", False)
    for number in numbers:
        program = program_of(number)
        failure = failure_of(program)
        if failure is not None:
            pytest.fail(report(program, failure), pytrace=False)


def test_eagers_other_answers_keep_what_is_exact() -> None:
    given = torch.arange(12.0).view(3, 4)
    for seed in range(8):
        with Rounded(seed):
            halves = given / 2 + given.sum(0)
            thirds = torch.full((64,), 1.0) / 3
        assert torch.equal(halves, given / 2 + given.sum(0))
        assert (thirds == thirds[0]).all()  # equal values stay equal


def test_eagers_other_answers_round_otherwise() -> None:
    given = torch.linspace(-1, 1, 100)
    answers = []
    for seed in range(8):
        with Rounded(seed):
            answers.append(torch.sin(given))
    assert len({tuple(each.tolist()) for each in answers}) > 4
    torch.testing.assert_close(torch.stack(answers), torch.sin(given).expand(8, -1), rtol=3e-7, atol=0)


def test_eagers_other_answers_for_integers() -> None:
    given = torch.arange(1, 100)
    answers = []
    for seed in range(8):
        with Rounded(seed):
            answers.append(torch.tan(given))
            halves, whole = given * 0.5, given * 3
        assert torch.equal(halves, given * 0.5) and torch.equal(whole, given * 3)
    assert len({tuple(each.tolist()) for each in answers}) > 4
    torch.testing.assert_close(torch.stack(answers), torch.tan(given).expand(8, -1), rtol=3e-7, atol=0)


def test_eagers_other_answers_for_nan() -> None:
    x = torch.tensor(torch.nan, requires_grad=True)
    slopes = []
    for apart in (True, False):
        with Elsewhere(apart):
            slopes.append(torch.autograd.grad(F.celu(x), x)[0].item())
    assert slopes[0] == 1 and math.isnan(slopes[1])


def test_eagers_other_answers_for_signs_of_nan() -> None:
    x = torch.tensor([4.0, -4.0, -9.0])
    signs = torch.copysign(x, torch.sqrt(x))
    with OtherNaN():
        others, roots = torch.copysign(x, torch.sqrt(x)), torch.sqrt(x)
        kept = torch.copysign(x, torch.abs(roots))
    assert torch.equal(others, signs * torch.tensor([1, -1, -1])) and torch.equal(kept, x.abs())
    assert torch.equal(roots.nan_to_num(), torch.tensor([2.0, 0, 0])) and roots[1:].isnan().all()


def test_eagers_other_answers_fold_from_the_end() -> None:
    rows = torch.tensor([[1, 2, torch.inf], [1, torch.inf, 2], [torch.inf, 1, 2], [3, 1, 2]])
    forwards = torch.var_mean(rows, 1)[1]
    with Backwards():
        backwards = torch.var_mean(rows, 1)[1]
        places, exact = rows.argmax(1), (rows.amax(1), rows.sum(), rows.sum(dtype=torch.float64), rows.max(1).indices)
    assert forwards.isnan().tolist() == [False, True, True, False]
    assert backwards.isnan().tolist() == [True, True, False, False] and backwards[3] == forwards[3]
    assert torch.equal(places, rows.argmax(1)) and torch.equal(exact[3], places)
    assert torch.equal(exact[0], rows.amax(1)) and exact[1] == exact[2] == torch.inf
