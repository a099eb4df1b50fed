"""Other sizes than those a state was explored with, for which what it does may be something else.

A state is explored with an example of each size. What it then relies on (`x.shape[0] > 3`) may not hold for others,
and 0 and 1 are like no others: for these it is explored once more.

    sizes_of(walk, node)        x.shape[0] and y.shape[0], both 5 in the example, which are taken to be one
    small_cases(sizes)          both 1
    other_examples(sizes, …)    both 3, both 4, both 8, …
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.capture.explore.abstraction import Abstraction, Path
from smelt.capture.explore.ssa import SsaValue, Step
from smelt.capture.model.marks import DYNAMIC, SMALL_SIZES
from smelt.ir.artifact.machine import Dimension, SizeCheck
from smelt.symbolic.expressions import LARGEST, SMALLEST

_EXAMPLES = (3, 4, 2, 5, 8, 16, 17, 33, 100, 1000, 5000)
_MOST_CASES = 8


@dataclass(frozen=True, slots=True)
class SizeGroup:
    """Sizes that are equal: `places` in the state, with the value and the dimension of each."""

    example: int
    places: tuple[tuple[Path, SsaValue, int], ...]
    least: int
    most: int


Case = tuple[tuple[SizeGroup, int], ...]


def sizes_of(
    walk: Abstraction, values: Mapping[int, SsaValue], dimensions: Mapping[tuple[SsaValue, int], Dimension]
) -> list[SizeGroup]:
    """The dynamic sizes of a state. Those of arguments are equal by name, others where their examples are."""
    groups: dict[tuple[object, ...], list[tuple[Path, SsaValue, int]]] = {}
    for leaf in walk.leaves:
        if not isinstance(leaf.original, torch.Tensor) or not (marked := leaf.stand_in.__dict__.get(DYNAMIC)):
            continue
        small = leaf.stand_in.__dict__.get(SMALL_SIZES, frozenset())
        value = values[id(leaf.original)]
        for dim in sorted(marked):
            example, known = leaf.stand_in.shape[dim], dimensions.get((value, dim))
            bounds = (0 if dim in small else SMALLEST, LARGEST) if known is None else (known.least, known.most)
            key = (example, *bounds, None if known is None else known.name)
            groups.setdefault(key, []).append(((*leaf.path, "size", dim), value, dim))
    return [SizeGroup(key[0], tuple(places), key[1], key[2]) for key, places in groups.items()]  # type: ignore[arg-type]


def small_cases(groups: Sequence[SizeGroup]) -> Iterator[Case]:
    """Some sizes 0 or 1, all combinations of them, or where those are many one at a time."""
    several: list[list[tuple[SizeGroup, int | None]]] = [
        [(group, None), *((group, size) for size in (0, 1) if group.least <= size <= group.most)] for group in groups
    ]
    count = 1
    for each in several:
        count *= len(each)
    if count <= _MOST_CASES:
        for case in itertools.product(*several):
            if small := tuple((group, size) for group, size in case if size is not None):
                yield small
        return
    for each in several:
        yield from (((group, size),) for group, size in each if size is not None)


def other_examples(groups: Sequence[SizeGroup], steps: Sequence[Step]) -> Iterator[Case]:
    """Sizes that may be unlike the examples: each group by itself, and all moved by as much."""
    wanted = sorted({*_EXAMPLES, *_turning_points(steps)})
    for group in groups:
        for size in wanted:
            if max(group.least, SMALLEST) <= size <= group.most and size != group.example:
                yield ((group, size),)
    if len(groups) > 1:
        for size in wanted:
            case = tuple((group, size + group.example - groups[0].example) for group in groups)
            if all(max(group.least, SMALLEST) <= each <= group.most for group, each in case):
                yield case


def _turning_points(steps: Sequence[Step]) -> set[int]:
    """Numbers that checks compare a size with, and those beside them."""
    points: set[int] = set()
    for step in steps:
        for check in step.checks:
            if isinstance(check, SizeCheck):
                constant = abs(check.guard.expression.terms.get((), 0))
                points |= {constant - 1, constant, constant + 1}
    return points


def covers(step: Step, groups: Sequence[SizeGroup], case: Case) -> bool:
    """Whether the checks of a step that are about sizes alone hold in a case; other sizes are as in the example."""
    chosen = {id(group): size for group, size in case}
    sizes = {(value, dim): chosen.get(id(group), group.example) for group in groups for _, value, dim in group.places}
    known = {name: sizes[value, dim] for name, value, dim in step.symbols if dim is not None and (value, dim) in sizes}
    guards = [check.guard for check in step.checks if isinstance(check, SizeCheck)]
    about = [guard for guard in guards if all(each.text in known for each in guard.expression.symbols())]
    return all(guard.holds(lambda symbol: known[symbol.text]) for guard in about)
