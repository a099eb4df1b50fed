"""Joining compiled graphs to their caller: write-backs, aliases, and PyTorch's autograd.

    join(forward, backward, plan) : flat tensors → flat outputs, as eager would leave the world

With tangents in the plan the forward runs inside one `torch.autograd.Function`. What it saves goes through
`save_for_backward`, so PyTorch's version checks, saved-tensor hooks and freeing work as ever. A backward under
`create_graph=True` does not run the compiled backward, whose own derivative nobody has: it computes the results again
from the inputs, differentiably and with the same random numbers, and lets PyTorch differentiate that. So does one for
many tangents at once, which are no tensors with memory.

An input that is written differentiably gets its new value by `copy_`, which is how PyTorch's autograd learns of it.
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from smelt import _native
from smelt.base.coexist import leave_alone
from smelt.base.errors import UnexpectedResult
from smelt.base.torch_originals import BASE
from smelt.ir.call_contract import JointPlan, Replay
from smelt.runtime import shelter  # noqa: F401  (says what `_native` puts back)
from smelt.runtime.autograd.alias_outputs import finisher, own_tensors
from smelt.runtime.autograd.differentiable import Differentiable, Flat, GraphOfBackward, MakeBackward, MakePart
from smelt.runtime.autograd.double_backward import leaves, needs_double_backward, track
from smelt.runtime.autograd.function_node import CompiledNode, apply, gradients_of, results_of
from smelt.runtime.autograd.hooks import call_for_own_gradients
from smelt.runtime.autograd.input_mutation import count_writes, only_eager_is_right, own, with_old_values, write_back
from smelt.runtime.autograd.layout_fit import without_autocast
from smelt.runtime.autograd.output_dependencies import GradObservers, lean
from smelt.runtime.autograd.saved_tensors import save
from smelt.runtime.autograd.split_nodes import apply_parted, is_parted


def join(
    forward: Flat,
    backwards: MakeBackward | None,
    plan: JointPlan,
    *,
    replay: Replay | str = "no graph to compute the results from again was kept",
    eager: Flat | None = None,
    consuming: bool = False,
    graphs: GraphOfBackward | None = None,
    parts: MakePart | None = None,
    of_one_size: bool = True,
) -> Flat:
    """A callable from flat input tensors to flat outputs.

    Each backward is made when it is first needed; it takes what was saved and the tangents that have a bit. If they are
    `consuming`, backwards take all that in a list, out of which they take it, so that memory is free again as soon as
    it has been read.

    `eager`, the original graph, runs instead where the compiled one would not be right: when inputs that are written
    share memory, under `torch.func` transforms, in forward-mode differentiation, inside `torch.utils.checkpoint`, and
    where an operator turns out to yield something else than was said of it.
    """
    if not plan.tangents:
        alone = _Forward(forward, plan, eager)
        return _quick_forward(alone) if alone.is_simple else alone.__call__
    if backwards is None:
        raise ValueError("a plan with tangents needs a backward")
    state = Differentiable(forward, backwards, plan, replay, eager, consuming, graphs, parts, of_one_size)
    return _quick(state) if state.is_simple else functools.partial(_call, state)


class _Forward:
    """A compiled graph without gradients."""

    def __init__(self, forward: Flat, plan: JointPlan, eager: Flat | None) -> None:
        self.forward = forward if eager is None or not plan.random else _undrawing(forward)
        self.plan = plan
        self.eager = eager
        self.finish = finisher(plan)
        # The first of its steps that writes to an input, if it does so itself.
        self.writes_from: int | None = getattr(forward, "writes_from", None)
        # Nothing to be done but to compute: see `_quick_forward`.
        mutates = bool(plan.mutated_inputs or plan.mutated_with_grad)
        self.is_simple = self.finish is None and not (plan.must_own_memory or mutates)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        plan = self.plan
        if self.eager is not None and only_eager_is_right(plan, inputs):
            return self.eager(*inputs)
        try:
            values = _native.unrecorded(self._values, inputs)
        except UnexpectedResult:
            if self.eager is None:
                raise
            return self.eager(*inputs)  # nothing is written before the last call that may end here
        except Exception as error:
            step = error.__dict__.pop("smelt_step", -1)
            if self.writes_from is not None and step >= self.writes_from:  # memory ran out, maybe between two writes
                count_writes([inputs[index] for index in plan.mutated_inputs])
            raise
        if plan.mutated_inputs:
            write_back(plan, inputs, values[plan.results : plan.forward_outputs])
        results = own_tensors(values[: plan.results])
        return tuple(results) if self.finish is None else self.finish(inputs, results)

    def _values(self, inputs: Sequence[Any]) -> Sequence[Any]:
        autocast = torch._C._is_any_autocast_enabled()
        values = without_autocast(self.forward, inputs) if autocast else self.forward(*inputs)
        return own(values, self.plan.must_own_memory) if self.plan.must_own_memory else values


def _undrawing(forward: Flat) -> Flat:
    """Has drawn no random numbers where the graph is run by PyTorch after all, which draws them."""

    def run(*inputs: Any) -> Any:
        state = torch.get_rng_state()
        try:
            return forward(*inputs)
        except UnexpectedResult:
            torch.set_rng_state(state)
            raise

    return run


def _call(state: Differentiable, *inputs: Any) -> tuple[Any, ...]:
    """A call of any graph with gradients."""
    plan = state.plan
    transformed = torch._C._are_functorch_transforms_active()
    hooked = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
    if (transformed or hooked or forward_ad._current_level >= 0 or plan.mutated_inputs) and (
        state.eager is not None and (only_eager_is_right(plan, inputs) or _is_checkpointed())
    ):
        return state.eager(*inputs)
    copied = (*plan.kept_old_values, *(index for index in plan.copied_saved_inputs if not inputs[index].is_leaf))
    given = with_old_values(copied, inputs) if copied else inputs
    # The way in, and the way out for values that are no results of the function.
    lookout = GradObservers() if plan.output_deps else None
    box: list[Any] = [state, torch.get_rng_state() if plan.random else None, lookout]
    given = _apart(_bystanders(state), given)
    try:
        if state.not_always and not transformed and is_parted(state, inputs):
            differentiable = apply_parted(state, box, given)
        else:
            run: Flat = CompiledNode.apply if transformed else apply
            differentiable = run(box, *state.out(given))
    except UnexpectedResult:
        if state.eager is None:
            raise
        if box[1] is not None:
            torch.set_rng_state(box[1])
        return state.eager(*inputs)
    values: Any = differentiable
    if len(box) > 3:
        values = box[3]
        for position, value in zip(plan.differentiable, differentiable, strict=True):
            values[position] = value
    made: Any = ()
    if lookout is not None:
        values, made = lean(state, lookout, inputs, values)
    elif plan.mutated_inputs:
        write_back(plan, inputs, values[plan.results :])
    result: tuple[Any, ...] = values if state.finish is None else state.finish(inputs, values, made)
    return result


def _quick_forward(state: _Forward) -> Flat:
    """How a graph without gradients is called of which the outputs are all that comes out."""
    compute, eager, is_one = state.forward, state.eager, state.plan.results == 1
    in_autocast, in_transform = torch._C._is_any_autocast_enabled, torch._C._are_functorch_transforms_active
    records, unrecorded = torch._C.is_grad_enabled, _native.unrecorded

    def call(*inputs: Any) -> tuple[Any, ...]:
        if in_transform() or forward_ad._current_level >= 0 or in_autocast():
            return state(*inputs)
        try:
            values = unrecorded(compute, *inputs) if records() else compute(*inputs)
        except UnexpectedResult:
            if eager is None:
                raise
            return eager(*inputs)
        if not is_one:
            return tuple(own_tensors(values))
        value = values[0]
        return (BASE.detach(value) if value._is_view() else value,)

    return call


def _quick(state: Differentiable) -> Flat:
    """How a graph is called of which the outputs are all that comes out, fresh and differentiable.

    Most calls are of this kind, and a few steps in Python cost as much as a small kernel: so it has a
    `torch.autograd.Function` of its own, with all that never changes bound beforehand.
    """
    compute, kept, tracked, count = state.forward, state.kept, state.tracked, state.plan.forward_outputs
    # Of leaves whose value does not matter nothing is noted: `leaves` finds them.
    places = tuple(index for index, _, _ in tracked)
    track_always = any(needed or not wanted for _, wanted, needed in tracked)
    in_autocast, in_transform = torch._C._is_any_autocast_enabled, torch._C._are_functorch_transforms_active
    saving_hooks = torch._C._autograd._top_saved_tensors_default_hooks
    passing, bystanders, not_always = state.plan.copied_saved_inputs, _bystanders(state), state.not_always
    turned, out, back = bool(state.plan.autograd_input_order), state.out, state.back

    def forward(ctx: Any, *inputs: Any) -> tuple[Any, ...]:
        if turned:
            inputs = back(inputs)
        values = without_autocast(compute, inputs) if in_autocast() else compute(*inputs)
        if kept:
            save(ctx, state, [inputs[index] if is_input else values[index] for is_input, index in kept])
        for index in places:
            if track_always or not inputs[index].is_leaf:
                ctx.others = track(state, inputs)
                break
        ctx.set_materialize_grads(False)
        if count == 1:
            value = values[0]
            return (BASE.detach(value) if value._is_view() else value,)
        return results_of(values[:count])

    def backward(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        others = getattr(ctx, "others", None)
        if places and others is None and needs_double_backward(tangents):
            others = leaves(ctx, state)
        return tuple(out(gradients_of(ctx, tangents, state, others)))

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward), "_smelt_state": state}
    function: Any = leave_alone(type("CompiledNode", (torch.autograd.Function,), members))
    if count > 1:
        call_for_own_gradients(function)
    run: Flat = super(torch.autograd.Function, function).apply

    def call(*inputs: Any) -> tuple[Any, ...]:
        if in_transform() or saving_hooks(True) is not None or forward_ad._current_level >= 0:
            return _call(state, *inputs)
        for index in passing:
            if not inputs[index].is_leaf:
                return _call(state, *inputs)
        if not_always and is_parted(state, inputs):
            return _call(state, *inputs)
        if bystanders:
            inputs = _apart(bystanders, inputs)
        try:
            return run(*out(inputs)) if turned else run(*inputs)
        except UnexpectedResult:
            if state.eager is None:
                raise
            return state.eager(*inputs)

    return call


def _bystanders(state: Differentiable) -> tuple[int, ...]:
    """Inputs that no gradient goes to. If none goes to any, all are what results require grad by."""
    return tuple(index for index in range(state.plan.inputs) if index not in state.wanted) if state.wanted else ()


def _apart(bystanders: tuple[int, ...], inputs: Any) -> Any:
    """Inputs as autograd is to see them: a backward would go on to what those led from that no gradient goes to, and
    let go of what is saved there, which in eager it never comes to."""
    if not any(getattr(inputs[index], "requires_grad", False) for index in bystanders):
        return inputs
    given = list(inputs)
    for index in bystanders:
        if getattr(given[index], "requires_grad", False):
            given[index] = BASE.detach(given[index])
    return tuple(given)


def _is_checkpointed() -> bool:
    """Whether `torch.utils.checkpoint` watches what is saved. It will run the caller's Python again in the backward,
    where nothing compiled is on the stack, and expects the very same tensors to be saved in the same order."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks is not None and getattr(hooks[0], "__module__", None) == "torch.utils.checkpoint"
