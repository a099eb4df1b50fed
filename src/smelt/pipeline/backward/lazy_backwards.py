"""The backwards of a graph, each compiled when gradients first arrive for its set of results.

    Backwards(…)(0b01)   →   the backward for gradients of the first result alone, as a callable
    Backwards(…)(0b11)   →   the one that takes both

A model that returns its loss and its logits is trained by the loss only: a backward for both would be compiled in vain,
as would any where no gradients are computed in the end. What the forward saves serves them all.
"""

from collections.abc import Callable

import torch

from smelt.autograd.joint.partial_backward import cut_at_outputs, for_tangents
from smelt.autograd.partition.partition import ForwardBackward
from smelt.base import events
from smelt.base.errors import SmeltError, warn
from smelt.base.fast_dataclass import dataclass
from smelt.base.options import Options, config
from smelt.ir.call_contract import JointPlan
from smelt.ir.graph import Traced
from smelt.ir.nodes.ambient import Ambient, restored, without_default_devices
from smelt.runtime.autograd.differentiable import Flat

# Takes a graph, a name, whether inputs come in a list that is emptied, and whether there may be an arena.
Lower = Callable[[Traced, str, bool, bool], Flat]


@dataclass(slots=True)
class Backwards:
    """Compiles the backward for the results that have a bit in the argument; None where only the one for all will do.

    `halves` are the graphs they are made of. If there are none (the forward came from the cache, or a compilation
    failed and left its graph half changed) `trace` makes them, in the state of the process that `ambient` records.
    """

    trace: Callable[[], ForwardBackward | None]
    plan: JointPlan
    lower: Lower
    options: Options
    name: str
    ambient: Ambient
    halves: ForwardBackward | None = None

    @property
    def everything(self) -> int:
        return (1 << len(self.plan.tangents)) - 1

    def __call__(self, arrived: int) -> Flat | None:
        with torch._C._InferenceMode(False), without_default_devices(), restored():
            self.ambient.impose()
            return self._made(arrived)

    def graph(self, arrived: int) -> Traced | None:
        """A backward as a graph, to be inlined into a larger one."""
        with torch._C._InferenceMode(False), without_default_devices(), restored():
            self.ambient.impose()
            return self._graph(arrived)

    def part(self, arrived: int, source: int | None) -> Flat | None:
        """A part of a backward, cut at outputs that other results depend on: see `cut_at_outputs`."""

        def graph() -> Traced | None:
            arriving = self._traced().arriving
            return None if arriving is None else cut_at_outputs(arriving(), self.plan, arrived, source)

        with torch._C._InferenceMode(False), without_default_devices(), restored():
            self.ambient.impose()
            name = f"{self.name}_part_{arrived:b}" if source is None else f"{self.name}_from_{source}"
            return self._lowered(graph, name)

    def _made(self, arrived: int) -> Flat | None:
        name = self.name if arrived == self.everything else f"{self.name}_{arrived:b}"
        return self._lowered(lambda: self._graph(arrived), name)

    def _lowered(self, make: Callable[[], Traced | None], name: str) -> Flat | None:
        graph = make()
        if graph is None:
            return None
        events.count("backwards")
        try:
            return self.lower(graph, name, True, self.halves is None or self.halves.planned)
        except Exception as error:
            if not (config.suppress_errors and self.options.fallback):
                raise
            self.halves = None
            whole = make()
            if whole is None:
                raise
            text = f"SM020: {self.name} could not be compiled and falls back to eager, operator by operator"
            warn(f"{text}. {type(error).__name__}: {error}")
            return whole.to_consuming()

    def _graph(self, arrived: int) -> Traced | None:
        backward = self._traced().backward
        assert backward is not None
        return backward if arrived == self.everything else for_tangents(backward, self.plan, arrived)

    def _traced(self) -> ForwardBackward:
        if self.halves is None:
            self.halves = self.trace()
        if self.halves is None or self.halves.plan != self.plan or self.halves.backward is None:
            self.halves = None
            raise SmeltError(
                "SM020",
                f"{self.name} cannot be compiled: retracing the graph gave another split than its forward has",
                hint="run it again with the environment variable SMELT_CACHE=0",
            )
        return self.halves
