"""What is decomposed only where no library may be called: attention, and tensors put side by side or into others.

    attention(q, k, v)       →  bmm(softmax(bmm(q, kᵀ) · scale), v), the scores in memory: where sizes vary
    its gradients            →  of keys that heads share, the sum of those of copies, one for each head
    cat([a, b])              →  where(position < len(a), a among zeros, b among zeros)

The library does these faster; as kernels they need nothing but what is generated. See the option `library`.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import torch

from smelt.device.product_costs import MOST_ATTENTION_WIDTH
from smelt.ops.decompose.products import multiplied_by_head
from smelt.ops.decompose.table import Table, choose, decomposes, widen
from smelt.symbolic.shapes import is_dense

Tensor = torch.Tensor
aten = torch.ops.aten

TABLE: Table = {}
_takes_apart = partial(decomposes, table=TABLE)


# Attention.


def _turned(x: Tensor) -> Tensor:
    transposed: Tensor = aten.permute.default(x, [0, 1, 3, 2])
    return transposed


def _rounded(x: Tensor, like: Tensor) -> Tensor:
    """In the precision of a tensor that it is multiplied with: matrix units multiply numbers of one dtype. Attention
    that keeps no scores in memory rounds them so, too."""
    return widen(x.to(like.dtype))


def _scores(query: Tensor, key: Tensor, causal: bool, mask: Tensor | None, scale: float | None) -> tuple[Tensor, float]:
    scale = 1 / math.sqrt(query.shape[3]) if scale is None else scale
    scores = multiplied_by_head(widen(query), _turned(widen(key))) * scale
    if causal:
        rows, cols = (torch.arange(extent, device=query.device) for extent in scores.shape[2:])
        scores = choose(cols > aten.unsqueeze.default(rows, 1), -math.inf, scores)
    return (scores if mask is None else scores + widen(mask)), scale


def _sharing(query: Tensor, key: Tensor) -> Any:
    """How many heads of queries each head of keys is for; None if they are not shared evenly."""
    if query.shape[1] == key.shape[1]:
        return 1
    return None if not key.shape[1] or query.shape[1] % key.shape[1] else query.shape[1] // key.shape[1]


def _repeated(x: Tensor, times: int) -> Tensor:
    """Each head so many times."""
    images, heads, tokens, width = x.shape
    several = aten.expand.default(aten.unsqueeze.default(x, 2), [images, heads, times, tokens, width])
    repeated: Tensor = several.reshape([images, heads * times, tokens, width])
    return repeated


def _summed(x: Tensor, times: int) -> Tensor:
    """The sum of what belongs to one head, of `_repeated`."""
    images, heads, tokens, width = x.shape
    sums: Tensor = aten.view.default(x, [images, heads // times, times, tokens, width]).sum(2)
    return sums


Scores = Literal["never", "narrow", "memory"]  # whose scores are in memory, if anything's


def _is_kernel(scores: Scores, *tensors: Tensor) -> bool:
    """Whether attention is a kernel as it is: one that never has the scores in memory. Its sizes do not vary."""
    if scores == "memory" or (scores == "narrow" and not all(map(_fits_matrix_units, tensors))):
        return False
    return all(isinstance(size, int) and size > 0 for tensor in tensors for size in tensor.shape)


def _fits_matrix_units(x: Tensor) -> bool:
    return x.dtype.itemsize == 2 and isinstance(x.shape[3], int) and x.shape[3] <= MOST_ATTENTION_WIDTH


@_takes_apart(aten._scaled_dot_product_flash_attention_for_cpu.default)
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
    scores: Scores = "never",
) -> Any:
    """What a query that may look at nothing finds is zero."""
    if dropout or query.dim() != 4 or (times := _sharing(query, key)) is None:
        return NotImplemented
    if _is_kernel(scores, query, key, value):
        return NotImplemented
    in_memory = scores != "never"
    key, value = (each if times == 1 else _repeated(each, times) for each in (key, value))
    values, _ = _scores(query, key, causal, attn_mask, scale)
    top = values.amax(-1, keepdim=True)
    top = choose(top == -math.inf, 0.0, top)
    shares = (values - top).exp()
    total = shares.sum(-1, keepdim=True)
    nothing = total == 0
    safe = choose(nothing, 1.0, total)
    attended = multiplied_by_head(_rounded(shares, value) if in_memory else shares, widen(value)) / safe
    sums = choose(nothing, 0.0, top + safe.log())
    return attended, aten.squeeze.dim(sums, 3)


@_takes_apart(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def attention_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    sums: Tensor,
    dropout: float,
    causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
    scores: Scores = "never",
) -> Any:
    if dropout or query.dim() != 4 or (times := _sharing(query, key)) is None:
        return NotImplemented
    if times != 1:
        arguments = grad, query, _repeated(key, times), _repeated(value, times), out, sums, dropout, causal
        backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
        of_query, *of_others = backward(*arguments, attn_mask=attn_mask, scale=scale)
        return of_query, *(_summed(each, times) for each in of_others)
    if _is_kernel(scores, query, key, value):
        return NotImplemented
    in_memory = scores != "never"
    values, scale = _scores(query, key, causal, attn_mask, scale)
    shares = (values - aten.unsqueeze.default(sums, 3)).exp()
    wide = widen(grad)
    of_value = multiplied_by_head(_turned(_rounded(shares, query) if in_memory else shares), wide)
    of_shares = multiplied_by_head(wide, _turned(widen(value)))
    kept = (wide * widen(out)).sum(-1, keepdim=True)
    of_scores = shares * (of_shares - kept) * scale
    of_scores = _rounded(of_scores, query) if in_memory else of_scores
    return multiplied_by_head(of_scores, widen(key)), multiplied_by_head(_turned(of_scores), widen(query)), of_value


# For targets whose kernels have the scores in memory, whatever the sizes are, and for those of matrix units.
SCORES_IN_MEMORY: Table = {}
WIDE_SCORES_IN_MEMORY: Table = {}
for _op, _function in (
    (aten._scaled_dot_product_flash_attention_for_cpu.default, attention),
    (aten._scaled_dot_product_flash_attention_for_cpu_backward.default, attention_backward),
):
    decomposes(_op, table=SCORES_IN_MEMORY)(partial(_function, scores="memory"))
    decomposes(_op, table=WIDE_SCORES_IN_MEMORY)(partial(_function, scores="narrow"))


# Side by side.


@_takes_apart(aten.cat.default)
def cat(tensors: Sequence[Tensor], dim: int = 0) -> Any:
    parts = [part for part in tensors if 0 not in part.shape]
    if not parts or any(part.dim() != parts[0].dim() for part in parts) or not -parts[0].dim() <= dim < parts[0].dim():
        return NotImplemented
    dim %= parts[0].dim()
    after = parts[0].dim() - 1 - dim
    dtype = parts[0].dtype
    for part in tensors:
        dtype = torch.promote_types(dtype, part.dtype)
    if len(parts) == 1:
        return aten.clone.default(parts[0].to(dtype), memory_format=torch.contiguous_format)
    whole = sum(part.shape[dim] for part in parts)
    place = aten.view.default(torch.arange(whole, device=parts[0].device), [whole] + [1] * after)
    start, joined = 0, None
    for part in parts:
        length = part.shape[dim]
        pads = [0, 0] * after + [start, whole - start - length]
        among = aten.constant_pad_nd.default(part.to(dtype), pads, False if dtype is torch.bool else 0)
        joined = among if joined is None else aten.where.self(place >= start, among, joined)
        start += length
    return joined


def _among_zeros(part: Tensor, size: int, dim: int, start: int, step: int) -> tuple[Tensor, Tensor]:
    """A tensor of `size` along `dim` with the elements of `part` at `start`, `start + step`, …; and where those are."""
    after, length = part.dim() - 1 - dim, part.shape[dim]
    place = torch.arange(size, device=part.device) - start
    end = (length - 1) * step
    taken = aten.view.default((place >= 0) & (place <= end) & (place % step == 0), [size] + [1] * after)
    if step == 1:
        nothing = False if part.dtype is torch.bool else 0
        return aten.constant_pad_nd.default(part, [0, 0] * after + [start, size - start - length], nothing), taken
    spread = aten.index_select.default(part, dim, aten.clamp.default(place // step, 0, length - 1))
    return aten.where.self(taken, spread, aten.zeros_like.default(spread)), taken


def _first(size: int, start: int | None) -> int:
    """Where a slice begins: not before the first element, nor behind the last."""
    start = 0 if start is None else start
    return min(max(start + size if start < 0 else start, 0), size)


@_takes_apart(aten.slice_backward.default)
def slice_backward(grad: Tensor, sizes: Sequence[int], dim: int, start: int, end: int, step: int) -> Any:
    dim %= len(sizes)
    return _among_zeros(grad, sizes[dim], dim, _first(sizes[dim], start), step)[0]


@_takes_apart(aten.select_backward.default)
def select_backward(grad: Tensor, sizes: Sequence[int], dim: int, index: int) -> Any:
    dim %= len(sizes)
    return _among_zeros(aten.unsqueeze.default(grad, dim), sizes[dim], dim, index % sizes[dim], 1)[0]


@_takes_apart(aten.slice_scatter.default)
def slice_scatter(
    base: Tensor, part: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    dim %= base.dim()
    return _written_into(base, part.to(base.dtype), dim, _first(base.shape[dim], start), step)


def _written_into(base: Tensor, part: Tensor, dim: int, start: int, step: int) -> Any:
    if 0 in part.shape:
        return aten.clone.default(base)
    spread, taken = _among_zeros(part, base.shape[dim], dim, start, step)
    return aten.where.self(taken, spread, base)


@_takes_apart(aten.select_scatter.default)
def select_scatter(base: Tensor, part: Tensor, dim: int, index: int) -> Any:
    dim %= base.dim()
    whole = aten.unsqueeze.default(part.to(base.dtype), dim)
    return _written_into(base, whole, dim, index % base.shape[dim], 1)


# Memory.


@_takes_apart(aten.empty.memory_format, aten.empty_strided.default)
def empty(size: Sequence[int], *_: Any, memory_format: Any = None, **options: Any) -> Any:
    """Whatever is in memory that nobody wrote: zeros, the same with each run."""
    return torch.zeros(list(size), **options)


@_takes_apart(aten.empty_like.default)
def empty_like(x: Tensor, **options: Any) -> Any:
    return aten.zeros_like.default(x, **options)


@_takes_apart(aten.new_empty.default, aten.new_empty_strided.default)
def new_empty(x: Tensor, size: Sequence[int], *_: Any, **options: Any) -> Any:
    return aten.new_zeros.default(x, list(size), **options)


# Writes into views. What comes out is a tensor of its own, without the gaps that the view has.


def _has_gaps(x: Tensor) -> bool:
    return 0 not in x.shape and not is_dense(tuple(x.shape), x.stride())


def copy(x: Tensor, source: Tensor, non_blocking: bool = False) -> Any:
    if x.device != source.device or not _has_gaps(x):
        return NotImplemented
    spread = aten.expand.default(source.to(x.dtype), list(x.shape))
    return aten.clone.default(spread, memory_format=torch.contiguous_format)


def diagonal_scatter(base: Tensor, part: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    if 0 in part.shape:
        return aten.clone.default(base)
    dims = [dim1 % base.dim(), dim2 % base.dim()]
    order = [*(dim for dim in range(base.dim()) if dim not in dims), *dims]
    moved = aten.permute.default(base, order)
    rows, cols = (torch.arange(size, device=base.device) for size in moved.shape[-2:])
    along, last = (cols, -2) if offset < 0 else (rows, -1)
    taken = aten.index_select.default(part.to(base.dtype), part.dim() - 1, along.clamp(0, part.shape[-1] - 1))
    on_it = cols - aten.unsqueeze.default(rows, 1) == offset
    scattered = aten.where.self(on_it, aten.unsqueeze.default(taken, last), moved)
    return aten.permute.default(scattered, [order.index(dim) for dim in range(base.dim())])


def _with_any_layout(table: Table, op: Any, function: Callable[..., Any]) -> None:
    """Use a function where what it returns is laid out otherwise than by the operator, too."""
    alike = table.get(op)

    def written(*args: Any, **kwargs: Any) -> Any:
        result = NotImplemented if alike is None else alike(*args, **kwargs)
        return function(*args, **kwargs) if result is NotImplemented else result

    table[op] = written


TABLE[aten.copy.default] = copy
for _op, _written in (
    (aten.slice_scatter.default, slice_scatter),
    (aten.select_scatter.default, select_scatter),
    (aten.diagonal_scatter.default, diagonal_scatter),
):
    _with_any_layout(TABLE, _op, _written)
