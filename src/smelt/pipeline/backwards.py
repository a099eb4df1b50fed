"""The backwards of a graph, each compiled when gradients first arrive for just its results.

    Backwards(…)(0b01)   →   the backward for gradients of the first result alone, as a callable
    Backwards(…)(0b11)   →   the one that takes both

A model that returns its loss and its logits is trained by the loss alone: a backward for both would be compiled for
nothing, as would any where no gradients are asked for in the end. What the forward saves serves them all.
"""

from collections.abc import Callable

import torch

from smelt.autograd.partial import given_only
from smelt.autograd.partition import Halves
from smelt.base import events
from smelt.base.data import dataclass
from smelt.base.errors import SmeltError, warn
from smelt.base.options import Options, config
from smelt.ir.ambient import Ambient, restored, without_default_devices
from smelt.ir.graph import Traced
from smelt.ir.joint import Plan
from smelt.runtime.state import Flat

# Takes a graph, a name, whether inputs come in a list to be taken out of it, and whether there may be an arena.
Lower = Callable[[Traced, str, bool, bool], Flat]


@dataclass(slots=True)
class Backwards:
    """Makes the backward for the results that have a bit in the argument; None where only the one for all will do.

    `halves` are the graphs they are made of. If there are none (the forward came out of the cache, or a compilation
    failed and left its graph half changed) `trace` makes them again, in the state of the process that `ambient` is.
    """

    trace: Callable[[], Halves | None]
    plan: Plan
    lower: Lower
    options: Options
    name: str
    ambient: Ambient
    halves: Halves | None = None

    @property
    def everything(self) -> int:
        return (1 << len(self.plan.tangents)) - 1

    def __call__(self, arrived: int) -> Flat | None:
        with torch.inference_mode(False), without_default_devices(), restored():
            self.ambient.impose()
            return self._made(arrived)

    def graph(self, arrived: int) -> Traced | None:
        """A backward as a graph, to be written out in a larger one."""
        with torch.inference_mode(False), without_default_devices(), restored():
            self.ambient.impose()
            return self._graph(arrived)

    def _made(self, arrived: int) -> Flat | None:
        graph = self._graph(arrived)
        if graph is None:
            return None
        events.count("backwards")
        try:
            name = self.name if arrived == self.everything else f"{self.name}_{arrived:b}"
            return self.lower(graph, name, True, self.halves is None or self.halves.planned)
        except Exception as error:
            if not (config.suppress_errors and self.options.fallback):
                raise
            self.halves = None
            whole = self._graph(arrived)
            if whole is None:
                raise
            text = f"SM020: {self.name} could not be compiled, and PyTorch runs its operators one by one"
            warn(f"{text}. {type(error).__name__}: {error}")
            return whole.to_consuming()

    def _graph(self, arrived: int) -> Traced | None:
        if self.halves is None:
            self.halves = self.trace()
        if self.halves is None or self.halves.plan != self.plan or self.halves.backward is None:
            self.halves = None
            if arrived != self.everything:
                return None
            raise SmeltError(
                "SM020",
                f"{self.name} cannot be made: tracing the graph again gave another split than its forward has",
                hint="run it again with the environment variable SMELT_CACHE=0",
            )
        if arrived == self.everything:
            return self.halves.backward
        return given_only(self.halves.backward, self.plan, arrived)
