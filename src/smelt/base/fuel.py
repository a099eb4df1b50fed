"""Fuel: how many optional rewrites a compilation may still make.

A wrong result is bisected by halving `options.fuel`: the last rewrite that was allowed is the culprit.

    fuel = Fuel(2)
    fuel.take(), fuel.take(), fuel.take()   → True, True, False
"""


class Fuel:
    """A counter shared by all passes of one compilation; a negative amount never runs out."""

    def __init__(self, amount: int = -1) -> None:
        self.left = amount
        self.burned = 0

    def take(self) -> bool:
        """Whether one more rewrite may be made; counts it if so."""
        if self.left == 0:
            return False
        if self.left > 0:
            self.left -= 1
        self.burned += 1
        return True
