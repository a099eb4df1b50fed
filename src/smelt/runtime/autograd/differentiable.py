"""A compiled forward and backward, and all about them that is the same for every call.

    Differentiable(forward, backwards, plan, …).backward_for(0b01)   →   the backward for the first result's gradient
"""

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from torch.utils._python_dispatch import _disable_current_modes

from smelt import _native
from smelt.base import locks
from smelt.base.errors import NotEnoughMemory, SmeltError, warn
from smelt.ir.call_contract import JointPlan, Replay
from smelt.ir.graph import Traced
from smelt.runtime.autograd.alias_outputs import finisher

Flat = Callable[..., "tuple[Any, ...]"]

# Compiles the backward for a set of results with gradients (a bit each); None if only the backward for all will do.
MakeBackward = Callable[[int], "Flat | None"]
# The same as a graph, to be inlined into a larger one by compiled autograd.
GraphOfBackward = Callable[[int], "Traced | None"]
# Compiles a part of a backward, cut at outputs that other results depend on: from all tangents to the inputs, or from
# one tangent to the outputs that its result depends on. None where that is impossible.
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
        has_static_shapes: bool = True,
    ) -> None:
        self.forward = forward
        self.backwards = backwards
        self.graphs = graphs
        # Whether compiled autograd may inline its backward: with dynamic shapes that would compile for each size.
        self.can_be_inlined = graphs is not None and has_static_shapes
        self.parts = parts
        # By the results that gradients arrive for: the backward, and whether it takes zeros for the others.
        self.compiled_backwards: dict[int, tuple[Flat, bool]] = {}
        self.early_groups: Any = None  # a backward, and the groups in which it delivers gradients
        self.made_parts: dict[tuple[int, int | None], Flat] = {}
        self.making = locks.lock()
        self.number = next(_numbers)
        self.plan = plan
        self.replay = replay
        self.eager = eager
        self.consuming = consuming
        self.finish = finisher(plan)
        # Where each saved tensor comes from: an input's number, or a position among the forward's values.
        self.saved_from = tuple(
            (saved.source is not None, plan.forward_outputs + place if saved.source is None else saved.source)
            for place, saved in enumerate(plan.saved)
        )
        saved_inputs = {saved.source for saved in plan.saved}
        # Values before mutation, for double backward only; they are saved with the others.
        self.old_values = tuple(index for index in plan.kept_old_values if index not in saved_inputs)
        self.saved_from += tuple((True, index) for index in self.old_values)
        saved_inputs.update(self.old_values)
        self.unsaved = tuple(index for index in range(plan.inputs) if index not in saved_inputs)
        self.wanted = frozenset(plan.gradients)
        self.only_results = plan.results == len(plan.differentiable) and not plan.mutated_inputs
        self.only_values = self.only_results and plan.differentiable == tuple(range(plan.forward_outputs))
        self.tangents = tuple((spec, spec.stride) for spec in plan.tangents)
        # No aliases, mutations or random state to handle: see `_fast_path`.
        self.is_simple = self.only_values and self.finish is None and not _has_extra_work(plan)
        self.watched = plan.watched  # outputs that other results depend on, and which of them alias mutated inputs
        self.written_outputs = plan.showing_written
        # From the graph's order of inputs to the order that autograd gets them in, and back.
        self.out, self.back = _reordering(plan.autograd_input_order)
        # Where not all results depend on the same inputs: see `smelt.runtime.autograd.split_nodes`.
        self.partly_reached, self.input_groups, self.results_by_groups = _input_groups(plan)
        needed = frozenset(plan.needed).difference(plan.mutated_inputs)
        self.tracked = tuple((index, index in self.wanted, index in needed) for index in self.unsaved)

    def backward_for(self, arrived: int) -> tuple[Flat, bool]:
        """The backward for gradients of these results, and whether it takes zeros for the others."""
        backward = self.compiled_backwards.get(arrived)
        if backward is not None:
            return backward
        try:
            # Compiling must not disturb the thread state of the program.
            backward = _native.aside(_native.preserving_state, self._make_once, arrived)
        except NotEnoughMemory as reason:
            backward = self._plain_backward(arrived)
            if backward is None:
                raise
            warn(f"SM020: a backward could not be compiled and runs in eager mode, operator by operator. {reason}")
            self.compiled_backwards[arrived] = backward
        return backward

    def visible_backward_for(self, arrived: int) -> tuple[Flat, bool]:
        """The same, operator by operator, so that active dispatch modes see every operator."""
        with _disable_current_modes():
            backward = self._plain_backward(arrived)
        return self.backward_for(arrived) if backward is None else backward

    def _plain_backward(self, arrived: int) -> tuple[Flat, bool] | None:
        if self.graphs is None:
            return None
        graph = _native.aside(self.graphs, arrived)
        zeros = graph is None
        graph = graph or _native.aside(self.graphs, (1 << len(self.tangents)) - 1)
        if graph is None:
            return None
        run = graph.plainly()
        return (lambda values: run(*values)) if self.consuming else run, zeros

    def part_for(self, arrived: int, source: int | None = None) -> Flat:
        """A part of a backward: see `MakePart`."""
        part = self.made_parts.get((arrived, source))
        return part or _native.aside(_native.preserving_state, self._make_part, arrived, source)

    def _make_part(self, arrived: int, source: int | None) -> Flat:
        with _native.Held(self.making):
            part = self.made_parts.get((arrived, source))
            if part is None:
                part = None if self.parts is None else self.parts(arrived, source)
                if part is None:
                    raise SmeltError(
                        "SM041",
                        "the gradient of an output of a compiled graph that other outputs depend on cannot be computed",
                        hint="call this part under smelt.disable, or put the hook or retain_grad() on another tensor",
                    )
                self.made_parts[arrived, source] = part
        return part

    def _make_once(self, arrived: int) -> tuple[Flat, bool]:
        with _native.Held(self.making):
            return self.compiled_backwards.get(arrived) or self._make(arrived)

    def _make(self, arrived: int) -> tuple[Flat, bool]:
        run, zeros = self.backwards(arrived), False
        if run is None:
            everything = (1 << len(self.tangents)) - 1
            if arrived == everything:
                raise ValueError("a plan with tangents needs a backward")
            run, zeros = (self.compiled_backwards.get(everything) or self._make(everything))[0], True
        self.compiled_backwards[arrived] = (run, zeros)
        return run, zeros


def _has_extra_work(plan: JointPlan) -> bool:
    """Whether a call does more than compute: clone results, keep old values, save random state, track dependencies."""
    return bool(plan.must_own_memory or plan.kept_old_values or plan.random or plan.output_deps)


Numbers = tuple[int, ...]


def _input_groups(plan: JointPlan) -> tuple[Numbers, dict[int, Numbers], dict[Numbers, Numbers]]:
    """Inputs that only some results depend on; inputs grouped by the results that depend on them (a bit each); results
    grouped by the input groups they depend on. Inputs are in the order in which autograd gets them."""
    everything = (1 << len(plan.tangents)) - 1
    fed = {index: bits for index, bits in zip(plan.gradients, plan.grad_depends_on, strict=False) if bits}
    partly_reached = tuple(index for index, bits in fed.items() if bits != everything)
    if not partly_reached:
        return (), {}, {}
    groups: dict[int, Numbers] = {}
    for index in plan.autograd_input_order or range(plan.inputs):
        if index in fed:
            groups[fed[index]] = (*groups.get(fed[index], ()), index)
    results: dict[Numbers, Numbers] = {}
    for number in range(len(plan.tangents)):
        reached = tuple(bits for bits in groups if bits >> number & 1)
        results[reached] = (*results.get(reached, ()), number)
    return partly_reached, groups, results


def _reordering(order: Sequence[int]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """From the graph's order of inputs to the one autograd sees, and back."""
    if not order:
        return _as_is, _as_is
    places = sorted(range(len(order)), key=order.__getitem__)
    return operator.itemgetter(*order), operator.itemgetter(*places)


def _as_is(values: Any) -> Any:
    return values
