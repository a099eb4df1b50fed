"""The autograd node of a compiled graph: a `torch.autograd.Function` around its forward and backward.

    apply([state, …], *inputs)   →   results whose `grad_fn` runs the compiled backward

What the forward saves goes through `save_for_backward`, so PyTorch's version checks, saved-tensor hooks and freeing
work as usual. The backward is compiled lazily, for the set of results that have gradients.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.base.coexist import leave_alone
from smelt.base.torch_originals import BASE
from smelt.device.random_state import Saved
from smelt.ir.call_contract import JointPlan
from smelt.runtime.autograd.alias_outputs import detach_views
from smelt.runtime.autograd.differentiable import Differentiable, Flat
from smelt.runtime.autograd.double_backward import (
    UnsavedInput,
    differentiable_backward,
    drop_unsaved,
    needs_double_backward,
    saved_inputs,
    track,
)
from smelt.runtime.autograd.hooks import skip_hooks_without_grad
from smelt.runtime.autograd.input_mutation import clone_aliased
from smelt.runtime.autograd.layout_fit import fit_saved, fit_tangent, without_autocast
from smelt.runtime.autograd.output_dependencies import GradObservers
from smelt.runtime.autograd.saved_tensors import save, saved_for


@leave_alone
class Compiled(torch.autograd.Function):
    """The autograd node of a compiled graph."""

    @staticmethod
    def forward(ctx: Any, box: list[Any], *inputs: Any) -> tuple[Any, ...]:
        state: Differentiable = box[0]
        plan = state.plan
        values = compute(ctx, box, state.back(inputs))
        if not state.only_results:
            box.append([*detach_views(values[: plan.results]), *values[plan.results : plan.forward_outputs]])
        return results_of([values[index] for index in plan.differentiable])

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        return (None, *ctx.compiled_call[0].out(gradients_of(ctx, tangents, *ctx.compiled_call)))


skip_hooks_without_grad(Compiled)
# `Function.apply` without its preparations for `torch.func`, which cost as much as the call itself.
apply: Callable[..., Any] = super(torch.autograd.Function, Compiled).apply


def compute(ctx: Any, box: Sequence[Any], inputs: Sequence[Any]) -> Sequence[Any]:
    """Run the forward, and keep in `ctx` what the backward needs."""
    state: Differentiable = box[0]
    # The casts autocast asks for are in the graph already.
    autocast = torch._C._is_any_autocast_enabled()
    values: Sequence[Any] = without_autocast(state.forward, inputs) if autocast else state.forward(*inputs)
    if state.plan.must_own_memory:
        values = clone_aliased(values, state.plan.must_own_memory)
    hooked = False
    unsaved = track(state, inputs)
    if state.saved_from:
        hooked = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        save(ctx, state, [inputs[index] if is_input else values[index] for is_input, index in state.saved_from], hooked)
    ctx.set_materialize_grads(False)
    ctx.compiled_call = (state, unsaved, hooked, *box[1:])  # in one: every attribute of a context costs
    return values


def run_whole(state: Differentiable, backward: Flat, operands: list[Any]) -> Sequence[Any]:
    """The results of a backward."""
    gradients: Sequence[Any] = without_autocast(backward, (operands,) if state.consuming else operands)
    return gradients


def gradients_of(
    ctx: Any,
    tangents: Sequence[Any],
    state: Differentiable,
    unsaved: list[UnsavedInput] | None = None,
    hooked: bool = False,
    random: Saved | None = None,
    observers: GradObservers | None = None,
    *,
    run: Callable[[Differentiable, Flat, list[Any]], Sequence[Any]] = run_whole,
) -> list[Any]:
    """The gradient of each input of the graph. `run` runs a compiled backward."""
    arrived = sum(1 << number for number, tangent in enumerate(tangents) if tangent is not None)
    replayed = needs_double_backward(tangents)
    saved, freed = saved_for(ctx, state, arrived, replayed)
    if not arrived:
        return [None] * state.plan.inputs  # as any node does whose outputs have no gradients
    if replayed:
        inputs = saved_inputs(state, saved, unsaved or [])
        gradients: Sequence[Any] = differentiable_backward(state, inputs, random, tangents)
    else:
        operands = list(saved)
        del saved
        ctx.maybe_clear_saved_tensors()  # unless the graph is retained, only `given` holds them now
        if unsaved and freed:
            drop_unsaved(unsaved)
        fit_saved(operands, state, hooked)
        if observers is not None and observers.observed_now():
            backward, zeros = state.part_for(arrived), False
        elif torch._C._len_torch_dispatch_stack():
            backward, zeros = state.visible_backward_for(arrived)
        else:
            backward, zeros = state.backward_for(arrived)
        for tangent, (spec, stride) in zip(tangents, state.tangents, strict=True):
            if tangent is not None or zeros:
                operands.append(fit_tangent(tangent, spec, stride))
        gradients = run(state, backward, operands)
        if state.plan.grad_depends_on:
            gradients = without_unreached(gradients, state.plan.grad_depends_on, arrived)
    return by_input(state.plan, gradients)


def by_input(plan: JointPlan, gradients: Sequence[Any]) -> list[Any]:
    """The results of a backward, per input of the graph."""
    placed: list[Any] = [None] * plan.inputs
    for index, gradient in zip(plan.gradients, gradients, strict=True):
        placed[index] = gradient
    return placed


def without_unreached(gradients: Sequence[Any], fed: Sequence[int], arrived: int) -> list[Any]:
    """None for gradients that no arrived tangent reaches, as in eager: optimizers skip those."""
    return [
        None if sources and not sources & arrived else gradient
        for gradient, sources in zip(gradients, fed, strict=True)
    ]


def results_of(values: Sequence[Any]) -> tuple[Any, ...]:
    """Values as a node may return them: PyTorch forbids in-place writes to views from a multi-output node, and a node
    cannot return one tensor twice."""
    seen: set[int] = set()
    return tuple([BASE.detach(value) if value._is_view() or _is_repeated(value, seen) else value for value in values])


def _is_repeated(value: object, seen: set[int]) -> bool:
    if id(value) in seen:
        return True
    seen.add(id(value))
    return False
