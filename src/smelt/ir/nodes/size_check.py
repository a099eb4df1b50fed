"""What a graph relies on of sizes that only its data tell, asked as soon as the data have told them.

    kept = x[mask]                size = nonzero.size(0); size_check = SizeCheck(size)      raises `SizesMissed` for 0,
    if kept.shape[0] > 3: …                                                                 if the graph is for others

A graph is captured for sizes of at least two. For 0 and 1, of which operators may make something else, `fits` asks the
operators again, once for each combination.
"""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from smelt.base.fast_dataclass import dataclass
from smelt.symbolic.expressions import SMALLEST, SizeGuard, Symbol

_REMEMBERED = 64


class SizesMissed(Exception):
    """A graph met sizes that it was not captured for; `values` are those that were known by then, in order."""

    def __init__(self, values: tuple[int, ...]) -> None:
        super().__init__(f"sizes that data told: {values}")
        self.values = values


@dataclass(eq=False)
class SizeCheck:
    """`check(*numbers)` raises `SizesMissed` unless all is as captured. The numbers are values of the `symbols`, those
    `from_data` first."""

    symbols: tuple[Symbol, ...]
    from_data: int
    guards: tuple[SizeGuard, ...]
    fits: Callable[[Mapping[Symbol, int]], bool] | None = None
    _known: dict[tuple[int | None, ...], bool] = field(default_factory=dict)

    @property
    def __name__(self) -> str:
        return "size_check"

    def __call__(self, *numbers: Any) -> None:
        values = dict(zip(self.symbols, numbers, strict=True))
        if not all(guard.holds(values.__getitem__) for guard in self.guards) or not self._fit_small(values):
            raise SizesMissed(tuple(numbers[: self.from_data]))

    def _fit_small(self, values: Mapping[Symbol, int]) -> bool:
        """Whether the graph is right for those of the sizes that are below what symbols stand for."""
        sizes = list(values.items())[: self.from_data]
        small = {symbol: value for symbol, value in sizes if value < SMALLEST and symbol.example >= SMALLEST}
        if not small:
            return True
        key = tuple(small.get(symbol) for symbol, _ in sizes)
        if key not in self._known:
            if len(self._known) >= _REMEMBERED:
                return False
            self._known[key] = self.fits is not None and self.fits(values)
        return self._known[key]
