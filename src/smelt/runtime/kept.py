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
from smelt.runtime.state import Differentiable

# Saved tensors with their versions, and the results whose backward has been.
Left = tuple[list[tuple[torch.Tensor, int]], int]


def save(ctx: Any, state: Differentiable, tensors: Sequence[torch.Tensor]) -> None:
    """Save tensors for the backward; where there may be several, with their versions."""
    ctx.save_for_backward(*tensors)
    if len(state.tangents) > 1:
        ctx.versions = [version_of(tensor) for tensor in tensors]


def saved_for(ctx: Any, state: Differentiable, arrived: int, whole: bool) -> tuple[Sequence[Any], bool]:
    """What was saved for the backward, and whether nobody may ask for it again. See `look`."""
    left: Left | None = ctx.__dict__.get("left")
    saved, spent = look(ctx, state, arrived, whole)
    if torch._C._autograd._get_current_graph_task_keep_graph():
        return saved, False
    return saved, spend(ctx, state, arrived, saved, left, spent)


def look(ctx: Any, state: Differentiable, arrived: int, whole: bool = False) -> tuple[Sequence[Any], int]:
    """What was saved for the backward, and which results are spent; it stays as it is.

    What was written since, so that PyTorch refuses to hand it out, may stand there if the backward for what arrived
    does not read it, unless the `whole` is needed.
    """
    left: Left | None = ctx.__dict__.get("left")
    if left:
        return from_left(left, arrived), left[1]
    try:
        return ctx.saved_tensors if state.kept else (), 0
    except RuntimeError as refused:
        if whole or "versions" not in ctx.__dict__ or "inplace operation" not in str(refused):
            raise
        return _but_for_written(ctx, state, arrived, refused), 0


def _but_for_written(ctx: Any, state: Differentiable, arrived: int, refused: RuntimeError) -> list[torch.Tensor]:
    graph = None if state.graphs is None else _native.suspended(state.graphs, arrived)
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
    for number, used in enumerate(state.plan.spends or (everything,)):
        spent |= used if arrived >> number & 1 else 0
    if spent != everything:
        ctx.left = ([(tensor, version_of(tensor)) for tensor in saved], spent)
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
