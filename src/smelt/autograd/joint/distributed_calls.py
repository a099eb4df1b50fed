"""Calls on `DTensor`s in a trace: below functionalization, with their own derivatives.

    linear(x_local, w_local)       forward   mm = mm(x, w); all_reduce = …; wait_tensor = …
                                   backward  what PyTorch derives of the call on `DTensor`s, placements included

A `DTensor` runs its operators on local tensors where functionalization no longer sees them. So the call is run on the
fake tensors that functional tensors stand for, and autograd has one node for it, which differentiates the
call on fake tensors.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from smelt.base.coexist import leave_alone
from smelt.ir.nodes.distributed import DistributedCall
from smelt.meta.effects import is_view
from smelt.meta.fake_tensor import FakeTensor

Unwrap = Callable[[torch.Tensor], FakeTensor]
Wrap = Callable[[FakeTensor], torch.Tensor]


def traced_call(call: DistributedCall, operands: tuple[Any, ...], unwrap: Unwrap, wrap: Wrap) -> tuple[Any, ...]:
    """What a call returns of functional tensors; `unwrap` and `wrap` lead to fake tensors and back."""
    needs_grad = torch.is_grad_enabled() and any(getattr(each, "requires_grad", False) for each in operands)
    results: tuple[Any, ...] = _run_on_fakes(call, unwrap, wrap, needs_grad, *operands)
    return results


@leave_alone
class _CallNode(torch.autograd.Function):
    """The call as one node of autograd's."""

    @staticmethod
    def forward(ctx: Any, call: DistributedCall, unwrap: Unwrap, wrap: Wrap, needs_grad: bool, *operands: Any) -> Any:
        fakes = [unwrap(each) if isinstance(each, torch.Tensor) else each for each in operands]
        wanted = ctx.needs_input_grad[4:]
        with _below_functionalization(), torch.set_grad_enabled(needs_grad):
            inputs = [
                each.detach().requires_grad_(needed) if isinstance(each, torch.Tensor) else each
                for each, needed in zip(fakes, wanted, strict=True)
            ]
            outputs = call(*inputs)
        ctx.set_materialize_grads(False)
        ctx.inputs, ctx.outputs, ctx.unwrap, ctx.wrap = inputs, outputs, unwrap, wrap
        results = [_shown(each, fakes, operands, wrap) for each in outputs]
        ctx.mark_non_differentiable(*(shown for shown, x in zip(results, outputs, strict=True) if not x.requires_grad))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> Any:
        leaves = [each for each in ctx.inputs if isinstance(each, torch.Tensor) and each.requires_grad]
        fakes = [None if each is None else ctx.unwrap(each) for each in tangents]
        pairs = [(each, fake) for each, fake in zip(ctx.outputs, fakes, strict=True) if fake is not None]
        with _below_functionalization():
            results, cotangents = [each for each, _ in pairs], [fake for _, fake in pairs]
            remaining = iter(torch.autograd.grad(results, leaves, cotangents, retain_graph=True, allow_unused=True))
        gradients = []
        for each in ctx.inputs:
            gradient = next(remaining) if isinstance(each, torch.Tensor) and each.requires_grad else None
            gradients.append(None if gradient is None else ctx.wrap(gradient.detach()))
        return (None, None, None, None, *gradients)


_run_on_fakes: Callable[..., Any] = super(torch.autograd.Function, _CallNode).apply


def _below_functionalization() -> Any:
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize))


def _shown(result: Any, fakes: list[Any], operands: tuple[Any, ...], wrap: Wrap) -> torch.Tensor:
    """The functional tensor of a result; where it is an operand's memory, the same view of the operand."""
    bare: FakeTensor = result.detach()
    places = {fake.node: operand for fake, operand in zip(fakes, operands, strict=True) if _is_fake(fake)}
    views: list[fx.Node] = []
    node = bare.node
    while node is not None and node not in places and is_view(node.target) and isinstance(node.args[0], fx.Node):
        views.append(node)
        node = node.args[0]
    if node not in places:
        return wrap(bare)
    shown: torch.Tensor = places[node].view_as(places[node])
    for view in reversed(views):
        shown = view.target(shown, *view.args[1:], **view.kwargs)  # type: ignore[operator]
    return shown


def _is_fake(value: Any) -> bool:
    return isinstance(value, FakeTensor)
