"""A compiled forward and backward, and all about them that no call changes.

    Differentiable(forward, backwards, plan, …).backward_for(0b01)   →   the backward for the first result's gradient
"""

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from torch.utils._python_dispatch import _disable_current_modes

from smelt import _native
from smelt.base import locks
from smelt.base.errors import NoRoom, SmeltError, warn
from smelt.ir.call_contract import JointPlan, Replay
from smelt.ir.graph import Traced
from smelt.runtime.autograd.alias_outputs import finisher

Flat = Callable[..., "tuple[Any, ...]"]

# Makes the backward for gradients that arrive for some results, a bit each; None where only the one for all will do.
MakeBackward = Callable[[int], "Flat | None"]
# The same as a graph, for whoever writes it out in a larger one.
GraphOfBackward = Callable[[int], "Traced | None"]
# Makes a part of a backward that goes no further than outputs that others lean on: from all that arrived to the inputs,
# or from one tangent to the outputs that its result leans on. None where it cannot be had.
MakePart = Callable[[int, "int | None"], "Flat | None"]

_numbers = itertools.count()


class Differentiable:
    """A compiled forward and backward."""

    def __init__(
        self,
        forward: Flat,
        backwards: MakeBackward,
        plan: JointPlan,
        replay: Replay | str,
        eager: Flat | None,
        consuming: bool,
        graphs: GraphOfBackward | None,
        parts: MakePart | None,
        of_one_size: bool = True,
    ) -> None:
        self.forward = forward
        self.backwards = backwards
        self.graphs = graphs
        # A larger graph may take in its backward: it would be compiled for each combination of sizes otherwise.
        self.can_be_written_out = graphs is not None and of_one_size
        self.parts = parts
        # By the results that gradients arrive for: the backward, and whether it takes zeros for the others.
        self.made: dict[int, tuple[Flat, bool]] = {}
        self.made_parts: dict[tuple[int, int | None], Flat] = {}
        self.making = locks.lock()
        self.number = next(_numbers)
        self.plan = plan
        self.replay = replay
        self.eager = eager
        self.consuming = consuming
        self.finish = finisher(plan)
        # Where each saved tensor comes from: an input's number, or a position among the forward's values.
        self.kept = tuple(
            (saved.source is not None, plan.forward_outputs + place if saved.source is None else saved.source)
            for place, saved in enumerate(plan.saved)
        )
        saved_inputs = {saved.source for saved in plan.saved}
        # Old values that only a derivative of higher order needs; PyTorch keeps them with what else is saved.
        self.recalled = tuple(index for index in plan.kept_old_values if index not in saved_inputs)
        self.kept += tuple((True, index) for index in self.recalled)
        saved_inputs.update(self.recalled)
        self.others = tuple(index for index in range(plan.inputs) if index not in saved_inputs)
        self.wanted = frozenset(plan.gradients)
        self.only_results = plan.results == len(plan.differentiable) and not plan.mutated_inputs
        self.only_values = self.only_results and plan.differentiable == tuple(range(plan.forward_outputs))
        self.tangents = tuple((spec, spec.stride) for spec in plan.tangents)
        # Nothing to be done but to compute: see `_quick`.
        self.is_simple = self.only_values and self.finish is None and not _takes_more(plan)
        self.watched = plan.watched  # outputs that others lean on, and which of them show written inputs
        self.after_writing = plan.showing_written
        # From the graph's own order of inputs to autograd's and back; see `JointPlan.autograd_input_order`.
        self.out, self.back = _turned(plan.autograd_input_order)
        # Where not all results lead to the same inputs: see `smelt.runtime.autograd.split_nodes`.
        self.not_always, self.ways, self.results_by_ways = _ways(plan)
        needed = frozenset(plan.needed).difference(plan.mutated_inputs)
        self.tracked = tuple((index, index in self.wanted, index in needed) for index in self.others)

    def backward_for(self, arrived: int) -> tuple[Flat, bool]:
        """The backward for gradients of these results, and whether it takes zeros for the others."""
        found = self.made.get(arrived)
        if found is not None:
            return found
        try:
            # What is done there is not the program's.
            found = _native.aside(_native.sheltered, self._make_once, arrived)
        except NoRoom as reason:
            found = self._plain_backward(arrived)
            if found is None:
                raise
            warn(f"SM020: a backward could not be compiled and runs operator by operator. {reason}")
            self.made[arrived] = found
        return found

    def visible_backward_for(self, arrived: int) -> tuple[Flat, bool]:
        """The same, operator by operator, for modes that are to see, and may change, every one of them."""
        with _disable_current_modes():
            found = self._plain_backward(arrived)
        return self.backward_for(arrived) if found is None else found

    def _plain_backward(self, arrived: int) -> tuple[Flat, bool] | None:
        if self.graphs is None:
            return None
        found = _native.aside(self.graphs, arrived)
        zeros = found is None
        found = found or _native.aside(self.graphs, (1 << len(self.tangents)) - 1)
        if found is None:
            return None
        run = found.plainly()
        return (lambda given: run(*given)) if self.consuming else run, zeros

    def part_for(self, arrived: int, source: int | None = None) -> Flat:
        """A part of a backward: see `MakePart`."""
        found = self.made_parts.get((arrived, source))
        return found or _native.aside(_native.sheltered, self._make_part, arrived, source)

    def _make_part(self, arrived: int, source: int | None) -> Flat:
        with _native.Held(self.making), _native.Paused():
            found = self.made_parts.get((arrived, source))
            if found is None:
                found = None if self.parts is None else self.parts(arrived, source)
                if found is None:
                    raise SmeltError(
                        "SM041",
                        "a gradient of one result of a compiled graph on its way to another cannot be computed apart",
                        hint="call this part under smelt.disable, or look at the gradient elsewhere",
                    )
                self.made_parts[arrived, source] = found
        return found

    def _make_once(self, arrived: int) -> tuple[Flat, bool]:
        with _native.Held(self.making), _native.Paused():
            return self.made.get(arrived) or self._make(arrived)

    def _make(self, arrived: int) -> tuple[Flat, bool]:
        run, zeros = self.backwards(arrived), False
        if run is None:
            everything = (1 << len(self.tangents)) - 1
            if arrived == everything:
                raise ValueError("a plan with tangents needs a backward")
            run, zeros = (self.made.get(everything) or self._make(everything))[0], True
        self.made[arrived] = (run, zeros)
        return run, zeros


def _takes_more(plan: JointPlan) -> bool:
    """Whether there is more to be done than to compute."""
    return bool(plan.must_own_memory or plan.kept_old_values or plan.random or plan.output_deps)


Numbers = tuple[int, ...]


def _ways(plan: JointPlan) -> tuple[Numbers, dict[int, Numbers], dict[Numbers, Numbers]]:
    """Inputs that some results lead to and others do not; inputs by the results that lead to them, a bit each; results
    by those they lead to. Inputs are in the order in which autograd is handed them."""
    everything = (1 << len(plan.tangents)) - 1
    fed = {index: bits for index, bits in zip(plan.gradients, plan.grad_depends_on, strict=False) if bits}
    not_always = tuple(index for index, bits in fed.items() if bits != everything)
    if not not_always:
        return (), {}, {}
    ways: dict[int, Numbers] = {}
    for index in plan.autograd_input_order or range(plan.inputs):
        if index in fed:
            ways[fed[index]] = (*ways.get(fed[index], ()), index)
    results: dict[Numbers, Numbers] = {}
    for number in range(len(plan.tangents)):
        led = tuple(bits for bits in ways if bits >> number & 1)
        results[led] = (*results.get(led, ()), number)
    return not_always, ways, results


def _turned(order: Sequence[int]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """From the graph's order of inputs to the one autograd sees, and back."""
    if not order:
        return _as_is, _as_is
    places = sorted(range(len(order)), key=order.__getitem__)
    return operator.itemgetter(*order), operator.itemgetter(*places)


def _as_is(values: Any) -> Any:
    return values
