"""Running a graph so that nothing has happened where it fails.

Python then runs the state again from its start, and raises from the user's line, inside the user's handlers, with all
that comes before it done.

    w += 1; x[i]     i out of range   →   w as it was, `Unwritten(IndexError)`

Compiled graphs write their inputs when nothing can fail any more. Graphs that PyTorch runs write as they go: inputs
written before an operator that raises for some values are kept as they were.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from smelt import _native
from smelt.base.fast_dataclass import dataclass
from smelt.base.torch_originals import BASE
from smelt.capture.replay.plan import GraphRun, Unwritten
from smelt.ir.graph import Traced
from smelt.ir.nodes.ambient import without_default_devices
from smelt.runtime.autograd.input_mutation import forbids_mutation
from smelt.runtime.overlap import overlap

Places = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WritePolicy:
    """What is done round the run of a graph. `written` inputs are, those `rebased` with gradients, those `at_risk`
    before something may raise."""

    written: Places = ()
    rebased: Places = ()
    at_risk: Places = ()
    writes: bool = False
    several: bool = False
    """Whether there is more than one input, so that two may lie in one memory."""
    restores_rng: bool = False
    inference: bool = False
    devices: bool = False
    only_apart: bool = False
    """Whether even operator by operator the graph is right only where inputs lie apart: what is computed into memory
    that is given (`out=`) takes it two steps, and gradients are added to others behind the backward, not during it."""

    def undoing(self) -> Callable[[GraphRun], GraphRun] | None:
        """What a graph that is run operator by operator needs (`Traced.undoing`)."""
        return partial(undoing_writes, rebased=self.rebased, at_risk=self.at_risk) if self.at_risk else None

    def around(self, run: GraphRun, traced: Callable[[], Traced]) -> GraphRun:
        """The run of a graph with all that belongs round it."""
        if self.writes and self.several:
            run = apart_or_unwritten(run, self.written) if self.only_apart else apart(run, traced, self.written)
        if self.writes:
            run = noting_writes(run, self.written, self.rebased)
        if self.restores_rng:
            run = undoing_draws(run, self.writes)
        if self.inference:
            run = inferring(run)
        return partial(_native.sheltered, without_default_devices()(run)) if self.devices else run


def inferring(run: GraphRun) -> GraphRun:
    """Run a graph in inference mode."""

    def call(*inputs: Any) -> Any:
        with torch._C._InferenceMode(True):  # not `torch.inference_mode`, which an exception may find half entered
            return run(*inputs)

    return call


def apart(run: GraphRun, traced: Callable[[], Traced], written: Places) -> GraphRun:
    """Run a graph that writes its inputs; where another lies in the memory of one that is `written`, operator by
    operator as it was captured.

    A compiled graph may compute in another order, which only tensors that lie apart cannot notice. One that says by its
    attribute `tells_apart` that it sees to that itself is not asked twice.
    """
    if getattr(run, "tells_apart", False):
        return run
    plainly: list[GraphRun] = []

    def checked(*inputs: Any) -> Any:
        if not overlap(inputs, written):
            return run(*inputs)
        if not plainly:
            plainly.append(traced().plainly())
        return plainly[0](*inputs)

    return checked


def apart_or_unwritten(run: GraphRun, written: Places) -> GraphRun:
    """Run a graph that writes its inputs; where another lies in the memory of one that is `written`, Python does."""

    def checked(*inputs: Any) -> Any:
        if overlap(inputs, written):
            raise Unwritten(RuntimeError("an input lies in the memory of one that is written"))
        return run(*inputs)

    return checked


def noting_writes(run: GraphRun, written: Places, rebased: Places) -> GraphRun:
    """Run a graph that writes its inputs, some with gradients; what it raises is `Unwritten` if they are as they were.

    Guards do not ask where a tensor came from, by which autograd forbids that some are written: Python runs those.
    """

    def noting(*inputs: Any) -> Any:
        if any(forbids_mutation(inputs[place]) for place in rebased):
            raise Unwritten(RuntimeError("autograd forbids to write an input"))
        before = _versions(inputs, written)
        try:
            return run(*inputs)
        except Unwritten:
            raise
        except Exception as error:
            if _versions(inputs, written) != before:
                raise
            raise Unwritten(error) from None

    return noting


def undoing_writes(run: GraphRun, rebased: Places, at_risk: Places) -> GraphRun:
    """Run a graph operator by operator; where it fails, the inputs `at_risk` are as they were.

    Where a view comes to have gradients it could not lose them again: Python runs the graph.
    """
    for_good = [place for place in rebased if place in at_risk]

    def undoing(*inputs: Any) -> Any:
        if any(inputs[place]._is_view() and not inputs[place].requires_grad for place in for_good):
            raise Unwritten(RuntimeError("a view comes to have gradients before something may raise"))
        kept = [(place, _version(inputs[place]), _copy(inputs[place], place in rebased)) for place in at_risk]
        try:
            return run(*inputs)
        except Exception:
            for place, version, copy in kept:
                _restore(inputs[place], version, copy, place in rebased)
            raise

    return undoing


def undoing_draws(run: GraphRun, writes: bool) -> GraphRun:
    """Run a graph that draws random numbers; where it raises, none have been drawn: Python will draw them."""

    def undoing(*inputs: Any) -> Any:
        state = torch.get_rng_state()
        try:
            return run(*inputs)
        except Exception as error:
            if not writes or isinstance(error, Unwritten):
                torch.set_rng_state(state)
            raise

    return undoing


def _versions(inputs: tuple[Any, ...], places: Places) -> list[int | None]:
    try:
        return [inputs[place]._version for place in places]
    except RuntimeError:  # a tensor of inference mode has none
        return [_version(inputs[place]) for place in places]


def _version(tensor: torch.Tensor) -> int | None:
    """How often a tensor was written; None if nobody counts that."""
    return None if tensor.is_inference() else tensor._version


def _copy(tensor: torch.Tensor, rebased: bool) -> torch.Tensor:
    copy: torch.Tensor = (_native.recorded if rebased else _native.unrecorded)(BASE.clone, tensor)
    return copy


def _restore(tensor: torch.Tensor, version: int | None, copy: torch.Tensor, rebased: bool) -> None:
    if copy.requires_grad:  # gradients go where they went, by way of the copy
        _native.recorded(BASE.copy_, tensor, copy)
    else:
        if rebased and tensor.requires_grad:
            tensor.detach_()
        BASE.copy_(tensor.data, copy)
    if version is not None:
        torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))
