"""Indexing by tensors and masks: where the indexed dimensions go and how the result is laid out.

aten.index(f32[5, 6, 7], [None, i64[2, 1], i64[3]])   →   f32[5, 2, 3]
"""

from collections.abc import Sequence
from typing import Any

import torch

from smelt.ir.tensorspec import UnplacedSpec
from smelt.meta.rules.strides import broadcast, iterator_stride
from smelt.meta.rules.views import strides_of_view
from smelt.symbolic.shapes import contiguous_stride


def index_of(value: Any, indices: Sequence[Any]) -> Any:
    """By integers; masks need data. The result is computed like an element-wise operator's, repeated where indexed."""
    rank = value.dim()
    index_of_dim = [*indices, *[None] * (rank - len(indices))]
    places = [dim for dim, index in enumerate(index_of_dim) if index is not None]
    chosen = [index_of_dim[dim] for dim in places]
    if len(index_of_dim) != rank or not chosen or any(each.dtype not in (torch.int64, torch.int32) for each in chosen):
        return NotImplemented
    if 0 in value.shape or any(0 in each.shape or each.device != value.device for each in chosen):
        return NotImplemented
    taken = broadcast([tuple(each.shape) for each in chosen])
    if taken is None:
        return NotImplemented
    together = places == list(range(places[0], places[-1] + 1))
    before = list(range(places[0])) if together else []
    after = [dim for dim in range(rank) if dim not in places and dim not in before]
    shape = (*(value.shape[dim] for dim in before), *taken, *(value.shape[dim] for dim in after))
    steps = (*(value.stride(dim) for dim in before), *[0] * len(taken), *(value.stride(dim) for dim in after))
    layouts = [(shape, steps)]
    for each in chosen:
        ones = (*[1] * len(before), *taken, *[1] * len(after))
        spread = strides_of_view(taken, _expanded(each, taken), ones) or contiguous_stride(ones)
        layouts.append((ones, tuple(spread)))
    stride = iterator_stride(shape, layouts)
    if 1 in shape and stride != contiguous_stride(shape):
        return NotImplemented  # where dimensions change places, PyTorch is asked about the stride of single elements
    return UnplacedSpec(shape, stride, value.dtype)


def _expanded(value: Any, shape: Sequence[Any]) -> tuple[Any, ...]:
    """The stride of `value.expand(shape)`, computed without calling it, which would make PyTorch load heavy modules."""
    new = len(shape) - value.dim()
    own = zip(value.shape, value.stride(), shape[new:], strict=True)
    return (*[0] * new, *(0 if size == 1 and wanted != 1 else step for size, step, wanted in own))


def _masked_scatter(value: Any, mask: Any, source: Any) -> Any:
    """A contiguous copy of the broadcast shape, whatever the mask selects."""
    shape = broadcast((tuple(value.shape), tuple(mask.shape)))
    if shape is None or mask.dtype is not torch.bool or value.dtype is not source.dtype:
        return NotImplemented
    return UnplacedSpec(tuple(shape), contiguous_stride(shape), value.dtype)


RULES: dict[str, Any] = {
    "index.Tensor": index_of,
    "_unsafe_index.Tensor": index_of,
    "masked_scatter.default": _masked_scatter,
}
