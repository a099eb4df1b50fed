"""Results of operators whose sizes only data tell, with a new symbol for each such size.

    nonzero(mask: bool[8, 4])      →   i64[u0, 2]
    unique(x), with counts         →   f32[u0], i64[u0]

Operators of libraries say which sizes are so where they describe their results (`torch.library.register_fake`): they
ask for a new size, which they are given here.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._library import fake_impl
from torch._library.simple_registry import singleton

from smelt.ir.tensorspec import TensorSpec
from smelt.meta.devices import result_device
from smelt.meta.fake_tensor import FakeTensor, running_plainly, to_meta
from smelt.symbolic.shapes import contiguous_stride

aten = torch.ops.aten

NewSize = Callable[[Any], Any]
"""A new size; it is given the largest that it can be, or None."""


_FEW = 8  # values that differ: mostly those of classes, over which programs loop


def sized_by_data(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], new_size: NewSize) -> Any:
    """The fake tensors that an operator with data-dependent sizes returns; NotImplemented for any other call."""
    rule = _RULES.get(func)
    return NotImplemented if rule is None else rule(new_size, *args, **kwargs)


def _made(like: torch.Tensor, shape: tuple[Any, ...], dtype: torch.dtype, stride: tuple[Any, ...] | None = None) -> Any:
    return FakeTensor(TensorSpec(shape, stride or contiguous_stride(shape), dtype, like.device))


def _nonzero(new_size: NewSize, x: torch.Tensor) -> Any:
    count = new_size(x.numel())
    return _made(x, (count, x.dim()), torch.int64, (1, count))  # one column after the other


def _masked_select(new_size: NewSize, x: torch.Tensor, mask: torch.Tensor) -> Any:
    if mask.dtype is not torch.bool:
        return NotImplemented
    shape = torch.broadcast_shapes(x.shape, mask.shape)  # type: ignore[no-untyped-call]
    whole: Any = 1
    for size in shape:
        whole = whole * size
    return _made(x, (new_size(whole),), x.dtype)


def _unique(new_size: NewSize, x: torch.Tensor, *flags: Any, **named: Any) -> Any:
    """`_unique2(x, sorted, return_inverse, return_counts)`, and `_unique` without counts."""
    inverse = named.get("return_inverse", flags[1] if len(flags) > 1 else False)
    counts = named.get("return_counts", flags[2] if len(flags) > 2 else False)
    return _unique_consecutive(new_size, x, inverse or counts, counts)


def _unique_consecutive(
    new_size: NewSize, x: torch.Tensor, return_inverse: bool = False, return_counts: bool = False, dim: Any = None
) -> Any:
    if dim is not None:
        return NotImplemented
    unique_count = new_size(_FEW)
    return (
        _made(x, (unique_count,), x.dtype),
        _made(x, tuple(x.shape) if return_inverse else (0,), torch.int64),
        _made(x, (unique_count,) if return_counts else (0,), torch.int64),
    )


def _unique_dim(
    new_size: NewSize,
    x: torch.Tensor,
    dim: int,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> Any:
    if not x.dim():
        return NotImplemented
    dim %= x.dim()
    unique_count = new_size(_FEW)
    shape = (*x.shape[:dim], unique_count, *x.shape[dim + 1 :])
    moved = (shape[dim], *shape[:dim], *shape[dim + 1 :])  # rows are joined along the first dimension, which moves back
    order = contiguous_stride(moved)
    stride = (*order[1 : dim + 1], order[0], *order[dim + 1 :])
    return (
        _made(x, shape, x.dtype, stride),
        _made(x, (x.shape[dim],), torch.int64),
        _made(x, (unique_count,), torch.int64),
    )


def _repeats(new_size: NewSize, repeats: torch.Tensor, *, output_size: Any = None) -> Any:
    if output_size is not None:
        return NotImplemented
    return _made(repeats, (new_size(None),), repeats.dtype)


def _bincount(new_size: NewSize, x: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> Any:
    dtype = torch.int64
    if weights is not None:
        dtype = weights.dtype if weights.dtype is torch.float32 else torch.float64
    return _made(x, (new_size(None),), dtype)


_RULES: dict[Any, Callable[..., Any]] = {
    aten.nonzero.default: _nonzero,
    aten.masked_select.default: _masked_select,
    aten._unique2.default: _unique,
    aten.unique_consecutive.default: _unique_consecutive,
    aten.unique_dim.default: _unique_dim,
    aten.repeat_interleave.Tensor: _repeats,
    aten.bincount.default: _bincount,
}


class _Context:
    """What `torch.library.get_ctx()` returns to the description of an operator's results."""

    def __init__(self, new_size: NewSize) -> None:
        self._new_size = new_size
        self.asked = False

    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> Any:
        self.asked = True
        return self._new_size(max)

    create_unbacked_symint = new_dynamic_size


def sized_by_library(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], new_size: NewSize) -> Any:
    """The fake tensors that an operator of a library returns, if its description asks for sizes that only data tell."""
    entry = singleton.get(func._schema.name)
    kernel = None if entry is None else entry.fake_impl.kernel
    if kernel is None:
        return NotImplemented
    context = _Context(new_size)
    with running_plainly(), fake_impl.set_ctx_getter(lambda: context):
        result = kernel(*to_meta(args), **{name: to_meta(value) for name, value in kwargs.items()})
    return _as_fakes(result, result_device(func, args, kwargs)) if context.asked else NotImplemented


def _as_fakes(result: Any, device: torch.device) -> Any:
    if isinstance(result, torch.Tensor):
        spec = TensorSpec.of(result)
        return FakeTensor(TensorSpec(spec.shape, spec.stride, spec.dtype, device))
    if isinstance(result, tuple | list):
        return type(result)(_as_fakes(item, device) for item in result)
    return result
