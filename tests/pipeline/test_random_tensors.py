"""Random tensor programs, forward and backward, for several sizes, against eager PyTorch and the same in float64."""

import pytest

import smelt
from tests.pipeline.generated.campaign import report
from tests.pipeline.generated.grammar import program_of
from tests.pipeline.generated.running import failure_of

PROGRAMS = 100


def test_programs_compute_what_eager_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smelt.config, "suppress_errors", False)
    for number in range(PROGRAMS):  # the same every time, so that a change is judged by itself
        program = program_of(number)
        failure = failure_of(program)
        if failure is not None:
            pytest.fail(report(program, failure), pytrace=False)
