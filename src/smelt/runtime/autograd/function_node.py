"""The one node that a compiled graph is to PyTorch's autograd.

    apply([state, …], *inputs)   →   results whose `grad_fn` runs the compiled backward

What the forward saves goes through `save_for_backward`, so PyTorch's version checks, saved-tensor hooks and freeing
work as ever. The backward is compiled for the results that gradients arrive for, when they first do.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.base.coexist import leave_alone
from smelt.base.torch_originals import BASE
from smelt.runtime.autograd.alias_outputs import own_tensors
from smelt.runtime.autograd.differentiable import Differentiable
from smelt.runtime.autograd.double_backward import (
    Other,
    differentiable_backward,
    let_go,
    needs_double_backward,
    saved_inputs,
    track,
)
from smelt.runtime.autograd.hooks import call_for_own_gradients
from smelt.runtime.autograd.input_mutation import own
from smelt.runtime.autograd.layout_fit import fit_saved, fit_tangent, without_autocast
from smelt.runtime.autograd.output_dependencies import GradObservers
from smelt.runtime.autograd.saved_tensors import save, saved_for


@leave_alone
class CompiledNode(torch.autograd.Function):
    """The one node that a compiled graph is to PyTorch's autograd."""

    @staticmethod
    def forward(ctx: Any, box: list[Any], *inputs: Any) -> tuple[Any, ...]:
        state: Differentiable = box[0]
        plan = state.plan
        values = compute(ctx, box, state.back(inputs))
        if not state.only_results:
            box.append([*own_tensors(values[: plan.results]), *values[plan.results : plan.forward_outputs]])
        return results_of([values[index] for index in plan.differentiable])

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        return (None, *ctx.joined[0].out(gradients_of(ctx, tangents, *ctx.joined)))


call_for_own_gradients(CompiledNode)
# `Function.apply` without its preparations for `torch.func`, which cost as much as the call itself.
apply: Callable[..., Any] = super(torch.autograd.Function, CompiledNode).apply


def compute(ctx: Any, box: Sequence[Any], inputs: Sequence[Any]) -> Sequence[Any]:
    """Run the forward, and keep in `ctx` what the backward needs."""
    state: Differentiable = box[0]
    # The casts autocast asks for are in the graph already.
    autocast = torch._C._is_any_autocast_enabled()
    values: Sequence[Any] = without_autocast(state.forward, inputs) if autocast else state.forward(*inputs)
    if state.plan.must_own_memory:
        values = own(values, state.plan.must_own_memory)
    hooked = False
    others = track(state, inputs)
    if state.kept:
        hooked = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        save(ctx, state, [inputs[index] if is_input else values[index] for is_input, index in state.kept], hooked)
    ctx.set_materialize_grads(False)
    ctx.joined = (state, others, hooked, *box[1:])  # in one: every attribute of a context costs
    return values


def gradients_of(
    ctx: Any,
    tangents: Sequence[Any],
    state: Differentiable,
    others: list[Other] | None = None,
    hooked: bool = False,
    random: torch.Tensor | None = None,
    lookout: GradObservers | None = None,
) -> list[Any]:
    """What flows into each input of the graph."""
    arrived = sum(1 << number for number, tangent in enumerate(tangents) if tangent is not None)
    replayed = needs_double_backward(tangents)
    saved, spent = saved_for(ctx, state, arrived, replayed)
    if not arrived:
        return [None] * state.plan.inputs  # as from any node that a later one had no gradient for
    if replayed:
        inputs = saved_inputs(state, saved, others or [])
        gradients: Sequence[Any] = differentiable_backward(state, inputs, random, tangents)
    else:
        given = list(saved)
        del saved
        ctx.maybe_clear_saved_tensors()  # unless the graph is retained, only `given` has them now
        if others and spent:
            let_go(others)
        fit_saved(given, state, hooked)
        if lookout is not None and lookout.anyone():
            backward, zeros = state.part_for(arrived), False
        elif torch._C._len_torch_dispatch_stack():
            backward, zeros = state.visible_backward_for(arrived)
        else:
            backward, zeros = state.backward_for(arrived)
        for tangent, (spec, stride) in zip(tangents, state.tangents, strict=True):
            if tangent is not None or zeros:
                given.append(fit_tangent(tangent, spec, stride))
        gradients = without_autocast(backward, (given,) if state.consuming else given)
        if state.plan.grad_depends_on:
            gradients = without_unfed(gradients, state.plan.grad_depends_on, arrived)
    placed: list[Any] = [None] * state.plan.inputs
    for index, gradient in zip(state.plan.gradients, gradients, strict=True):
        placed[index] = gradient
    return placed


def without_unfed(gradients: Sequence[Any], fed: Sequence[int], arrived: int) -> list[Any]:
    """Gradients that depend on nothing but results nobody used are none at all: an optimizer skips those."""
    return [
        None if sources and not sources & arrived else gradient
        for gradient, sources in zip(gradients, fed, strict=True)
    ]


def results_of(values: Sequence[Any]) -> tuple[Any, ...]:
    """Values as a node may yield them: PyTorch would forbid writes to a view, as it does for those of a multi-output
    node, and a node has no two results that are one."""
    seen: set[int] = set()
    return tuple([BASE.detach(value) if value._is_view() or _again(value, seen) else value for value in values])


def _again(value: object, seen: set[int]) -> bool:
    if id(value) in seen:
        return True
    seen.add(id(value))
    return False
