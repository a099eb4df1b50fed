"""Random functions with branches, loops and in-place writes, exported and run by the C runtime, against eager."""

import pytest

from tests.deploy.generated.campaign import report, verdict
from tests.deploy.generated.grammar import program_of

# Numbers of programs, the same every time, so that a change is judged by itself.
NUMBERS = [range(6), pytest.param(range(6, 100), marks=pytest.mark.slow)]


@pytest.mark.parametrize("numbers", NUMBERS, ids=str)
def test_programs_compute_what_eager_computes(numbers: range) -> None:
    calls = refused = 0
    for number in numbers:
        program = program_of(number)
        found = verdict(program)
        if found.failure is not None:
            pytest.fail(report(program, found.failure), pytrace=False)
        calls, refused = calls + found.calls, refused + (found.refused is not None)
    assert calls > 3 * len(numbers) and refused * 4 <= len(numbers)
