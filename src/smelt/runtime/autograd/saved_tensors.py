"""What a compiled graph's node has saved for its backward, and which results may still ask for it.

    saved_for(ctx, state, 0b01)   →   the saved tensors; without `retain_graph` they are then spent for the first result

PyTorch frees all that a node saved when a backward that does not retain the graph has passed it. In eager the graph is
many nodes, and results that share none that saves anything have a backward each: it is kept for those.
"""

from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from smelt import _native
from smelt.ir.graph import placeholders
from smelt.runtime.autograd.differentiable import Differentiable
from smelt.runtime.autograd.layout_fit import fit

Saved = Sequence[torch.Tensor]
# Saved tensors with their versions, and the results whose backward has been.
Left = tuple[list[tuple[torch.Tensor, int]], int]


def save(ctx: Any, state: Differentiable, tensors: list[torch.Tensor], hooked: bool = False) -> None:
    """Save tensors for the backward; where there may be several, with their versions. PyTorch notes writes to them, but
    not that one is given other memory, unless hooks decide what comes back."""
    ctx.save_for_backward(*tensors)
    ctx.memory = None if hooked else _native.storages(tensors)
    if len(state.tangents) > 1:
        ctx.versions = [version_of(tensor) for tensor in tensors]


def saved_for(ctx: Any, state: Differentiable, arrived: int, whole: bool) -> tuple[Saved, bool]:
    """What was saved for the backward, and whether nobody may ask for it again. See `look`."""
    left: Left | None = ctx.__dict__.get("left")
    saved, spent = look(ctx, state, arrived, whole)
    if torch._C._autograd._get_current_graph_task_keep_graph():
        return saved, False
    return saved, spend(ctx, state, arrived, saved, left, spent)


def look(ctx: Any, state: Differentiable, arrived: int, whole: bool = False) -> tuple[Saved, int]:
    """What was saved for the backward, and which results are spent; it stays as it is.

    What was written since, so that PyTorch refuses to hand it out, may stand there if the backward for what arrived
    does not read it, unless the `whole` is needed.
    """
    left: Left | None = ctx.__dict__.get("left")
    if left or not state.kept:
        saved, spent = (from_left(left, arrived), left[1]) if left else ((), 0)
    else:
        saved, spent = _unless_written(ctx, state, arrived, whole), 0
    memory: bytes | None = ctx.__dict__.get("memory")
    if saved and memory is not None and memory != _native.storages(list(saved)):
        saved = _elsewhere(ctx, state, saved, memory)
    return saved, spent


def _unless_written(ctx: Any, state: Differentiable, arrived: int, whole: bool) -> Saved:
    try:
        saved: Saved = ctx.saved_tensors
        return saved
    except RuntimeError as refused:
        if whole or "versions" not in ctx.__dict__ or "inplace operation" not in str(refused):
            raise
        return _but_for_written(ctx, state, arrived, refused)


def _elsewhere(ctx: Any, state: Differentiable, saved: Saved, memory: bytes) -> Saved:
    """Saved tensors that do not lie where they did: brought from elsewhere by a hook on one of them alone. Or the
    program has given an input other memory, and what the forward has computed with is lost."""
    found, width = list(saved), len(memory) // len(saved)
    now = _native.storages(found) or b""
    for place, (tensor, specs) in enumerate(zip(saved, state.plan.saved, strict=False)):
        at = slice(place * width, (place + 1) * width)
        if memory[at] == now[at]:
            continue
        if "left" in ctx.__dict__ or getattr(ctx._raw_saved_tensors[place], "unpack_hook", None) is None:
            raise RuntimeError(
                "one of the variables needed for gradient computation was given other memory (by `.data = …` or "
                f"`set_`) since the forward: a tensor of shape {tuple(specs.spec.shape)} that a compiled graph was "
                "called with. Give it its new values by `copy_`, or after the backward."
            )
        found[place] = fit(tensor, specs.spec)
    return found


def _but_for_written(ctx: Any, state: Differentiable, arrived: int, refused: RuntimeError) -> list[torch.Tensor]:
    graph = None if state.graphs is None else _native.aside(state.graphs, arrived)
    if graph is None:
        raise refused
    read = [bool(node.users) for node in placeholders(graph.graph)]
    tensors = [saved.data for saved in ctx._raw_saved_tensors]
    for place, (tensor, version) in enumerate(zip(tensors, ctx.versions, strict=True)):
        recalled = place >= len(state.plan.saved)  # for derivatives of higher order alone
        if tensor is None or (version_of(tensor) != version and not recalled and read[place]):
            raise refused
    return tensors


def spend(
    ctx: Any, state: Differentiable, arrived: int, saved: Sequence[Any], left: Left | None, spent: int
) -> bool:
    """Note that a backward has been that does not retain the graph; whether nobody may ask for what was saved again."""
    everything = (1 << len(state.tangents)) - 1
    for number, used in enumerate(state.plan.frees_saved_of or (everything,)):
        spent |= used if arrived >> number & 1 else 0
    if spent != everything:
        ctx.left = ([(tensor, version_of(tensor)) for tensor in saved], spent)
        if ctx.__dict__.get("memory") is not None:
            ctx.memory = _native.storages(list(saved))
    elif left:
        ctx.left = ([], spent)
    return spent == everything


def from_left(left: Left, arrived: int) -> Sequence[Any]:
    """What an earlier backward left."""
    tensors, spent = left
    if spent & arrived:
        gone()
    if any(version_of(tensor) != version for tensor, version in tensors):
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation "
            "since the first backward through the graph"
        )
    return [tensor for tensor, _ in tensors]


def version_of(tensor: torch.Tensor) -> int:
    """Tensors of inference mode have none."""
    return -1 if tensor.is_inference() else tensor._version


def gone() -> NoReturn:
    raise RuntimeError(  # in the words in which PyTorch says it
        "Trying to backward through the graph a second time (or directly access saved tensors after they have already "
        "been freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). "
        "Specify retain_graph=True if you need to backward through the graph a second time or if you need to access "
        "saved tensors after calling backward."
    )
