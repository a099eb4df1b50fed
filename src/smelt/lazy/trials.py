"""Whether a block is worth recording: rounds of its code are timed recorded and in eager PyTorch, and the faster stays.

    round 1, 2        recorded; their programs are compiled beside the program
    while that lasts  eager: nobody waits, and nobody records what would run operator by operator
    then              a few rounds of each, and a verdict, which `smelt.lazy.explain()` tells

A round is one entry of the block, or one step of an optimizer in a block around a loop.
"""

from dataclasses import field

from smelt.base.fast_dataclass import dataclass

FIRST_ROUNDS = 2
TIMED_ROUNDS = 3
MOST_RECORDED_ROUNDS = 12
"""After so many without `TIMED_ROUNDS` whose programs were there, a block is left to eager PyTorch."""


@dataclass(slots=True)
class Trial:
    """The rounds of one place in a program so far."""

    recorded: int = 0
    recorded_seconds: list[float] = field(default_factory=list)  # of rounds whose programs were there
    eager_seconds: list[float] = field(default_factory=list)  # of rounds beside which nothing was compiled
    pays: bool | None = None  # not known yet
    reason: str = ""

    def records_next(self, is_compiling: bool) -> bool:
        if self.pays is not None:
            return self.pays
        if self.recorded < FIRST_ROUNDS:
            return True
        return not is_compiling and len(self.eager_seconds) >= TIMED_ROUNDS

    def add_eager(self, seconds: float) -> None:
        self.eager_seconds.append(seconds)

    def add_recorded(self, seconds: float, is_cached: bool) -> None:
        self.recorded += 1
        if is_cached and self.recorded > FIRST_ROUNDS:
            self.recorded_seconds.append(seconds)
        if self.pays is None and len(self.recorded_seconds) >= TIMED_ROUNDS <= len(self.eager_seconds):
            self._decide()
        elif self.pays is None and self.recorded >= MOST_RECORDED_ROUNDS and self.eager_seconds:
            self.pays = False
            self.reason = f"its operators change: {self.recorded} rounds were recorded, and most of them compiled anew"

    def _decide(self) -> None:
        recorded, eager = min(self.recorded_seconds), min(self.eager_seconds)
        self.pays = recorded <= eager
        self.reason = f"a round takes {recorded * 1000:.2f} ms recorded and {eager * 1000:.2f} ms in eager PyTorch"
