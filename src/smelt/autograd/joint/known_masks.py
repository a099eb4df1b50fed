"""Masks of attention that follow from the program alone: attention without a mask, or causal attention, instead.

    mask = arange(512)[None] >= 0            all of it is kept         →   no mask
    mask = columns <= rows                   the lower triangle is     →   is_causal=True

Models make such masks where they may not look at data, as Hugging Face's do when they are compiled, though they would
find that none is needed. PyTorch's fused kernels refuse masks or are slower with them: what they make of no mask, or of
causal attention, is what eager runs. A mask that an input has a part in stays.
"""

import math
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from torch import fx
from torch.fx.node import map_arg
from torch.utils._python_dispatch import _disable_current_modes

from smelt.autograd.joint.functional_tensors import synced
from smelt.device.host_library import HOST
from smelt.ir.tensorspec import TensorSpec, spec_of
from smelt.meta.effects import effect_of
from smelt.symbolic.shapes import product

if TYPE_CHECKING:
    import torch
else:
    from smelt.base.torch_originals import pristine as torch

MAX_ELEMENTS = 1 << 27  # computed for a mask, without repetitions: some two hundred milliseconds
MAX_COMPARED_ELEMENTS = 1 << 18  # of a tensor in which repetitions are looked for
MAX_NODES = 200


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


aten = torch.ops.aten
_meanings: "WeakKeyDictionary[fx.Node, _Meaning]" = WeakKeyDictionary()


def _meaning(node: fx.Node) -> _Meaning:
    nodes = _made_of(node)
    if nodes is None:
        return _Meaning.OTHER
    beside_the_trace = torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize))
    with torch._C.DisableTorchFunction(), _disable_current_modes(), beside_the_trace, torch.no_grad():
        try:
            kept = _kept(_value(nodes))
        except _TooLarge:
            return _Meaning.OTHER
        if kept is None or kept.dim() < 2:
            return _Meaning.OTHER
        if bool(kept.all()):
            return _Meaning.NOTHING
        lower = torch.ones(kept.shape[-2:], dtype=torch.bool, device=HOST).tril()
        return _Meaning.CAUSAL if bool((kept == lower).all()) else _Meaning.OTHER


class _TooLarge(Exception):
    """A mask takes more than `MAX_ELEMENTS`."""


def _value(nodes: Sequence[fx.Node]) -> torch.Tensor:
    """What the last of some calls returns. Dimensions along which it repeats have size 1, but for the last two.

    Samples of a batch have equal masks, so values are computed once and expanded: a dimension with stride 0 repeats.
    """
    values: dict[fx.Node, Any] = {}
    left = MAX_ELEMENTS
    for node in nodes:
        args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
        kwargs = {name: HOST if name == "device" and each is not None else each for name, each in kwargs.items()}
        values[node] = _expanded(node, args, kwargs, left)
        left -= _distinct_count(values[node])
    mask: torch.Tensor = values[nodes[-1]]
    once: torch.Tensor = _once(mask, [dim for dim in range(-mask.dim(), -2) if not _varies(mask, dim)])
    return once


def _expanded(node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any], left: int) -> torch.Tensor:
    """The result of one call, which computes at most `left` elements."""
    operator: Any = node.target
    shape = spec_of(node).shape  # type: ignore[union-attr]
    if operator is aten.view.default:
        return args[0].reshape(args[1])  # type: ignore[no-any-return]
    if torch.Tag.pointwise in operator.tags:
        operands = [each for each in (*args, *kwargs.values()) if _is_tensor(each)]
        repeats = {dim for dim in range(-len(shape), 0) if not any(_varies(each, dim) for each in operands)}
        shape = tuple(size for dim, size in enumerate(shape, -len(shape)) if dim not in repeats)
        args = tuple(_once(each, repeats) for each in args)
        kwargs = {name: _once(each, repeats) for name, each in kwargs.items()}
    if not operator.is_view and product(shape) > left:
        raise _TooLarge
    result: torch.Tensor = operator(*args, **kwargs)
    return _repetitions_expanded(result).expand(spec_of(node).shape)  # type: ignore[union-attr]


def _once(value: Any, dims: Iterable[int]) -> Any:
    """A tensor with size 1 in dimensions, counted from the last, along which it repeats."""
    for dim in dims if _is_tensor(value) else ():
        if -dim <= value.dim() and value.shape[dim] > 1:
            value = value.narrow(dim, 0, 1)
    return value


def _varies(tensor: torch.Tensor, dim: int) -> bool:
    return -dim <= tensor.dim() and tensor.shape[dim] > 1 and tensor.stride(dim) != 0


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _repetitions_expanded(value: torch.Tensor) -> torch.Tensor:
    """The same, expanded from one element along dimensions in which all elements are equal."""
    if value.is_floating_point() or value.is_complex() or not 0 < _distinct_count(value) <= MAX_COMPARED_ELEMENTS:
        return value  # equal floating-point zeros may differ in sign
    for dim in range(value.dim()):
        first = value.narrow(dim, 0, 1)
        if _varies(value, dim - value.dim()) and bool((value == first).all()):
            value = first.expand(value.shape)
    return value


def _distinct_count(value: torch.Tensor) -> int:
    return product(tuple(size for size, stride in zip(value.shape, value.stride(), strict=True) if stride))


def _kept(mask: torch.Tensor) -> torch.Tensor | None:
    """What a mask leaves as it is; None if it is one that adds more than nothing and less than infinity somewhere."""
    if mask.dtype is torch.bool:
        return mask
    kept = mask == 0
    return kept if bool((kept | (mask == -math.inf)).all()) else None


def _made_of(last: fx.Node) -> list[fx.Node] | None:
    """The calls that one comes of, in order; None if there is something else among them, or too many."""
    calls: dict[fx.Node, None] = {}
    waiting = [last]
    while waiting:
        node = waiting.pop()
        if node in calls:
            continue
        spec = spec_of(node)
        if node.op != "call_function" or not isinstance(spec, TensorSpec):
            return None
        if effect_of(node.target, node.args, node.kwargs) is not None or node.target is aten.as_strided.default:
            return None
        if not all(type(size) is int for size in spec.shape):
            return None
        calls[node] = None
        if len(calls) > MAX_NODES:
            return None
        waiting += node.all_input_nodes
    order = {node: place for place, node in enumerate(last.graph.nodes)}
    return sorted(calls, key=order.__getitem__)
