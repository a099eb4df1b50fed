"""Running a graph so that nothing has happened where it fails.

Python then runs the state again from its start, and raises from the user's line, inside the user's handlers, with all
that comes before it done.

    w += 1; x[i]     i out of range   →   w as it was, `NothingWritten(IndexError)`

Compiled graphs write their inputs when nothing can fail any more. Graphs that PyTorch runs write as they go: inputs
written before an operator that raises for some values are kept as they were.

A collective cannot be undone: other processes have taken part in it. Once a graph has started one, or waited for one,
it is never run again, by anybody (`Communicated`), and its error leaves the call.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from smelt import _native
from smelt.base.fast_dataclass import dataclass
from smelt.base.torch_originals import BASE
from smelt.capture.replay.plan import Communicated, GraphRun, NothingWritten
from smelt.device import random_state
from smelt.ir.graph import Traced
from smelt.ir.nodes.ambient import without_default_devices
from smelt.runtime.autograd.input_mutation import forbids_mutation
from smelt.runtime.collectives import Collectives
from smelt.runtime.overlap import overlap

Places = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WritePolicy:
    """What is done around the run of a graph that writes: `written` inputs, of them those `mutated_with_grad`, and
    those `backed_up` because they are written before an operator that may raise."""

    written: Places = ()
    mutated_with_grad: Places = ()
    backed_up: Places = ()
    writes: bool = False
    several: bool = False
    """Whether there is more than one input, so that two may overlap."""
    restores_rng: tuple[str, ...] = ()
    """The devices whose random-number state is put back where the graph raises."""
    inference: bool = False
    devices: bool = False
    requires_no_overlap: bool = False
    """Whether even operator by operator the graph is right only if no inputs overlap: what is computed into memory
    that is given (`out=`) takes it two steps, and gradients are added to others behind the backward, not during it."""
    collectives: Collectives | None = None
    """How to tell that the graph has started a collective, if it has any."""

    def undoing(self) -> Callable[[GraphRun], GraphRun] | None:
        """What a graph that is run operator by operator needs (`Traced.undoing`)."""
        if not self.backed_up:
            return None
        return partial(
            restoring_writes,
            mutated_with_grad=self.mutated_with_grad,
            backed_up=self.backed_up,
            collectives=self.collectives,
        )

    def around(self, run: GraphRun, traced: Callable[[], Traced]) -> GraphRun:
        """The run of a graph with all that belongs round it."""
        if self.writes and self.several:
            if self.requires_no_overlap:
                run = overlap_to_eager(run, self.written)
            else:
                run = without_overlap(run, traced, self.written)
        if self.collectives is not None:
            run = detecting_collectives(run, self.collectives)
        if self.writes:
            run = detecting_writes(run, self.written, self.mutated_with_grad)
        if self.restores_rng:
            run = restoring_rng(run, self.writes, self.restores_rng)
        if self.inference:
            run = in_inference_mode(run)
        return partial(_native.preserving_state, without_default_devices()(run)) if self.devices else run


def in_inference_mode(run: GraphRun) -> GraphRun:
    """Run a graph in inference mode."""

    def call(*inputs: Any) -> Any:
        with torch._C._InferenceMode(True):  # not `torch.inference_mode`, which an exception may find half entered
            return run(*inputs)

    return call


def without_overlap(run: GraphRun, traced: Callable[[], Traced], written: Places) -> GraphRun:
    """Run a graph that writes its inputs; where another overlaps one that is `written`, operator by operator
    as it was captured.

    A compiled graph may compute in another order, which overlapping tensors would notice. One that says by its
    attribute `checks_overlap` that it checks that itself is not checked twice.
    """
    if getattr(run, "checks_overlap", False):
        return run
    plainly: list[GraphRun] = []

    def checked(*inputs: Any) -> Any:
        if not overlap(inputs, written):
            return run(*inputs)
        if not plainly:
            plainly.append(traced().plainly())
        return plainly[0](*inputs)

    return checked


def overlap_to_eager(run: GraphRun, written: Places) -> GraphRun:
    """Run a graph that writes its inputs; where another overlaps one that is `written`, Python does."""

    def checked(*inputs: Any) -> Any:
        if overlap(inputs, written):
            raise NothingWritten(RuntimeError("an input overlaps one that is written"))
        return run(*inputs)

    return checked


def detecting_collectives(run: GraphRun, collectives: Collectives) -> GraphRun:
    """Run a graph that has collectives; if it raises after the start of one: `Communicated`."""

    def detecting(*inputs: Any) -> Any:
        before = collectives.started()
        try:
            return run(*inputs)
        except (Communicated, NothingWritten):
            raise
        except Exception as error:
            if not collectives.started_since(before):
                raise
            raise Communicated(error) from None

    return detecting


def detecting_writes(run: GraphRun, written: Places, mutated_with_grad: Places) -> GraphRun:
    """Run a graph that writes its inputs, some with gradients; if it raises before writing any: `NothingWritten`.

    Guards do not ask where a tensor came from, by which autograd forbids that some are written: Python runs those.
    """

    def detecting(*inputs: Any) -> Any:
        if any(forbids_mutation(inputs[place]) for place in mutated_with_grad):
            raise NothingWritten(RuntimeError("autograd does not allow an input to be written in place"))
        before = _versions(inputs, written)
        try:
            return run(*inputs)
        except (Communicated, NothingWritten):
            raise
        except Exception as error:
            if _versions(inputs, written) != before:
                raise
            raise NothingWritten(error) from None

    return detecting


def restoring_writes(
    run: GraphRun, mutated_with_grad: Places, backed_up: Places, collectives: Collectives | None = None
) -> GraphRun:
    """Run a graph operator by operator; where it fails, the inputs `backed_up` are as they were.

    Where a view comes to have gradients it could not lose them again: Python runs the graph. Where a collective has
    started nobody will, and what is written stays written, as in eager.
    """
    for_good = [place for place in mutated_with_grad if place in backed_up]

    def undoing(*inputs: Any) -> Any:
        if any(inputs[place]._is_view() and not inputs[place].requires_grad for place in for_good):
            raise NothingWritten(RuntimeError("a view comes to require grad before an operator that may raise"))
        kept = [
            (place, _version(inputs[place]), _copy(inputs[place], place in mutated_with_grad)) for place in backed_up
        ]
        before = () if collectives is None else collectives.started()
        try:
            return run(*inputs)
        except Exception:
            if collectives is not None and collectives.started_since(before):
                raise
            for place, version, copy in kept:
                _restore(inputs[place], version, copy, place in mutated_with_grad)
            raise

    return undoing


def restoring_rng(run: GraphRun, writes: bool, devices: tuple[str, ...]) -> GraphRun:
    """Run a graph that draws random numbers on devices; where it raises, none have been drawn: Python will draw
    them."""

    def undoing(*inputs: Any) -> Any:
        saved = random_state.save(devices)
        try:
            return run(*inputs)
        except Exception as error:
            if isinstance(error, NothingWritten) or not (writes or isinstance(error, Communicated)):
                random_state.restore(saved)
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


def _copy(tensor: torch.Tensor, mutated_with_grad: bool) -> torch.Tensor:
    copy: torch.Tensor = (_native.recorded if mutated_with_grad else _native.unrecorded)(BASE.clone, tensor)
    return copy


def _restore(tensor: torch.Tensor, version: int | None, copy: torch.Tensor, mutated_with_grad: bool) -> None:
    if copy.requires_grad:  # gradients go where they went, by way of the copy
        _native.recorded(BASE.copy_, tensor, copy)
    else:
        if mutated_with_grad and tensor.requires_grad:
            tensor.detach_()
        BASE.copy_(tensor.data, copy)
    if version is not None:
        torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))
