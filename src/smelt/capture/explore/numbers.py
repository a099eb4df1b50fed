"""Numbers to explore a state with that makes sizes of them, and for which of them a step is."""

import itertools
from collections.abc import Iterator, Mapping

from smelt.capture.explore.abstraction import NEGATED, Path
from smelt.capture.explore.ssa import SsaValue, Step
from smelt.ir.artifact.machine import SizeCheck

EXAMPLES = (3, 2, 4, 5, 8, 16, 33, 100, 1000)


def holds(step: Step, numbers: Mapping[tuple[SsaValue, int | None], int]) -> bool:
    """Whether the checks of a step that are about these numbers and sizes alone hold for them."""
    known = {name: numbers[value, dim] for name, value, dim in step.symbols if (value, dim) in numbers}
    guards = [check.guard for check in step.checks if isinstance(check, SizeCheck)]
    about = [guard for guard in guards if {each.text for each in guard.expression.symbols()} <= known.keys()]
    return all(guard.holds(lambda symbol: known[symbol.text]) for guard in about)


def some_numbers(paths: list[Path]) -> Iterator[dict[Path, int]]:
    """Numbers to look at: some of each by itself, and of the first two together."""
    for path in paths:
        yield from ({path: number} for number in (() if path[-1] == NEGATED else (-3, -1, 0)))
        yield from ({path: number} for number in (1, 2, 3, 7, 100))
    if len(paths) > 1:
        yield from (dict(zip(paths, pair, strict=False)) for pair in itertools.product(EXAMPLES[:5], repeat=2))


def name_of(value: SsaValue, symbols: list[tuple[str, SsaValue, int | None]]) -> str:
    """What a check calls a number."""
    name = f"number {value.name or len(symbols)}"
    return name if all(name != each for each, _, _ in symbols) else f"{name} ({len(symbols)})"
