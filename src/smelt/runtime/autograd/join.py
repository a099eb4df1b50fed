"""Compiled graphs as functions of tensors: input mutations, aliased outputs, and PyTorch's autograd.

    join(forward, backward, plan) : flat tensors → flat outputs, with the side effects of eager

With tangents in the plan the forward runs inside one `torch.autograd.Function`. What it saves goes through
`save_for_backward`, so PyTorch's version checks, saved-tensor hooks and freeing work as usual. A backward under
`create_graph=True` does not run the compiled backward, which has no derivative: it recomputes the results from the
inputs, differentiably and with the same random numbers, and PyTorch differentiates that. So does a backward for batched
tangents (`is_grads_batched`).

An input that is mutated with gradients gets its new value by `copy_`, so that PyTorch's autograd records it.
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from smelt import _native
from smelt.base.coexist import leave_alone
from smelt.base.errors import UnexpectedResult, warn
from smelt.base.torch_originals import BASE
from smelt.device import random_state
from smelt.ir.call_contract import FromResult, JointPlan, Replay
from smelt.ir.graph import Unchecked
from smelt.runtime import preserved_state  # noqa: F401  (says what `_native` puts back)
from smelt.runtime.autograd.alias_outputs import detach_views, finisher
from smelt.runtime.autograd.differentiable import Differentiable, Flat, GraphOfBackward, MakeBackward, MakePart
from smelt.runtime.autograd.double_backward import needs_double_backward, track, unsaved_leaves
from smelt.runtime.autograd.early_gradients import Groups, early_groups
from smelt.runtime.autograd.function_node import Compiled, apply, gradients_of, results_of
from smelt.runtime.autograd.hooks import skip_hooks_without_grad
from smelt.runtime.autograd.input_mutation import (
    bump_versions,
    clone_aliased,
    copy_back,
    must_run_eager,
    with_copies,
    write_back,
)
from smelt.runtime.autograd.layout_fit import without_autocast
from smelt.runtime.autograd.output_dependencies import GradObservers, attach_dependencies
from smelt.runtime.autograd.saved_tensors import save
from smelt.runtime.autograd.split_nodes import apply_split, needs_split
from smelt.runtime.overlap import overlap


def join(
    forward: Flat,
    backwards: MakeBackward | None,
    plan: JointPlan,
    *,
    replay: Replay | str = "the graph to recompute the results from was not kept",
    eager: Flat | None = None,
    consuming: bool = False,
    graphs: GraphOfBackward | None = None,
    parts: MakePart | None = None,
    has_static_shapes: bool = True,
) -> Flat:
    """A callable from flat input tensors to flat outputs.

    Each backward is compiled when it is first needed; it takes the saved tensors and the tangents that have a bit. With
    `consuming`, backwards take them in a list and empty it, so that memory is freed after its last use.

    `eager`, the original graph, runs instead where the compiled one would be wrong: when mutated inputs share memory,
    under `torch.func` transforms, in forward-mode differentiation, inside `torch.utils.checkpoint`, and where an
    operator returns another shape or layout than its meta function said.
    """
    if not plan.tangents:
        alone = _Forward(forward, plan, eager)
        return _fast_forward(alone) if alone.is_simple else alone.__call__
    if backwards is None:
        raise ValueError("a plan with tangents needs a backward")
    state = Differentiable(forward, backwards, plan, replay, eager, consuming, graphs, parts, has_static_shapes)
    return _fast_path(state) if state.is_simple else functools.partial(_call, state)


class _Forward:
    """A compiled graph without gradients."""

    def __init__(self, forward: Flat, plan: JointPlan, eager: Flat | None) -> None:
        self.forward = forward if eager is None or not plan.random else _restoring_rng(forward, plan.random)
        self.plan = plan
        self.eager = eager
        self.finish = finisher(plan)
        # The first step that mutates an input, if steps do so themselves.
        self.writes_from: int | None = getattr(forward, "writes_from", None)
        # No aliases and no mutations to handle: see `_fast_forward`.
        mutates = bool(plan.mutated_inputs or plan.mutated_with_grad)
        self.is_simple = self.finish is None and not (plan.must_own_memory or mutates)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        plan = self.plan
        if self.eager is not None and must_run_eager(plan, inputs):
            return self.eager(*inputs)
        try:
            values = _native.unrecorded(self._values, inputs)
        except UnexpectedResult as error:
            return _eagerly(self.eager, inputs, error)  # nothing is mutated before the last call that can raise this
        except Exception as error:
            step = error.__dict__.pop("smelt_step", -1)
            if self.writes_from is not None and step >= self.writes_from:  # out of memory, maybe between two writes
                bump_versions([inputs[index] for index in plan.mutated_inputs])
            raise
        if plan.mutated_inputs:
            write_back(plan, inputs, values[plan.results : plan.forward_outputs])
        results = detach_views(values[: plan.results])
        return tuple(results) if self.finish is None else self.finish(inputs, results)

    def unchecked(self, *_: Any) -> Unchecked | None:
        """The forward alone, and new values of inputs."""
        plan, forward = self.plan, self.forward
        results = tuple([each.index for each in plan.outputs if each == FromResult(getattr(each, "index", -1))])
        if len(results) < len(plan.outputs) or plan.mutated_with_grad or plan.random:
            return None
        if not (plan.mutated_inputs or plan.must_own_memory):
            return Unchecked(forward, results)
        mutated, first, count = plan.mutated_inputs, plan.results, len(plan.mutated_inputs)

        def call(*inputs: Any) -> Sequence[Any]:
            if overlap(inputs, mutated):
                raise ValueError("a mutated input overlaps another one")
            values = forward(*inputs)
            new_values = values[first : first + count]
            owned = clone_aliased(values, plan.must_own_memory) if plan.must_own_memory else values
            if new_values.count(None) < count:
                copy_back(plan, [inputs[index] for index in mutated], new_values)
            return owned

        return Unchecked(call, results)

    def _values(self, inputs: Sequence[Any]) -> Sequence[Any]:
        autocast = torch._C._is_any_autocast_enabled()
        values = without_autocast(self.forward, inputs) if autocast else self.forward(*inputs)
        return clone_aliased(values, self.plan.must_own_memory) if self.plan.must_own_memory else values


def _eagerly(eager: Flat | None, inputs: Sequence[Any], error: UnexpectedResult) -> tuple[Any, ...]:
    """The call in eager PyTorch, where a library call returned what the kernels after it were not built for. It happens
    at every call, and takes longer than eager alone: so it is said, once for each reason."""
    if eager is None:
        raise error
    if str(error) not in _said:
        _said.add(str(error))
        warn(f"{error}. The graph runs in eager PyTorch instead, at every call.")
    results: tuple[Any, ...] = eager(*inputs)
    return results


_said: set[str] = set()


def _restoring_rng(forward: Flat, devices: tuple[str, ...]) -> Flat:
    """The forward, which restores the random state when the call falls back to eager, which draws the numbers again."""

    def run(*inputs: Any) -> Any:
        saved = random_state.save(devices)
        try:
            return forward(*inputs)
        except UnexpectedResult:
            random_state.restore(saved)
            raise

    return run


def _call(state: Differentiable, *inputs: Any, early: Groups | None = None) -> tuple[Any, ...]:
    """A call of any graph with gradients. `early`: the groups of inputs, if they are known already."""
    plan = state.plan
    transformed = torch._C._are_functorch_transforms_active()
    hooked = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
    if (transformed or hooked or forward_ad._current_level >= 0 or plan.mutated_inputs) and (
        state.eager is not None and (must_run_eager(plan, inputs) or _is_checkpointed())
    ):
        return state.eager(*inputs)
    copied = (*plan.kept_old_values, *(index for index in plan.copied_saved_inputs if not inputs[index].is_leaf))
    autograd_inputs = with_copies(copied, inputs) if copied else inputs
    # Arguments of the node; the forward appends values that are not its results.
    observers = GradObservers() if plan.output_deps else None
    box: list[Any] = [state, random_state.save(plan.random) if plan.random else None, observers]
    autograd_inputs = _detached(_inputs_without_grad(state), autograd_inputs)
    try:
        early = early or (None if transformed else early_groups(state, inputs))
        if early or (state.partly_reached and not transformed and needs_split(state, inputs)):
            differentiable = apply_split(state, box, autograd_inputs, early)
        else:
            run: Flat = Compiled.apply if transformed else apply
            differentiable = run(box, *state.out(autograd_inputs))
    except UnexpectedResult as error:
        if box[1] is not None:
            random_state.restore(box[1])
        return _eagerly(state.eager, inputs, error)
    values: Any = differentiable
    if len(box) > 3:
        values = box[3]
        for position, value in zip(plan.differentiable, differentiable, strict=True):
            values[position] = value
    by_position: Any = ()
    if observers is not None:
        values, by_position = attach_dependencies(state, observers, inputs, values)
    elif plan.mutated_inputs:
        write_back(plan, inputs, values[plan.results :])
    result: tuple[Any, ...] = values if state.finish is None else state.finish(inputs, values, by_position)
    return result


def _fast_forward(state: _Forward) -> Flat:
    """The call of a graph without gradients, aliases or mutations."""
    return _native.ForwardCall(
        run=state.forward,
        general=state,
        in_transform=torch._C._are_functorch_transforms_active,
        in_autocast=torch._C._is_any_autocast_enabled,
        grad_mode=torch._C.is_grad_enabled,
        module=forward_ad.__dict__,
        level="_current_level",
        failure=UnexpectedResult,
        failed=functools.partial(_eagerly, state.eager),
        is_view=BASE._is_view,
        detach=BASE.detach,
    )


def _fast_path(state: Differentiable) -> Flat:
    """The call of a graph whose outputs are its differentiable results, without aliases or mutations.

    Most calls are of this kind, and a few steps in Python cost as much as a small kernel: so it has its own
    `torch.autograd.Function`, with everything that is constant bound beforehand.
    """
    compute, saved_from, tracked, count = state.forward, state.saved_from, state.tracked, state.plan.forward_outputs
    # Leaves whose value does not matter are not tracked: `unsaved_leaves` finds them.
    places = tuple(index for index, _, _ in tracked)
    track_always = any(needed or not wanted for _, wanted, needed in tracked)
    in_autocast, in_transform = torch._C._is_any_autocast_enabled, torch._C._are_functorch_transforms_active
    saving_hooks = torch._C._autograd._top_saved_tensors_default_hooks
    copied_inputs, partly_reached = state.plan.copied_saved_inputs, state.partly_reached
    without_grad = _inputs_without_grad(state)
    reordered, out, back = bool(state.plan.autograd_input_order), state.out, state.back

    def forward(ctx: Any, *inputs: Any) -> tuple[Any, ...]:
        if reordered:
            inputs = back(inputs)
        values = without_autocast(compute, inputs) if in_autocast() else compute(*inputs)
        if saved_from:
            save(ctx, state, [inputs[index] if is_input else values[index] for is_input, index in saved_from])
        for index in places:
            if track_always or not inputs[index].is_leaf:
                ctx.unsaved = track(state, inputs)
                break
        ctx.set_materialize_grads(False)
        if count == 1:
            value = values[0]
            return (BASE.detach(value) if value._is_view() else value,)
        return results_of(values[:count])

    def backward(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        unsaved = getattr(ctx, "unsaved", None)
        if places and unsaved is None and needs_double_backward(tangents):
            unsaved = unsaved_leaves(ctx, state)
        return tuple(out(gradients_of(ctx, tangents, state, unsaved)))

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward), "_smelt_state": state}
    function: Any = leave_alone(type("Compiled", (torch.autograd.Function,), members))
    if count > 1:
        skip_hooks_without_grad(function)
    run: Flat = super(torch.autograd.Function, function).apply

    def call(*inputs: Any) -> tuple[Any, ...]:
        if in_transform() or saving_hooks(True) is not None or forward_ad._current_level >= 0:
            return _call(state, *inputs)
        for index in copied_inputs:
            if not inputs[index].is_leaf:
                return _call(state, *inputs)
        if partly_reached and needs_split(state, inputs):
            return _call(state, *inputs)
        early = early_groups(state, inputs)
        if early is not None:
            return _call(state, *inputs, early=early)
        if without_grad:
            inputs = _detached(without_grad, inputs)
        try:
            return run(*out(inputs)) if reordered else run(*inputs)
        except UnexpectedResult as error:
            return _eagerly(state.eager, inputs, error)

    return call


def _inputs_without_grad(state: Differentiable) -> tuple[int, ...]:
    """Inputs that get no gradient. Empty if no input gets one: then results require grad because of all of them."""
    return tuple(index for index in range(state.plan.inputs) if index not in state.wanted) if state.wanted else ()


def _detached(without_grad: tuple[int, ...], inputs: Any) -> Any:
    """Inputs for autograd: those without gradients are detached. A backward would otherwise walk their history and free
    what is saved there, which in eager it never reaches."""
    if not any(getattr(inputs[index], "requires_grad", False) for index in without_grad):
        return inputs
    detached = list(inputs)
    for index in without_grad:
        if getattr(detached[index], "requires_grad", False):
            detached[index] = BASE.detach(detached[index])
    return tuple(detached)


def _is_checkpointed() -> bool:
    """Whether `torch.utils.checkpoint` is active. It reruns the caller's Python in the backward, where nothing compiled
    is on the stack, and expects the same tensors to be saved in the same order."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks is not None and getattr(hooks[0], "__module__", None) == "torch.utils.checkpoint"
