"""The inputs of a compiled graph once more: for a backward that is differentiated itself, or for many tangents at once.

    track(state, inputs)   as the forward runs   →   what is noted of inputs that are not saved
    differentiable_backward(state, inputs, …)    →   gradients that PyTorch can differentiate

Nobody has the derivative of a compiled backward. So the results are computed again from the inputs, differentiably and
with the same random numbers, and PyTorch differentiates that.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt import _native
from smelt.base.coexist import leave_alone
from smelt.base.errors import SmeltError
from smelt.base.torch_originals import BASE
from smelt.runtime.autograd.differentiable import Differentiable
from smelt.runtime.autograd.saved_tensors import gone, version_of

# An input that is not saved: itself or a way to have it again, its version, its layout if no more of it is needed and
# it may be gone by then.
Other = tuple[Any, int, Any]


def track(state: Differentiable, inputs: Sequence[Any]) -> list[Other]:
    """What is not saved, should it be wanted again.

    Leaves that gradients accumulate in outlive the graph anyway, and data is its owner's. What another part of the
    program computed, another compiled graph say, nobody else may have: it is kept if gradients depend on it.
    """
    others: list[Other] = []
    for index, wanted, needed in state.tracked:
        tensor = inputs[index]
        if not needed:
            layout = (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
            others.append((weakref.ref(tensor), 0, layout))
        elif tensor.is_leaf:
            others.append((tensor if wanted else weakref.ref(tensor), version_of(tensor), None))
        else:
            with torch.enable_grad():
                others.append((_hold(tensor), tensor._version, None))
    return others


def _still_there(reference: Callable[[], Any]) -> torch.Tensor | None:
    """What a weak reference leads to. PyTorch keeps a tensor that only its own side holds, and is to be told if Python
    has found it again."""
    tensor: torch.Tensor | None = reference()
    if tensor is not None:
        tensor._fix_weakref()  # type: ignore[attr-defined]
    return tensor


def leaves(ctx: Any, state: Differentiable) -> list[Other]:
    """Inputs that nothing was noted of: gradients accumulate in each, and the node that does so has it."""
    nodes = state.back(ctx.next_functions)
    return [(nodes[index][0].variable, 0, None) for index, _, _ in state.tracked]


def let_go(others: list[Other]) -> None:
    """The graph is not retained: nothing that was computed is kept beyond this backward."""
    for place, (kept, version, layout) in enumerate(others):
        if isinstance(kept, torch.Tensor) and not kept.is_leaf:
            others[place] = (gone, version, layout)


@leave_alone
class _Holding(torch.autograd.Function):
    """The same memory with the same past. Not the tensor itself: should that be written, its history may come to lead
    here, and what is in a circle is never freed."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return BASE.detach(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient


_hold: Callable[..., Any] = super(torch.autograd.Function, _Holding).apply


def saved_inputs(state: Differentiable, saved: Sequence[Any], others: Sequence[Other]) -> list[torch.Tensor]:
    """All inputs of the forward: those saved, and those it only kept track of. Where nothing depends on what an
    input was, any tensor will do."""
    inputs: list[Any] = [None] * state.plan.inputs
    for (is_input, index), tensor in zip(state.kept, saved, strict=True):
        if is_input:
            inputs[index] = tensor
    for (index, _, needed), (other, version, layout) in zip(state.tracked, others, strict=True):
        tensor = other if isinstance(other, torch.Tensor) else _still_there(other)
        if tensor is None and layout is not None:
            shape, stride, dtype, device = layout
            tensor = torch.empty_strided(shape, stride, dtype=dtype, device=device).zero_()
            tensor.requires_grad_(index in state.wanted)
        if tensor is None:
            raise SmeltError(
                "SM040",
                f"input {index} of the compiled graph is gone, and create_graph=True needs it again",
                hint="keep a reference to it until the backward has run",
            )
        if needed and version_of(tensor) != version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"input {index} of the compiled graph, needed again for create_graph=True, is at version "
                f"{tensor._version}; expected version {version} instead."
            )
        inputs[index] = tensor
    return inputs


def needs_double_backward(tangents: Sequence[Any]) -> bool:
    """Whether a backward is differentiated itself, or computed for many tangents at once (`is_grads_batched`), or for
    tangents of a kind with rules of its own, which may have no memory."""
    if torch.is_grad_enabled() or torch._C._are_functorch_transforms_active():
        return True
    return any(tangent is not None and (is_batched(tangent) or _has_rules(type(tangent))) for tangent in tangents)


def _has_rules(kind: type[torch.Tensor]) -> bool:
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return False
    rules: Any = kind.__torch_dispatch__
    return rules is not torch._C._disabled_torch_dispatch_impl


# Whether a tensor is one of those that `is_grads_batched` makes.
is_batched: Callable[[Any], bool] = torch._C._functorch.is_legacy_batchedtensor


def differentiable_backward(
    state: Differentiable, inputs: Sequence[torch.Tensor], random: torch.Tensor | None, tangents: Sequence[Any]
) -> Sequence[Any]:
    if isinstance(state.replay, str):
        raise SmeltError(
            "SM040",
            f"create_graph=True through a compiled graph: {state.replay}",
            hint="call this part under smelt.disable to differentiate it twice",
        )
    def replayed() -> tuple[Sequence[torch.Tensor], Sequence[Any]]:
        torch._C._set_grad_enabled(True)
        if random is not None:
            torch.set_rng_state(random)  # the random numbers that followed it are drawn again
        # Aliases: hooks on the inputs themselves must fire once, when the engine delivers these gradients.
        alike = [BASE.view_as(tensor, tensor) if tensor.requires_grad else tensor for tensor in inputs]
        written = state.plan.mutated_inputs
        given = [BASE.clone(tensor) if index in written else tensor for index, tensor in enumerate(alike)]
        return alike, replay(given)

    replay, records = state.replay, torch.is_grad_enabled()
    now = None if random is None else torch.get_rng_state()

    def put_back() -> None:
        torch._C._set_grad_enabled(records)
        if now is not None:
            torch.set_rng_state(now)

    inputs, results = _native.undoing(put_back, replayed)
    if not state.plan.gradients:
        return ()
    pairs = [(result, tangent) for result, tangent in zip(results, tangents, strict=True) if tangent is not None]
    return torch.autograd.grad(
        [result for result, _ in pairs],
        [inputs[index] for index in state.plan.gradients],
        [tangent for _, tangent in pairs],
        create_graph=torch.is_grad_enabled(),
        allow_unused=True,
    )
