"""RewriteBudget: how many optional rewrites a compilation may still make.

`smelt bisect` halves `options.max_rewrites` to find the rewrite that makes a result wrong: the last one allowed. The
"fusion" channel reports it.

    budget = RewriteBudget(2)
    budget.take(), budget.take(), budget.take()   → True, True, False
"""

from smelt.base.events import emit
from smelt.base.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One optional rewrite: the pass that made it, and what it was made to."""

    stage: str
    what: str


class RewriteBudget:
    """A counter shared by all passes of one compilation; a negative amount never runs out."""

    def __init__(self, amount: int = -1) -> None:
        self.left = amount
        self.taken = 0
        self.stage = ""  # the pass that is running

    def take(self, *what: object) -> bool:
        """Whether one more rewrite, of `what`, may be made; counts it if so."""
        if self.left == 0:
            return False
        self.taken += 1
        if self.left > 0:
            self.left -= 1
            if self.left == 0:
                rewrite = Rewrite(self.stage, " and ".join(map(str, what)))
                emit("fusion", f"the rewrite budget is spent by {rewrite.stage}: {rewrite.what}", rewrite)
        return True
