"""What the host computes for `sim`: the list of operators is short, is what the page says, and does not grow.

`tests/ops_db/host_on_sim.txt` has what `tests.ops_db.sweep --backend sim --fallbacks` has found; here a sample of the
operators that are not on it is tried.
"""

import re
import warnings
from pathlib import Path

import pytest

import smelt
from tests.ops_db.sweep import Case, Task, all_cases, check

ROOT = Path(__file__).parents[2]
LISTED = frozenset((ROOT / "tests" / "ops_db" / "host_on_sim.txt").read_text().split())
EVERY = 61
LARGEST_SHARE = 0.1

# Of each kind that once went through the host, one.
ONCE = (
    "special.bessel_y1", "special.hermite_polynomial_he", "digamma", "nonzero", "unique", "histogram", "put", "mode",
    "nn.functional.avg_pool3d", "nn.functional.multilabel_margin_loss", "nn.functional.pdist", "index_reduce",
)  # fmt: skip


def _cases() -> list[Case]:
    return list(all_cases(["float32"]))


def test_the_list_is_short_and_the_page_says_so() -> None:
    names = {str(case).removesuffix(":float32") for case in _cases()}
    assert names >= LISTED
    assert len(LISTED) <= LARGEST_SHARE * len(names)
    page = (ROOT / "docs" / "new_chip.md").read_text()
    assert re.search(rf"\b{len(LISTED)} of {len(names)} operators", page)
    assert [name for name in sorted(LISTED) if f"`{name}`" not in page] == []


def _tried() -> list[Case]:
    cases = _cases()
    sample = [case for case in cases[::EVERY] if str(case).removesuffix(":float32") not in LISTED]
    return sample + [next(case for case in cases if case.operator == name) for name in ONCE]


@pytest.mark.parametrize("case", _tried(), ids=str)
def test_what_is_not_listed_needs_no_host(case: Case) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert check(case, Task("sim", samples=1)).fallbacks == []
    smelt.reset()
