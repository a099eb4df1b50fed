"""Programs of recorded paths: compiled once for what is alive at the end, with numbers that change as operands.

A number is a constant of the program until it changes. That is found out in two ways: another run of the same path
brings another number, or the same line of the program brought another one in an earlier path (an optimizer's first
step is recorded otherwise than its second, but its numbers come from the same lines)."""

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch

from smelt.base import events
from smelt.ir.graph import GraphCompiler
from smelt.lazy.graph import build
from smelt.lazy.replay import replay
from smelt.lazy.steps import Step

VARIANTS = 4
"""How many programs are compiled for one path before all its numbers are operands."""

Run = Callable[..., tuple[Any, ...]]


class Sites:
    """Numbers by the line and operator that brought them, to know those that change."""

    def __init__(self) -> None:
        self._seen: dict[Any, str | int] = {}

    def varying(self, path: Sequence[Step], numbers: Sequence[Any]) -> set[int]:
        """The places of numbers that another path had otherwise."""
        found: set[int] = set()
        occurrences: Counter[Any] = Counter()
        for step in path:
            if step.before is None or step.numbers == step.before.numbers:
                continue
            where = (step.line, step.operator)
            occurrences[where] += 1
            for place in range(step.before.numbers, step.numbers):
                site = (*where, occurrences[where], place - step.before.numbers)
                value = exact(numbers[place])
                if self._seen.setdefault(site, value) != value:
                    found.add(place)
        return found


class Variant:
    """The program for certain constants; `run` is None where PyTorch runs the path."""

    def __init__(self, constants: dict[int, Any], varying: tuple[int, ...], run: Run | None) -> None:
        self.constants = constants
        self.varying = varying
        self.run = run

    def fits(self, numbers: Sequence[Any]) -> bool:
        return all(exact(numbers[place]) == value for place, value in self.constants.items())


class PathProgram:
    """What was compiled for one path with certain values alive at its end."""

    def __init__(self, step: Step, live: tuple[int, ...], device: torch.device) -> None:
        self.path = step.path()
        self.live = live
        self._device = device
        self._variants: list[Variant] = []

    def variant(self, numbers: Sequence[Any], compiler: GraphCompiler, sites: Sites) -> tuple[Variant, bool]:
        """The one for these numbers, and whether it is new."""
        for known in self._variants:
            if known.fits(numbers):
                return known, False
        made = self._compiled(numbers, compiler, sites)
        self._variants.insert(0, made)
        return made, True

    def _compiled(self, numbers: Sequence[Any], compiler: GraphCompiler, sites: Sites) -> Variant:
        can_vary = {place for place, value in enumerate(numbers) if type(value) in (int, float)}
        varying = sites.varying(self.path, numbers)
        for known in self._variants:
            varying |= {place for place, value in known.constants.items() if exact(numbers[place]) != value}
            varying |= set(known.varying)
        if len(self._variants) >= VARIANTS:
            varying = can_vary
        for attempt in (varying & can_vary, set()):
            try:
                traced = build(self.path, self.live, numbers, attempt, self._device)
                run: Run | None = _compile(partial(compiler, traced))
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                events.emit("lazy", f"a graph of {len(self.path)} steps is not compiled: {reason}")
                run = None
            if run is not None or not attempt:
                break
        constants = {place: exact(value) for place, value in enumerate(numbers) if place not in attempt}
        return Variant(constants if run is not None else {}, tuple(sorted(attempt)), run)

    def run(self, variant: Variant, inputs: Sequence[torch.Tensor], numbers: Sequence[Any]) -> Sequence[Any]:
        if variant.run is None:
            return self.replayed(inputs, numbers)
        return variant.run(*inputs, *[numbers[place] for place in variant.varying])

    def replayed(self, inputs: Sequence[torch.Tensor], numbers: Sequence[Any]) -> list[Any]:
        values = replay(self.path, inputs, numbers, set(self.live))
        return [values[value] for value in self.live]


def exact(number: Any) -> Any:
    """A number as something that tells -0.0 from 0.0 and 1 from True, and finds nan again."""
    return number if type(number) is int else repr(number)


_worker: ThreadPoolExecutor | None = None


def _compile(compiling: Callable[[], Run]) -> Run:
    """On a thread of its own: the caller may be inside of PyTorch's dispatcher, with modes of the program's on."""
    global _worker
    if _worker is None:
        _worker = ThreadPoolExecutor(1, thread_name_prefix="smelt-lazy")
    return _worker.submit(compiling).result()


def forget_worker() -> None:
    """A forked process has no threads of its parent's."""
    global _worker
    _worker = None


