"""Eager as it might as well have rounded: in another order of summation, and to the other of two neighbours.

    with Chance(7): x.scatter_add(0, index, y)      terms are moved by one unit in the last place before they are added
    with Chance(7): x.var(0)                        and what is folded along a dim comes in another order
    with Chance(7): (x.bfloat16() * 3).sin()        each result is rounded up or down, by how near it is

Where terms cancel, what is left of a sum is rounding, and how much depends on the order: 1.5 - 1.3 - 0.19 from the
left is exact whatever the digits are, from the right it is off by a unit of 1.49. No order is eager's own on a GPU,
where threads add as they come. Any order's error is one of terms that are a little off (each addition rounds once, and
what it rounds is made of terms), so a unit in the last place of every term, up or down, stands for all orders: the
error is held to the size of the terms, not to what is left of them. Only operators that add up what they are given
(`_SUMS`) are run so; those along dims (`_FOLDS`) are given the same elements in another order too, which an algorithm
of many steps, as a variance is, rounds otherwise. A function at a point is left alone: it has one right answer,
however steep it is.

In 16 bits a few inputs beside the given ones are all there are, and eager's roundings fall the same way for all of
them: 1 + x/100 has three values. Rounded up or down at random, each with the chance by which the mean is exact, results
are as far off as they may be: less than one unit instead of half of one, and not all to the same side. What is exact in
16 bits stays so. Operators add up in float32 there, so it is units of float32 by which terms are moved.
"""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

_HALF = (torch.bfloat16, torch.float16)

# By the name before the overload, without the "_" of those that write into their first argument.
_SUMS = frozenset(
    (
        "sum", "mean", "nansum", "var", "var_mean", "std", "std_mean", "cumsum", "logsumexp", "logcumsumexp",
        "trace", "dot", "vdot", "mv",
        "mm", "bmm", "addmv", "addmm", "baddbmm", "addbmm", "scatter_add", "scatter_reduce", "index_add",
        "index_put", "_index_put_impl", "_unsafe_index_put", "index_reduce", "segment_reduce",
        "embedding_dense_backward", "_embedding_bag", "convolution", "convolution_backward", "avg_pool2d",
        "avg_pool2d_backward", "avg_pool3d", "avg_pool3d_backward", "_adaptive_avg_pool2d",
        "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d", "_adaptive_avg_pool3d_backward",
        "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d",
        "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "upsample_linear1d_backward",
        "upsample_bilinear2d_backward", "upsample_trilinear3d_backward", "upsample_bicubic2d_backward",
        "upsample_nearest1d_backward", "upsample_nearest2d_backward", "upsample_nearest3d_backward", "col2im",
        "unfold_backward",
    )
)  # fmt: skip
_FOLDS = frozenset(("sum", "mean", "nansum", "var", "var_mean", "std", "std_mean"))


def nudged(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Every element as it is or one unit up or down; zeros, NaN and infinities as they are."""
    if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex) or tensor.layout is not torch.strided:
        return tensor
    if tensor.dtype.is_complex:
        return torch.view_as_complex(nudged(torch.view_as_real(tensor.resolve_conj()).contiguous(), generator))
    drawn = torch.randint(-1, 2, tensor.shape, generator=generator, device="cpu")
    to = (drawn * torch.inf).to(tensor.device, tensor.dtype)
    moved = torch.nextafter(tensor, torch.where(torch.isnan(to), tensor, to))
    return torch.where((tensor == 0) | ~torch.isfinite(moved), tensor, moved)


def rounded(wide: torch.Tensor, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Numbers of float32 in 16 bits: the neighbour above or below, with the chance that makes their mean exact."""
    nearest = wide.to(dtype)
    rest = wide - nearest.float()
    beyond = torch.nextafter(nearest, torch.where(rest > 0, torch.inf, -torch.inf).to(dtype))
    step = (beyond.float() - nearest.float()).abs()
    drawn = torch.rand(wide.shape, generator=generator, device="cpu").to(wide.device)
    other = (drawn * step < rest.abs()) & torch.isfinite(beyond) & torch.isfinite(rest)
    return torch.where(other, beyond, nearest)


class Chance(TorchDispatchMode):
    """One choice of all those roundings."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = func._schema
        shows = any(each.alias_info for each in schema.returns) and not schema.is_mutable
        if shows or torch.Tag.nondeterministic_seeded in func.tags:
            return func(*args, **kwargs)
        adds = func.overloadpacket.__name__.rstrip("_") in _SUMS
        half = any(each.dtype in _HALF for each in _floats((args, kwargs)))
        narrows = kwargs.get("dtype") in _HALF
        if not half and not narrows:
            return func(*self._moved(func, args), **kwargs) if adds else func(*args, **kwargs)
        wide = tree_map(_widened, (args, kwargs))
        given = self._moved(func, wide[0]) if adds else wide[0]
        result = func(*args, **kwargs)
        try:
            precise = func(*given, **wide[1])
        except RuntimeError:  # it is not written for these dtypes
            return result
        for here, there in zip(_floats(result), _floats(precise), strict=True):
            if here.dtype in _HALF and there.dtype is torch.float32 and here.shape == there.shape:
                here.copy_(rounded(there, here.dtype, self.generator))
        return result

    def _moved(self, func: Any, args: Any) -> Any:
        """The arguments of a sum with its terms moved; not what it writes."""
        written = [bool(each.alias_info and each.alias_info.is_write) for each in func._schema.arguments]
        pairs = zip(args, written, strict=False)
        moved = [each if writes else tree_map(self._nudged, each) for each, writes in pairs]
        if func.overloadpacket.__name__ in _FOLDS:
            named = dict(zip((each.name for each in func._schema.arguments), args, strict=False))
            moved[0] = self._shuffled(moved[0], named.get("dim"))
        return moved

    def _shuffled(self, value: torch.Tensor, dims: Any) -> torch.Tensor:
        for dim in [dims] if isinstance(dims, int) else dims or range(value.dim()):
            if value.dim() and isinstance(dim, int):
                order = torch.randperm(value.shape[dim], generator=self.generator, device="cpu")
                value = value.index_select(dim, order.to(value.device))
        return value

    def _nudged(self, value: Any) -> Any:
        return nudged(value, self.generator) if isinstance(value, torch.Tensor) else value


def _floats(value: Any) -> list[torch.Tensor]:
    found = [each for each in tree_leaves(value) if isinstance(each, torch.Tensor)]
    return [each for each in found if each.is_floating_point() and each.layout is torch.strided]


def _widened(value: Any) -> Any:
    """Tensors of 16 bits in float32, a copy, and that dtype's name with them."""
    if isinstance(value, torch.dtype):
        return torch.float32 if value in _HALF else value
    if isinstance(value, torch.Tensor) and value.dtype in _HALF and value.layout is torch.strided:
        return value.float()
    return value
