"""Tensors that a compiled graph's node saved for its backward, and which results may still use them.

    saved_for(ctx, state, 0b01)   →   the saved tensors; without `retain_graph` they are then freed for the first result

PyTorch frees what a node saved after a backward that does not retain the graph. In eager the graph is many nodes, and
results that share no saving node have a backward each: saved tensors are kept for those.
"""

from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from smelt import _native
from smelt.ir.graph import placeholders
from smelt.ir.tensorspec import TensorSpec
from smelt.runtime.autograd.differentiable import Differentiable
from smelt.runtime.autograd.layout_fit import fit
from smelt.runtime.overlap import storages

Saved = Sequence[torch.Tensor]
# Saved tensors with their versions, and the results (a bit each) whose backward has freed them.
RemainingSaved = tuple[list[tuple[torch.Tensor, int]], int]


def save(ctx: Any, state: Differentiable, tensors: list[torch.Tensor], hooked: bool = False) -> None:
    """Save tensors for the backward; with their versions if there may be several backwards. PyTorch detects in-place
    writes to them, but not a new storage (`.data = …`), so storages are noted too, unless saved-tensor hooks are on."""
    ctx.save_for_backward(*tensors)
    ctx.memory = None if hooked else storages(tensors)
    ctx.parameters = [
        (place, tensor.untyped_storage(), tensor.storage_offset())
        for place, tensor in enumerate(tensors)
        if type(tensor) is torch.nn.Parameter
    ]
    if len(state.tangents) > 1:
        ctx.versions = [version_of(tensor) for tensor in tensors]


def saved_for(ctx: Any, state: Differentiable, arrived: int, needs_all: bool) -> tuple[Saved, bool]:
    """The saved tensors, and whether this backward freed them for all results. See `peek_saved`."""
    remaining: RemainingSaved | None = ctx.__dict__.get("remaining")
    saved, freed = peek_saved(ctx, state, arrived, needs_all)
    if torch._C._autograd._get_current_graph_task_keep_graph():
        return saved, False
    return saved, release_saved(ctx, state, arrived, saved, remaining, freed)


def peek_saved(ctx: Any, state: Differentiable, arrived: int, needs_all: bool = False) -> tuple[Saved, int]:
    """The saved tensors, and the results they are freed for; frees nothing.

    A tensor that was modified in-place since is an error only if the backward for `arrived` reads it, or if it
    `needs_all`.
    """
    remaining: RemainingSaved | None = ctx.__dict__.get("remaining")
    if remaining or not state.saved_from:
        saved, freed = (from_remaining(remaining, arrived), remaining[1]) if remaining else ((), 0)
    else:
        saved, freed = _saved_unless_mutated(ctx, state, arrived, needs_all), 0
    memory: bytes | None = ctx.__dict__.get("memory")
    if saved and memory is not None and memory != storages(list(saved)):
        saved = _check_storages(ctx, state, saved, memory)
    return saved, freed


def _saved_unless_mutated(ctx: Any, state: Differentiable, arrived: int, needs_all: bool) -> Saved:
    try:
        saved: Saved = ctx.saved_tensors
        return saved
    except RuntimeError as refused:
        if needs_all or "versions" not in ctx.__dict__ or "inplace operation" not in str(refused):
            raise
        return _saved_except_mutated(ctx, state, arrived, refused)


def _check_storages(ctx: Any, state: Differentiable, saved: Saved, memory: bytes) -> Saved:
    """Saved tensors whose storage changed: a hook on that tensor returned a copy, which is fitted; or a parameter was
    released and gathered again, with the same values. Otherwise the program gave an input a new storage, and the values
    that the forward used are lost: an error."""
    fitted, width = list(saved), len(memory) // len(saved)
    now = storages(fitted)
    parameters = {place: before for place, *before in ctx.__dict__.get("parameters", ())}
    for place, (tensor, specs) in enumerate(zip(saved, state.plan.saved, strict=False)):
        at = slice(place * width, (place + 1) * width)
        if memory[at] == now[at] or (place in parameters and _has_values(tensor, specs.spec, *parameters[place])):
            continue
        if "remaining" in ctx.__dict__ or getattr(ctx._raw_saved_tensors[place], "unpack_hook", None) is None:
            raise RuntimeError(
                "one of the variables needed for gradient computation was given a new storage (by `.data = …` or "
                f"`set_`) since the forward: a tensor of shape {tuple(specs.spec.shape)}, an input of a compiled "
                "graph. Use `copy_` to change its values, or change them after the backward."
            )
        fitted[place] = fit(tensor, specs.spec)
    return fitted


def _has_values(tensor: torch.Tensor, spec: TensorSpec, storage: torch.UntypedStorage, offset: int) -> bool:
    """Whether a parameter is laid out as the forward had it, and holds what is in the storage that it had."""
    layout = tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device
    if spec.varies or layout != (spec.shape, spec.stride, spec.dtype, spec.device) or not tensor.numel():
        return False
    last = sum((size - 1) * stride for size, stride in zip(*layout[:2], strict=True))
    if last >= storage.nbytes() // tensor.itemsize - offset:
        return False
    before = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    before.set_(storage, offset, tensor.shape, tensor.stride())
    return torch.allclose(before, tensor.detach(), rtol=0, atol=0, equal_nan=True)


def _saved_except_mutated(ctx: Any, state: Differentiable, arrived: int, refused: RuntimeError) -> list[torch.Tensor]:
    graph = None if state.graphs is None else _native.aside(state.graphs, arrived)
    if graph is None:
        raise refused
    read = [bool(node.users) for node in placeholders(graph.graph)]
    tensors = [saved.data for saved in ctx._raw_saved_tensors]
    for place, (tensor, version) in enumerate(zip(tensors, ctx.versions, strict=True)):
        is_old_value = place >= len(state.plan.saved)  # for double backward only
        if tensor is None or (version_of(tensor) != version and not is_old_value and read[place]):
            raise refused
    return tensors


def release_saved(
    ctx: Any, state: Differentiable, arrived: int, saved: Sequence[Any], remaining: RemainingSaved | None, freed: int
) -> bool:
    """Free saved tensors after a backward that does not retain the graph; whether they are freed for all results."""
    everything = (1 << len(state.tangents)) - 1
    for number, used in enumerate(state.plan.frees_saved_of or (everything,)):
        freed |= used if arrived >> number & 1 else 0
    if freed != everything:
        ctx.remaining = ([(tensor, version_of(tensor)) for tensor in saved], freed)
        if ctx.__dict__.get("memory") is not None:
            ctx.memory = storages(list(saved))
    elif remaining:
        ctx.remaining = ([], freed)
    return freed == everything


def from_remaining(remaining: RemainingSaved, arrived: int) -> Sequence[Any]:
    """The saved tensors that an earlier backward kept for other results."""
    tensors, freed = remaining
    if freed & arrived:
        raise_freed()
    if any(version_of(tensor) != version for tensor, version in tensors):
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation "
            "since the first backward through the graph"
        )
    return [tensor for tensor, _ in tensors]


def version_of(tensor: torch.Tensor) -> int:
    """A tensor's version counter; -1 for inference tensors, which have none."""
    return -1 if tensor.is_inference() else tensor._version


def raise_freed() -> NoReturn:
    """Raise PyTorch's error for a second backward through a freed graph."""
    raise RuntimeError(
        "Trying to backward through the graph a second time (or directly access saved tensors after they have already "
        "been freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). "
        "Specify retain_graph=True if you need to backward through the graph a second time or if you need to access "
        "saved tensors after calling backward."
    )
