"""`torch.Generator`s of the program: a graph draws from one of its own, which is given their state and gives it back.

    torch.randn(3, generator=g)    →    randn = randn(3, generator=own);   before the graph own has the state of g,
                                                                           after it g has the state of own

So each call may come with another generator, and nothing that compiles graphs has to know of them. If the graph
raises, g has drawn nothing: Python will.
"""

from collections.abc import Callable
from typing import Any

import torch

from smelt import _native
from smelt.base import locks
from smelt.base.fast_dataclass import dataclass
from smelt.capture.model.source import Source


@dataclass(frozen=True, slots=True)
class GeneratorPair:
    """A generator of the program, and the one that a graph draws from in its place."""

    source: Source
    real: torch.Generator
    own: torch.Generator


def with_generators(run: Callable[..., Any], owned: tuple[torch.Generator, ...]) -> Callable[..., Any]:
    """Run a graph that draws from `owned` for the generators that come behind its inputs."""
    count, lock = len(owned), locks.lock()  # there is one set of them, whatever threads come

    def with_own_generators(*inputs: Any) -> Any:
        generators = inputs[-count:]
        with _native.Held(lock):
            for own, real in zip(owned, generators, strict=True):
                own.set_state(real.get_state())
            result = run(*inputs[:-count])
            for own, real in zip(owned, generators, strict=True):
                real.set_state(own.get_state())
        return result

    return with_own_generators
