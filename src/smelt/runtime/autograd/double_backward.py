"""Double backward: the inputs of a compiled graph, tracked to recompute its results differentiably.

    track(state, inputs)   as the forward runs   →   references to inputs that are not saved
    differentiable_backward(state, inputs, …)    →   gradients that PyTorch can differentiate

A compiled backward has no derivative. Under `create_graph=True`, and for batched tangents (`is_grads_batched`), the
results are recomputed from the inputs, differentiably and with the same random numbers, and PyTorch differentiates
that.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt import _native
from smelt.base.coexist import leave_alone
from smelt.base.errors import SmeltError
from smelt.base.torch_originals import BASE
from smelt.device.random_state import Saved
from smelt.device.random_state import restore as restore_random
from smelt.device.random_state import save as save_random
from smelt.runtime.autograd.differentiable import Differentiable
from smelt.runtime.autograd.saved_tensors import raise_freed, version_of

# An input that is not saved: the tensor or a function that returns it, its version, and its layout if only that is
# needed and the tensor may have been freed.
UnsavedInput = tuple[Any, int, Any]


def track(state: Differentiable, inputs: Sequence[Any]) -> list[UnsavedInput]:
    """References to the inputs that are not saved, for double backward.

    Leaves that accumulate gradients outlive the graph, and data belongs to the caller. A tensor that another part of
    the program computed may have no other owner: it is kept alive if gradients depend on its value.
    """
    unsaved: list[UnsavedInput] = []
    for index, wanted, needed in state.tracked:
        tensor = inputs[index]
        if not needed:
            layout = (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
            unsaved.append((weakref.ref(tensor), 0, layout))
        elif tensor.is_leaf:
            unsaved.append((tensor if wanted else weakref.ref(tensor), version_of(tensor), None))
        else:
            with torch.enable_grad():
                unsaved.append((_alias_with_history(tensor), tensor._version, None))
    return unsaved


def _dereferenced(reference: Callable[[], Any]) -> torch.Tensor | None:
    """The target of a weak reference. A tensor that only C++ holds must be told that Python refers to it again."""
    tensor: torch.Tensor | None = reference()
    if tensor is not None:
        tensor._fix_weakref()  # type: ignore[attr-defined]
    return tensor


def unsaved_leaves(ctx: Any, state: Differentiable) -> list[UnsavedInput]:
    """Untracked inputs: each is a leaf, and its `AccumulateGrad` node holds it."""
    nodes = state.back(ctx.next_functions)
    return [(nodes[index][0].variable, 0, None) for index, _, _ in state.tracked]


def drop_unsaved(unsaved: list[UnsavedInput]) -> None:
    """The graph is not retained: release non-leaf inputs."""
    for place, (tensor, version, layout) in enumerate(unsaved):
        if isinstance(tensor, torch.Tensor) and not tensor.is_leaf:
            unsaved[place] = (raise_freed, version, layout)


@leave_alone
class _AliasNode(torch.autograd.Function):
    """An alias with the same history. Not the tensor itself: an in-place write could make its history lead here, and a
    reference cycle is never freed."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return BASE.detach(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient


_alias_with_history: Callable[..., Any] = super(torch.autograd.Function, _AliasNode).apply


def saved_inputs(state: Differentiable, saved: Sequence[Any], unsaved: Sequence[UnsavedInput]) -> list[torch.Tensor]:
    """All inputs of the forward, saved and tracked. Where nothing depends on the value of an input, zeros will do."""
    inputs: list[Any] = [None] * state.plan.inputs
    for (is_input, index), tensor in zip(state.saved_from, saved, strict=True):
        if is_input:
            inputs[index] = tensor
    for (index, _, needed), (held, version, layout) in zip(state.tracked, unsaved, strict=True):
        tensor = held if isinstance(held, torch.Tensor) else _dereferenced(held)
        if tensor is None and layout is not None:
            shape, stride, dtype, device = layout
            tensor = torch.empty_strided(shape, stride, dtype=dtype, device=device).zero_()
            tensor.requires_grad_(index in state.wanted)
        if tensor is None:
            raise SmeltError(
                "SM040",
                f"input {index} of the compiled graph was freed, and create_graph=True needs it",
                hint="keep a reference to it until the backward has run",
            )
        if needed and version_of(tensor) != version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"input {index} of the compiled graph, needed for create_graph=True, is at version "
                f"{tensor._version}; expected version {version} instead."
            )
        inputs[index] = tensor
    return inputs


def needs_double_backward(tangents: Sequence[Any]) -> bool:
    """Whether a backward is differentiated itself, or its tangents are batched (`is_grads_batched`) or of a tensor
    subclass with `__torch_dispatch__`, which may have no memory."""
    if torch.is_grad_enabled() or torch._C._are_functorch_transforms_active():
        return True
    arrived = [tangent for tangent in tangents if tangent is not None]
    return any(is_batched(tangent) or _has_torch_dispatch(type(tangent)) for tangent in arrived)


def _has_torch_dispatch(kind: type[torch.Tensor]) -> bool:
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return False
    rules: Any = kind.__torch_dispatch__
    return rules is not torch._C._disabled_torch_dispatch_impl


# Whether a tensor is a batch that `is_grads_batched` made.
is_batched: Callable[[Any], bool] = torch._C._functorch.is_legacy_batchedtensor


def differentiable_backward(
    state: Differentiable, inputs: Sequence[torch.Tensor], random: Saved | None, tangents: Sequence[Any]
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
            restore_random(random)  # draw the same random numbers
        # Aliases: hooks on the inputs must fire once, when the engine accumulates these gradients.
        alike = [BASE.view_as(tensor, tensor) if tensor.requires_grad else tensor for tensor in inputs]
        written = state.plan.mutated_inputs
        replay_inputs = [BASE.clone(tensor) if index in written else tensor for index, tensor in enumerate(alike)]
        return alike, replay(replay_inputs)

    replay, records = state.replay, torch.is_grad_enabled()
    now = None if random is None else save_random(state.plan.random)

    def restore() -> None:
        torch._C._set_grad_enabled(records)
        if now is not None:
            restore_random(now)

    inputs, results = _native.undoing(restore, replayed)
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
