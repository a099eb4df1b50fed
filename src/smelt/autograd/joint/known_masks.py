"""Masks of attention that follow from the program alone: attention without a mask, or causal attention, instead.

    mask = arange(512)[None] >= 0            all of it is kept         →   no mask
    mask = columns <= rows                   the lower triangle is     →   is_causal=True

Models make such masks where they may not look at data, as Hugging Face's do when they are compiled, though they would
find that none is needed. PyTorch's fused kernels refuse masks or are slower with them: what they make of no mask, or of
causal attention, is what eager runs. A mask that an input has a part in stays.
"""

import math
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from torch import fx
from torch.fx.node import map_arg
from torch.utils._python_dispatch import _disable_current_modes

from smelt.autograd.joint.functional_trace import synced
from smelt.device.host_library import HOST
from smelt.ir.tensorspec import TensorSpec, spec_of
from smelt.meta.effects import effect_of
from smelt.symbolic.shapes import product

if TYPE_CHECKING:
    import torch
else:
    from smelt.base.torch_originals import pristine as torch

_MOST_ELEMENTS = 1 << 24  # of a mask and all it is made of: some thirty milliseconds
_MOST_NODES = 200


def without_known_mask(query: Any, key: Any, mask: Any, causal: bool) -> tuple[Any, bool]:
    """The mask and whether attention is causal, as given or without a mask that says no more."""
    if causal or not isinstance(mask, torch.Tensor) or mask.requires_grad or not torch._is_functional_tensor(mask):
        return mask, causal
    node = synced(mask).node
    if node is None:
        return mask, causal
    if node not in _meanings:  # layers share a mask
        _meanings[node] = _meaning(node)
    meaning = _meanings[node]
    square = query.shape[-2] == key.shape[-2] == mask.shape[-1] == mask.shape[-2]
    if meaning is _Meaning.NOTHING or (meaning is _Meaning.CAUSAL and square):
        return None, meaning is _Meaning.CAUSAL
    return mask, causal


class _Meaning(Enum):
    """What a mask says."""

    NOTHING = "all is kept"
    CAUSAL = "the lower triangle is kept"
    OTHER = "something else, or it is not known"


_meanings: "WeakKeyDictionary[fx.Node, _Meaning]" = WeakKeyDictionary()


def _meaning(node: fx.Node) -> _Meaning:
    nodes = _made_of(node)
    if nodes is None:
        return _Meaning.OTHER
    beside_the_trace = torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize))
    with torch._C.DisableTorchFunction(), _disable_current_modes(), beside_the_trace, torch.no_grad():
        kept = _kept(_value(nodes))
        if kept is None or kept.dim() < 2:
            return _Meaning.OTHER
        if bool(kept.all()):
            return _Meaning.NOTHING
        lower = torch.ones(kept.shape[-2:], dtype=torch.bool, device=HOST).tril()
        return _Meaning.CAUSAL if bool((kept == lower).all()) else _Meaning.OTHER


def _value(nodes: Sequence[fx.Node]) -> torch.Tensor:
    """What the last of some calls returns."""
    values: dict[fx.Node, Any] = {}
    for node in nodes:
        args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
        kwargs = {name: HOST if name == "device" and each is not None else each for name, each in kwargs.items()}
        values[node] = node.target(*args, **kwargs)  # type: ignore[operator]
    mask: torch.Tensor = values[nodes[-1]]
    return mask


def _kept(mask: torch.Tensor) -> torch.Tensor | None:
    """What a mask leaves as it is; None if it is one that adds more than nothing and less than infinity somewhere."""
    if mask.dtype is torch.bool:
        return mask
    kept = mask == 0
    return kept if bool((kept | (mask == -math.inf)).all()) else None


def _made_of(last: fx.Node) -> list[fx.Node] | None:
    """The calls that one comes of, in order; None if there is something else among them, or too much of it."""
    calls: dict[fx.Node, None] = {}
    elements = 0
    waiting = [last]
    while waiting:
        node = waiting.pop()
        if node in calls:
            continue
        spec = spec_of(node)
        if node.op != "call_function" or not isinstance(spec, TensorSpec):
            return None
        if effect_of(node.target, node.args, node.kwargs) is not None:
            return None
        if not all(type(size) is int for size in spec.shape):
            return None
        elements += product(spec.shape)
        calls[node] = None
        if elements > _MOST_ELEMENTS or len(calls) > _MOST_NODES:
            return None
        waiting += node.all_input_nodes
    order = {node: place for place, node in enumerate(last.graph.nodes)}
    return sorted(calls, key=order.__getitem__)
