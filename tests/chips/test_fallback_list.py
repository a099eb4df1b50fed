"""What the host computes for `sim`: the list of operators is what the page says, and does not grow.

`tests/ops_db/host_on_sim.txt` has what `tests.ops_db.sweep --backend sim --fallbacks` has found; here a sample of the
operators that are not on it is tried.
"""

import textwrap
import warnings
from pathlib import Path

import pytest

import smelt
from tests.golden import golden
from tests.ops_db.sweep import Case, Task, all_cases, check

ROOT = Path(__file__).parents[2]
LISTED = frozenset((ROOT / "tests" / "ops_db" / "host_on_sim.txt").read_text().split())
EVERY = 61

# Of each kind that has no kernel of its own, one.
DECOMPOSED = (
    "erfinv", "digamma", "nonzero", "unique", "nn.functional.avg_pool3d", "nn.functional.embedding_bag",
    "masked_scatter", "index_add",
)  # fmt: skip


def _cases() -> list[Case]:
    return list(all_cases(["float32"]))


def test_the_page_has_the_list() -> None:
    names = {str(case).removesuffix(":float32") for case in _cases()}
    assert names >= LISTED
    first, last = "<!-- host operators, from tests/ops_db/host_on_sim.txt -->\n", "<!-- end -->\n"
    page = (ROOT / "docs" / "new_chip.md").read_text()
    before, after = page[: page.index(first) + len(first)], page[page.index(last) :]
    listed = ", ".join(f"`{name}`" for name in sorted(LISTED))
    text = (
        f"With float32 on `sim`, the host computes all or a part of {len(LISTED)} of the {len(names)} operators "
        f"in PyTorch's test database: {listed}."
    )
    text = "\n".join(textwrap.wrap(text, 128, break_long_words=False, break_on_hyphens=False))
    golden("new_chip.md", f"{before}{text}\n{after}", root=ROOT / "docs")


def _tried() -> list[Case]:
    cases = _cases()
    sample = [case for case in cases[::EVERY] if str(case).removesuffix(":float32") not in LISTED]
    return sample + [next(case for case in cases if case.operator == name) for name in DECOMPOSED]


@pytest.mark.parametrize("case", _tried(), ids=str)
def test_what_is_not_listed_needs_no_host(case: Case) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert check(case, Task("sim", samples=1)).fallbacks == []
    smelt.reset()
