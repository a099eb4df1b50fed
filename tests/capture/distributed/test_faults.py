"""Some of the runs of `faults`: a compiled training fares as the eager one, whatever befalls one of its processes."""

import pytest

from tests.capture.distributed.faults import FAULTS, Run, why_different

ALWAYS = (
    ("step", "dies"),
    ("step", "slow"),
    ("evaluation", "raises between"),
    ("evaluation", "target"),
    ("handled", "index"),
    ("forward", "batch"),
)


@pytest.mark.parametrize(("program", "fault"), ALWAYS)
def test_fares_as_in_eager(program: str, fault: str) -> None:
    run = Run(0, program, 2, fault, 2, 1, capture_data=program == "evaluation")
    difference = why_different(run)
    assert difference is None, difference


def test_numbers_name_every_fault() -> None:
    assert {Run.of(number).fault for number in range(len(FAULTS))} == set(FAULTS)
    assert {Run.of(number).world for number in range(20)} == {2, 4}
