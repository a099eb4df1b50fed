"""Generated programs held against plain Python: result, side effects, identity, exception, printed text, gradients."""

from collections import Counter

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.capture.generated.campaign import report
from tests.capture.generated.grammar import SIZE, program_from
from tests.capture.generated.running import verdict


@pytest.mark.parametrize("programs", [300, pytest.param(2000, marks=pytest.mark.slow)])
def test_programs_are_what_python_makes_of_them(programs: int) -> None:
    totals: Counter[str] = Counter()

    # The same programs every time, so that a change is judged by itself; `make test-programs` runs others.
    @settings(max_examples=programs, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
    @given(st.binary(min_size=SIZE, max_size=SIZE))
    def run(data: bytes) -> None:
        program = program_from(data)
        found = verdict(program)
        if found.failure is not None:
            pytest.fail(report(program, found.failure, "a program"), pytrace=False)
        totals.update(programs=1, captured=found.graphs > 0, broken=found.breaks > 0, again=found.recompiles > 0)
        totals.update(raising=found.raised > 0)

    run()
    assert totals["programs"] >= programs
    for kind in ("captured", "broken", "again", "raising"):
        assert totals[kind] >= programs // 10, totals
