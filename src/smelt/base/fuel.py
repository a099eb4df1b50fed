"""Fuel: how many optional rewrites a compilation may still make.

A wrong result is bisected by halving `options.fuel`: the last rewrite that was allowed is the culprit, and the one that
burns the last unit is reported on the "fusion" channel. `smelt bisect` does so.

    fuel = Fuel(2)
    fuel.take(), fuel.take(), fuel.take()   → True, True, False
"""

from smelt.base.events import emit
from smelt.base.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One optional rewrite: the pass that made it, and what it was made to."""

    stage: str
    what: str


class Fuel:
    """A counter shared by all passes of one compilation; a negative amount never runs out."""

    def __init__(self, amount: int = -1) -> None:
        self.left = amount
        self.burned = 0
        self.stage = ""  # the pass that is running

    def take(self, *what: object) -> bool:
        """Whether one more rewrite, of `what`, may be made; counts it if so."""
        if self.left == 0:
            return False
        self.burned += 1
        if self.left > 0:
            self.left -= 1
            if self.left == 0:
                rewrite = Rewrite(self.stage, " and ".join(map(str, what)))
                emit("fusion", f"the last unit of fuel is burned by {rewrite.stage}: {rewrite.what}", rewrite)
        return True
