"""Features of Python and PyTorch that programs use: captured whole, and as plain Python has it.

What still breaks the graph is listed by name, so that the page on limits stays true.
"""

import pytest

import smelt
from tests.capture.features import containers, language, library, tensors
from tests.capture.features.running import PROGRAMS, Featured, hold_against_python

assert containers and language and library and tensors  # they enter their programs

BREAKS = frozenset(
    {
        "weak_reference_outside",
        "weak_table",
        "weak_proxy",
        "hook_looks",
        "grad_of_intermediate",
        "retained_grad",
    }
)
"""Programs that break the graph, and why: see docs/limits.md."""


@pytest.mark.parametrize("featured", PROGRAMS, ids=lambda featured: featured.name)
def test_is_whole(featured: Featured) -> None:
    if featured.program.__name__ not in BREAKS:
        hold_against_python(featured)
        return
    with pytest.raises(smelt.GraphBreakError):
        hold_against_python(featured)
