"""`Row`: one step of a stage, as the tables of the stages hold it, and how a table is run.

    Row("pair rows", "schedule", "schedule", pair_rows, "once loops are in order: …", BudgetUse.ONE)

A row says what it takes, what it gives and why it stands where it does. With a check, the rules of what it gives are
run after it. An optional row takes from the rewrite budget, so that `smelt bisect` can name it.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from smelt.base.fast_dataclass import dataclass
from smelt.base.rewrite_budget import RewriteBudget


class BudgetUse(Enum):
    """What a row takes from the rewrite budget."""

    NOTHING = "needed"  # there is no result without it
    ONE = "optional"  # one unit for all it does; the runner takes it
    EACH = "optional, rewrite by rewrite"  # one unit for each of its rewrites; the row takes them


@dataclass(frozen=True, slots=True)
class Row:
    """One step of a stage. `run` is given what `takes` says, and the context of its table."""

    name: str
    takes: str
    gives: str
    run: Callable[[Any, Any], Any]
    why: str
    budget_use: BudgetUse = BudgetUse.NOTHING


Check = Callable[[Any, str], None]  # a value, and the row that gave it


def run_rows(
    value: Any,
    rows: Sequence[Row],
    context: Any,
    budget: RewriteBudget,
    stage: str,
    check: Check | None = None,
    of: str = "",
) -> Any:
    """Send a value through rows in order. `stage` and `of`: whose rows they are and what the value is, for `bisect`."""
    for row in rows:
        if row.budget_use is BudgetUse.ONE and budget.left == 0:
            continue
        budget.stage = f"{stage}, {row.name}"
        result = row.run(value, context)
        if result is not value and row.budget_use is BudgetUse.ONE and not budget.take(of):
            continue
        value = result
        if check is not None:
            check(value, row.name)
    return value
