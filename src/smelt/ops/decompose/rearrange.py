"""Views by their simplest name, joins, repeats, dropout.

    t(x) → permute(x, [1, 0])        split(x, 2) → slices

`detach`, `alias` and `lift_fresh` are nothing at all in a pure graph: what follows uses their argument.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from smelt.device.host_library import on_host
from smelt.ir.tensorspec import TensorSpec
from smelt.meta.fake_tensor import FakeTensor
from smelt.ops.decompose.table import decomposes, rewrites

Tensor = torch.Tensor
aten = torch.ops.aten


@rewrites(aten.detach.default, aten.alias.default, aten.lift_fresh.default)
def same(x: Tensor) -> Any:
    """Another fake tensor of the same node. Never `x` itself: autograd would take its `requires_grad` away."""
    if not isinstance(x, FakeTensor) or x.node is None:
        return NotImplemented
    return FakeTensor(replace(TensorSpec.of(x), requires_grad=False), x.node)


@rewrites(aten._efficientzerotensor.default)
def zeros_without_memory(size: Sequence[int], **options: Any) -> Any:
    """Tangents that are zero have no memory in PyTorch, which kernels would read."""
    return torch.zeros(size, **options)


@rewrites(aten.t.default)
def t(x: Tensor) -> Any:
    return aten.permute.default(x, [1, 0]) if x.dim() == 2 else NotImplemented


@rewrites(aten.transpose.int)
def transpose(x: Tensor, first: int, second: int) -> Any:
    rank = x.dim()
    if not (-rank <= first < rank and -rank <= second < rank):
        return NotImplemented
    order = list(range(rank))
    order[first], order[second] = order[second], order[first]
    return aten.permute.default(x, order)


@rewrites(aten._unsafe_view.default)
def unsafe_view(x: Tensor, size: Sequence[int]) -> Any:
    return aten.view.default(x, list(size))


@rewrites(aten._reshape_alias.default)
def reshape_alias(x: Tensor, size: Sequence[int], stride: Sequence[int]) -> Any:
    """As a call it would read by strides that eager has; a value inside of a graph may be laid out otherwise."""
    view = aten.view.default(x, list(size))
    return view if view.stride() == tuple(stride) else aten.as_strided.default(x, list(size), list(stride))


@rewrites(aten.split.Tensor, aten.unsafe_split.Tensor)
def split(x: Tensor, size: int, dim: int = 0) -> Any:
    """The unsafe ones are views that do not say so: as calls, they would return memory that is planned for others."""
    if x.dim() == 0 or not -x.dim() <= dim < x.dim() or size <= 0:
        return NotImplemented
    extent = x.shape[dim]
    count = int((extent + size - 1) // size)  # how many tensors come out is specialized
    sizes = [min(size, extent - number * size) for number in range(count)] or [0]
    return split_with_sizes(x, sizes, dim)


@rewrites(aten.split_with_sizes.default, aten.unsafe_split_with_sizes.default)
def split_with_sizes(x: Tensor, sizes: Sequence[int], dim: int = 0) -> Any:
    if x.dim() == 0 or not -x.dim() <= dim < x.dim() or sum(sizes) != x.shape[dim] or any(size < 0 for size in sizes):
        return NotImplemented
    parts, start = [], 0
    for size in sizes:
        parts.append(aten.slice.Tensor(x, dim, start, start + size))
        start += size
    return parts


@rewrites(aten.unbind.int)
def unbind(x: Tensor, dim: int = 0) -> Any:
    if x.dim() == 0 or not -x.dim() <= dim < x.dim():
        return NotImplemented
    return [aten.select.int(x, dim, index) for index in range(x.shape[dim])]


@rewrites(aten.stack.default)
def stack(tensors: Sequence[Tensor], dim: int = 0) -> Any:
    first = tensors[0] if tensors else None
    if first is None or not -first.dim() - 1 <= dim <= first.dim():
        return NotImplemented
    if any(one.shape != first.shape for one in tensors):
        return NotImplemented
    dim %= first.dim() + 1
    if dim == first.dim() or all(one.is_contiguous() for one in tensors):
        return aten.cat.default([aten.unsqueeze.default(one, dim) for one in tensors], dim)
    shape = [*first.shape[:dim], len(tensors), *first.shape[dim:]]  # as PyTorch has it, whatever the layouts are
    return aten.view.default(aten.cat.default(tensors, dim), shape)


@decomposes(aten.repeat.default)
def repeat(x: Tensor, times: Sequence[int]) -> Any:
    """Each dim as two, how often before where, and those spread out."""
    if any(number < 1 for number in times):
        return NotImplemented
    shape = [1] * (len(times) - x.dim()) + list(x.shape)
    apart = x[(None,) * (len(times) - x.dim())] if len(shape) > x.dim() else x
    for dim in reversed(range(len(times))):
        apart = apart.unsqueeze(dim)
    pairs = [number for pair in zip(times, shape, strict=True) for number in pair]
    return apart.expand(pairs).reshape([number * size for number, size in zip(times, shape, strict=True)])


@decomposes(aten.native_dropout.default)
def native_dropout(x: Tensor, probability: float, train: bool | None) -> Any:
    """Only the coin is random: the scaling is arithmetic that fuses. Elsewhere than on the CPU the operator draws by a
    kernel of its own, whose numbers no other operator draws."""
    if train is False or not 0.0 < probability < 1.0 or not on_host(x.device):
        return NotImplemented
    kept = aten.bernoulli.p(x, 1.0 - probability).to(torch.bool)
    return x * kept * (1.0 / (1.0 - probability)), kept


@decomposes(aten.native_dropout_backward.default)
def native_dropout_backward(grad: Tensor, kept: Tensor, scale: float) -> Any:
    return grad * kept * scale


@rewrites("_c10d_functional::_wrap_tensor_autograd")
def wait_for_collective(tensor: Any) -> Any:
    """Outside of graphs a tensor waits when it is first read; in one somebody has to."""
    return torch.ops._c10d_functional.wait_tensor.default(tensor)
