"""Softmax, variance, norms: into keepdim reductions and pointwise arithmetic around them.

_softmax(x, 1) → e = exp(x - amax(x, [1], True)); e · reciprocal(sum(e, [1], True))
var(x, [1])    → c = x - mean(x, [1], True); sum(c·c, [1]) / (n - 1)
"""

from typing import TYPE_CHECKING, Any

from smelt.ops.decompose.table import choose, constant, decomposes, derives, left_whole, widen
from smelt.symbolic.shapes import product

if TYPE_CHECKING:
    import torch
else:
    from smelt.base.torch_originals import pristine as torch

Tensor = torch.Tensor
aten = torch.ops.aten


def _exponentials(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """(x - max, exp of it): the maximum makes the largest term one, so nothing overflows."""
    shifted = x - torch.amax(x, [dim], True)
    return shifted, torch.exp(shifted)


@decomposes(aten._softmax.default)
def softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    _, powers = _exponentials(widen(x), dim)
    # One division a row: the sum is at least the one of the maximum itself, so that its reciprocal is a normal number.
    return (powers * torch.reciprocal(torch.sum(powers, [dim], True))).to(x.dtype)


@decomposes(aten._safe_softmax.default)
def safe_softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Rows in which everything is masked out are zero, not nan."""
    wide = widen(x)
    peak = torch.amax(wide, [dim], True)
    powers = torch.exp(wide - peak)
    shares = powers * torch.reciprocal(torch.sum(powers, [dim], True))
    return choose(peak == float("-inf"), 0.0, shares).to(x.dtype)


@decomposes(aten._softmax_backward_data.default)
def softmax_backward(grad: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    incoming, shares = widen(grad), widen(output)
    return ((incoming - torch.sum(incoming * shares, [dim], True)) * shares).to(input_dtype)


@decomposes(aten._log_softmax.default)
def log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    shifted, powers = _exponentials(widen(x), dim)
    return (shifted - torch.log(torch.sum(powers, [dim], True))).to(x.dtype)


@decomposes(aten._log_softmax_backward_data.default)
def log_softmax_backward(grad: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    incoming = widen(grad)
    return (incoming - torch.exp(widen(output)) * torch.sum(incoming, [dim], True)).to(input_dtype)


@decomposes(aten.logsumexp.default)
def logsumexp(x: Tensor, dim: list[int], keepdim: bool = False) -> Tensor:
    wide = widen(x)
    dims = _dims(x, dim)
    peak = torch.amax(wide, dims, True)
    peak = choose(torch.abs(peak) == float("inf"), 0.0, peak)  # inf - inf would be nan
    total = torch.log(torch.sum(torch.exp(wide - peak), dims, keepdim))
    return (total + (peak if keepdim else _dropped(peak, dims))).to(x.dtype)


def _dims(x: Tensor, dim: Any) -> list[int]:
    rank = x.dim()
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return list(range(rank))
    signed_dims = [dim] if isinstance(dim, int) else list(dim)
    return [one % rank for one in signed_dims] if rank else []


def _dropped(value: Tensor, dims: list[int]) -> Tensor:
    """Without the extents of one that a keepdim reduction left."""
    return value.view([size for axis, size in enumerate(value.shape) if axis not in dims])


def _spread(x: Tensor, dim: Any, correction: Any, keepdim: bool) -> tuple[Tensor, Tensor] | None:
    """(variance, mean) in two passes: the second sees only differences from the mean, so nothing cancels. In float64,
    as PyTorch adds them up whatever the dtype."""
    dims = _dims(x, dim)
    count = product([x.shape[axis] for axis in dims])
    taken = 1.0 if correction is None else float(correction)
    freedom = count - (int(taken) if taken.is_integer() else taken)
    if freedom <= 0:
        return None
    wide = x.to(torch.float64)
    mean = torch.mean(wide, dims, True)
    if x.dtype is torch.float64:  # what is left beside it is added: of equal numbers it is just that one, as eager's is
        exact = mean + torch.mean(wide - mean, dims, True)
        mean = choose(exact == exact, exact, mean)  # of infinities nothing is left
    centered = wide - mean
    variance = torch.sum(centered * centered, dims, keepdim) * (1.0 / freedom)
    return variance, mean if keepdim else _dropped(mean, dims)


@decomposes(aten.var.correction)
def var(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Tensor:
    spread = _spread(x, dim, correction, keepdim)
    return NotImplemented if spread is None else spread[0].to(x.dtype)


@decomposes(aten.std.correction)
def std(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Tensor:
    spread = _spread(x, dim, correction, keepdim)
    return NotImplemented if spread is None else torch.sqrt(spread[0]).to(x.dtype)


@decomposes(aten.var_mean.correction)
def var_mean(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    spread = _spread(x, dim, correction, keepdim)
    if spread is None:
        return NotImplemented
    variance, mean = spread
    if product([x.shape[axis] for axis in _dims(x, dim)]) != 1:
        # PyTorch moves its mean by the difference to each element: from an infinity on, inf - inf.
        mean = choose(torch.abs(mean) == float("inf"), float("nan"), mean)
    return variance.to(x.dtype), mean.to(x.dtype)


@decomposes(aten.linalg_vector_norm.default)
def vector_norm(
    x: Tensor, order: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    """Orders 1, 2 and infinity. Where squares overflow, the library's do too; of one element it takes no square."""
    wide, dims = widen(x), _dims(x, dim)
    if order != 0 and product([x.shape[axis] for axis in dims]) == 1:
        return torch.abs(x) if keepdim else _dropped(torch.abs(x), dims)
    if order == 2:
        return torch.sqrt(torch.sum(wide * wide, dims, keepdim)).to(x.dtype)
    if order == 1:
        return torch.sum(torch.abs(wide), dims, keepdim).to(x.dtype)
    if order == float("inf"):
        return torch.amax(torch.abs(wide), dims, keepdim).to(x.dtype)
    if order == -float("inf"):
        return torch.amin(torch.abs(wide), dims, keepdim).to(x.dtype)
    return NotImplemented


def _extreme(x: Tensor, dim: int, fold: Any) -> tuple[Tensor, Tensor]:
    """(the extreme along `dim`, where it stands first), keeping the dim. A NaN is the most extreme of all."""
    size = x.shape[dim]
    extreme = fold(x, [dim], True)
    return extreme, torch.amin(_places(x, extreme, dim, torch.int64, size), [dim], True)


def _first_zero(x: Tensor, extreme: Tensor, dim: int) -> Tensor:
    """The extremes, each zero with the sign of the zero that stands first: a fold of values takes any of them. So the
    places of zeros are folded beside, each with the sign of the zero there; that needs no second pass."""
    if not x.is_floating_point():
        return extreme
    size = x.shape[dim]
    number = torch.int32 if size < 2**30 else torch.int64
    places = _along(x, dim, number) * 2 + torch.signbit(x).to(number)
    first = torch.amin(choose(x == 0.0, places, 2 * size), [dim], True)
    zero = choose(torch.bitwise_and(first, 1) == 1, constant(-0.0, extreme), 0.0)
    return choose(extreme == 0.0, zero, extreme)


def _places(x: Tensor, extreme: Tensor, dim: int, number: torch.dtype, nowhere: int) -> Tensor:
    """Each element's place along `dim` where it is the one found, or NaN; `nowhere` elsewhere."""
    here = x == extreme
    if x.is_floating_point():
        here = torch.logical_or(here, torch.isnan(x))
    return choose(here, _along(x, dim, number), nowhere)


def _along(x: Tensor, dim: int, number: torch.dtype) -> Tensor:
    """The places along `dim`."""
    shape = [-1 if axis == dim else 1 for axis in range(x.dim())]
    return aten.arange.default(x.shape[dim], dtype=number, device=x.device).view(shape)  # type: ignore[no-any-return]


def _extreme_of(x: Tensor, dim: int, keepdim: bool, fold: Any) -> Any:
    if x.dim() == 0 or not -x.dim() <= dim < x.dim() or x.dtype is torch.bool:
        return NotImplemented
    along = dim % x.dim()
    dims = [along]
    extreme, place = _extreme(x, along, fold)
    extreme = _first_zero(x, extreme, along)
    return (extreme, place) if keepdim else (_dropped(extreme, dims), _dropped(place, dims))


@decomposes(aten.max.dim)
def max_dim(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    return _extreme_of(x, dim, keepdim, torch.amax)


@decomposes(aten.min.dim)
def min_dim(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    return _extreme_of(x, dim, keepdim, torch.amin)


def _place_of_extreme(x: Tensor, dim: int | None, keepdim: bool, fold: Any) -> Any:
    if dim is not None:
        extreme_and_place = _extreme_of(x, dim, keepdim, fold)
        return NotImplemented if extreme_and_place is NotImplemented else extreme_and_place[1]
    if keepdim or not x.is_contiguous() or x.dim() == 0:
        return NotImplemented
    return _extreme_of(x.view([-1]), 0, False, fold)[1] if x.dtype is not torch.bool else NotImplemented


@decomposes(aten.argmax.default)
def argmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    return _place_of_extreme(x, dim, keepdim, torch.amax)


@decomposes(aten.argmin.default)
def argmin(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    return _place_of_extreme(x, dim, keepdim, torch.amin)


def _running_extreme(op: Any) -> Any:
    def running(x: Tensor, dim: int) -> Any:
        """Up to each element, and where the last of equals stands: the furthest place so far that was one."""
        if x.dim() == 0 or x.dtype is torch.bool:
            return NotImplemented
        extremes = left_whole(op, x, dim)[0]
        number = torch.int32 if x.shape[dim] < 2**31 else torch.int64
        places = _places(x, extremes, dim % x.dim(), number, 0)
        return extremes, left_whole(aten.cummax.default, places, dim)[0].to(torch.int64)

    return running


for _op in (aten.cummax.default, aten.cummin.default):
    decomposes(_op)(_running_extreme(_op))


@derives(torch.logcumsumexp, torch.Tensor.logcumsumexp)
def logcumsumexp(input: Tensor, dim: int, **rest: Any) -> Tensor:
    """The derivative goes by exponentials of the result, for which sixteen bits of it are too few."""
    if rest:  # memory to write to
        return torch.logcumsumexp(input, dim, **rest)
    return torch.logcumsumexp(widen(input), dim).to(input.dtype)
