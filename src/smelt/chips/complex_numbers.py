"""Complex numbers on a chip, whose kernels have none: arithmetic on their parts, and movement of their bits.

    mul(c64[3], c64[3])      (a, b)·(c, d) = (ac - bd, ad + bc)      one kernel over f32[3, 2] twice
    cat([c64[3], c64[2]])    cat of i64[3] and i64[2]: whoever only moves numbers need not know what they are

A complex tensor is a view of pairs, so nothing is copied before or after. Arithmetic is in the widest float and rounded
once. What has no entry here is computed by PyTorch's decomposition of it, or by the host.
"""

import itertools
import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from smelt.chips.fused import fused, widest
from smelt.device.host_library import HOST
from smelt.meta.devices import tensors_in

Tensor = torch.Tensor
aten = torch.ops.aten
Rule = Callable[..., Any]
Parts = tuple[Any, Any]

TABLE: dict[torch._ops.OpOverload, Rule] = {}


def is_complex(args: Any, dtypes: Iterable[torch.dtype]) -> bool:
    """Whether any argument, or result of these dtypes, is complex."""
    return any(dtype.is_complex for dtype in dtypes) or any(each.is_complex() for each in tensors_in(args))


# Numbers one by one.


def _encoded(value: Any) -> tuple[str, list[Tensor]]:
    """An operand as tensors that fused code takes, and what they are."""
    if isinstance(value, Tensor):
        if value.is_complex():
            return "pairs", [torch.view_as_real(value)]
        return "mask" if value.dtype == torch.bool else "real", [value]
    whole = complex(value)
    return "number", [torch.tensor(each, dtype=torch.float64, device=HOST) for each in (whole.real, whole.imag)]


def _parts(kinds: tuple[str, ...], given: tuple[Any, ...], wide: torch.dtype) -> list[Parts]:
    tensors = iter(given)
    found: list[Parts] = []
    for kind in kinds:
        one = next(tensors)
        if kind == "pairs":
            found.append((one.select(-1, 0).to(wide), one.select(-1, 1).to(wide)))
        elif kind == "real":
            found.append((one.to(wide), torch.zeros_like(one, dtype=wide)))
        else:
            found.append((one, one if kind == "mask" else next(tensors)))
    return found


def _part_dtype(operands: list[Any]) -> torch.dtype:
    """Of the parts of what comes out of operands like these."""
    dtype: torch.dtype = operands[0].dtype
    for one, other in itertools.pairwise(operands):
        dtype = torch.promote_types(dtype, torch.result_type(one, other))
    return dtype.to_real() if dtype.is_complex else dtype


def _by_parts(*operators: torch._ops.OpOverload, gives: str = "complex", masks: int = 0) -> Callable[[Rule], Rule]:
    """Use a function of parts: it `gives` the parts of a complex result, or one that is real, or bools. The first
    `masks` arguments are no numbers."""

    def enter(function: Rule) -> Rule:
        def computed(kinds: tuple[str, ...], wide: torch.dtype, dtype: torch.dtype, *given: Any) -> Any:
            found = function(*_parts(kinds, given, wide))
            if gives == "complex":
                return torch.stack([found[0].to(dtype), found[1].to(dtype)], -1)
            return found if gives == "bool" else found.to(dtype)

        run = fused(computed)

        def rule(*args: Any, **kwargs: Any) -> Tensor:
            operands = [*args, *kwargs.values()]
            dtype = _part_dtype(operands[masks:])
            encoded = [_encoded(each) for each in operands]
            kinds = tuple([kind for kind, _ in encoded])
            made: Tensor = run(kinds, widest(dtype), dtype, *[each for _, given in encoded for each in given])
            return torch.view_as_complex(made) if gives == "complex" else made

        TABLE.update(dict.fromkeys(operators, rule))
        return function

    return enter


_ONE = (1.0, 0.0)


def _times(a: Parts, b: Parts) -> Parts:
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def _length(a: Parts) -> Any:
    """Without the square of a large or of a small number."""
    one, other = a[0].abs(), a[1].abs()
    top, least = torch.maximum(one, other), torch.minimum(one, other)
    share = torch.where((top == 0) | (top == math.inf), 0.0, least / torch.where(top == 0, 1.0, top))
    return torch.where((one == math.inf) | (other == math.inf), math.inf, top * (share * share + 1.0).sqrt())


@_by_parts(aten.add.Tensor, aten.add.Scalar)
def _add(a: Parts, b: Parts, alpha: Parts = _ONE) -> Parts:
    more = b if alpha is _ONE else _times(b, alpha)
    return a[0] + more[0], a[1] + more[1]


@_by_parts(aten.sub.Tensor, aten.sub.Scalar)
def _sub(a: Parts, b: Parts, alpha: Parts = _ONE) -> Parts:
    less = b if alpha is _ONE else _times(b, alpha)
    return a[0] - less[0], a[1] - less[1]


_by_parts(aten.mul.Tensor, aten.mul.Scalar)(_times)


@_by_parts(aten.div.Tensor, aten.div.Scalar)
def _over(a: Parts, b: Parts) -> Parts:
    """By the larger part of the divisor, as Smith does it."""
    is_real = b[0].abs() >= b[1].abs()
    large, small = torch.where(is_real, b[0], b[1]), torch.where(is_real, b[1], b[0])
    ratio = torch.where(small == 0, small, small / large)
    scale = large + small * ratio
    ahead, behind = torch.where(is_real, a[0], a[1]), torch.where(is_real, a[1], a[0])
    crossed = (behind - ahead * ratio) / scale
    return (ahead + behind * ratio) / scale, torch.where(is_real, crossed, -crossed)


@_by_parts(aten.neg.default)
def _neg(a: Parts) -> Parts:
    return -a[0], -a[1]


@_by_parts(aten.conj_physical.default, aten._conj_physical.default)
def _conj(a: Parts) -> Parts:
    return a[0], -a[1]


@_by_parts(aten.reciprocal.default)
def _reciprocal(a: Parts) -> Parts:
    found: Parts = _over((torch.ones_like(a[0]), torch.zeros_like(a[0])), a)
    return found


@_by_parts(aten.exp.default)
def _exp(a: Parts) -> Parts:
    size = a[0].exp()
    return size * a[1].cos(), torch.where(a[1] == 0, a[1], size * a[1].sin())


@_by_parts(aten.log.default)
def _log(a: Parts) -> Parts:
    return _length(a).log(), torch.atan2(a[1], a[0])


@_by_parts(aten.sgn.default)
def _sgn(a: Parts) -> Parts:
    length = _length(a)
    safe = torch.where(length == 0, 1.0, length)
    return a[0] / safe, a[1] / safe


@_by_parts(aten.polar.default)
def _polar(size: Parts, angle: Parts) -> Parts:
    return size[0] * angle[0].cos(), size[0] * angle[0].sin()


@_by_parts(aten.complex.default)
def _complex(real: Parts, imaginary: Parts) -> Parts:
    one, other = (torch.ones_like(each[0], dtype=torch.bool) for each in (real, imaginary))
    return torch.where(other, real[0], 0.0), torch.where(one, imaginary[0], 0.0)  # each as large as both


@_by_parts(aten.where.self, masks=1)
def _where(mask: Parts, a: Parts, b: Parts) -> Parts:
    return torch.where(mask[0], a[0], b[0]), torch.where(mask[0], a[1], b[1])


@_by_parts(aten.abs.default, gives="real")
def _abs(a: Parts) -> Any:
    return _length(a)


@_by_parts(aten.angle.default, gives="real")
def _angle(a: Parts) -> Any:
    return torch.atan2(a[1], a[0])


@_by_parts(aten.eq.Tensor, aten.eq.Scalar, gives="bool")
def _eq(a: Parts, b: Parts) -> Any:
    return (a[0] == b[0]) & (a[1] == b[1])


@_by_parts(aten.ne.Tensor, aten.ne.Scalar, gives="bool")
def _ne(a: Parts, b: Parts) -> Any:
    return (a[0] != b[0]) | (a[1] != b[1])


# New ones.


def _filled(size: Any, stride: Any, value: complex, dtype: torch.dtype, device: torch.device) -> Tensor:
    made = torch.empty_strided(size, stride, dtype=dtype, device=device)
    for place, part in enumerate((complex(value).real, complex(value).imag)):
        torch.view_as_real(made).select(-1, place).fill_(part)
    return made


def _full_like(like: Tensor, value: complex, *, dtype: Any = None, **options: Any) -> Tensor:
    return _filled(like.shape, torch.empty_like(like).stride(), value, dtype or like.dtype, like.device)


def _zeros_like(like: Tensor, *, dtype: Any = None, **options: Any) -> Tensor:
    return _full_like(like, 0, dtype=dtype)


def _ones_like(like: Tensor, *, dtype: Any = None, **options: Any) -> Tensor:
    return _full_like(like, 1, dtype=dtype)


def _full(size: Any, value: complex, *, dtype: Any = None, device: Any = None, **options: Any) -> Tensor:
    return _filled(size, torch.empty(size, device="meta").stride(), value, dtype or torch.complex64, device)


def _scalar_tensor(value: complex, *, dtype: Any = None, device: Any = None, **options: Any) -> Tensor:
    return _full([], value, dtype=dtype, device=device)


def _fill(like: Tensor, value: complex) -> Tensor:
    return _full_like(like, value)


def _to_copy(tensor: Tensor, *, dtype: Any = None, **options: Any) -> Tensor:
    """From real to complex, from complex to real, or to wider parts."""
    dtype = dtype or tensor.dtype
    parts = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    if not dtype.is_complex:
        return parts.select(-1, 0).to(dtype)
    parts = parts.to(dtype.to_real())
    return torch.view_as_complex(parts if tensor.is_complex() else torch.stack([parts, torch.zeros_like(parts)], -1))


TABLE.update(
    {
        aten.full_like.default: _full_like,
        aten.zeros_like.default: _zeros_like,
        aten.ones_like.default: _ones_like,
        aten.full.default: _full,
        aten.scalar_tensor.default: _scalar_tensor,
        aten.fill.Scalar: _fill,
        aten._to_copy.default: _to_copy,
    }
)


# Sums and products.


def _pairwise(operator: torch._ops.OpOverload, tensor: Tensor, dims: Any, *args: Any, **kwargs: Any) -> Tensor:
    """What is the same of real and of imaginary parts."""
    over = [dim % tensor.dim() for dim in dims] if dims and tensor.dim() else list(range(tensor.dim()))
    return torch.view_as_complex(operator(torch.view_as_real(tensor), over, *args, **kwargs).contiguous())


def _over_all(operator: torch._ops.OpOverload, tensor: Tensor, **kwargs: Any) -> Tensor:
    return _pairwise(operator, tensor, None, **kwargs)


def _summed(tensor: Tensor, dims: Any, keepdim: bool = False, *, dtype: Any = None) -> Any:
    if dtype not in (None, tensor.dtype):
        return NotImplemented
    return _pairwise(aten.sum.dim_IntList, tensor, dims, keepdim)


def _mean(tensor: Tensor, dims: Any, keepdim: bool = False, *, dtype: Any = None) -> Any:
    if dtype not in (None, tensor.dtype):
        return NotImplemented
    return _pairwise(aten.mean.dim, tensor, dims, keepdim)


def _product(a: Tensor, b: Tensor) -> Any:
    """[real, imaginary] of a times [[real, imaginary], [-imaginary, real]] of b: one product of real matrices."""
    if not (a.is_complex() and b.is_complex()):
        return NotImplemented
    one, other = torch.view_as_real(a), torch.view_as_real(b)
    real, imaginary = other.select(-1, 0), other.select(-1, 1)
    left = torch.cat([one.select(-1, 0), one.select(-1, 1)], -1)
    right = torch.cat([torch.cat([real, imaginary], -1), torch.cat([-imaginary, real], -1)], -2)
    made = torch.matmul(left, right)
    return torch.view_as_complex(torch.stack(made.chunk(2, -1), -1))


TABLE.update(
    {
        aten.sum.dim_IntList: _summed,
        aten.sum.default: lambda tensor, *, dtype=None: _summed(tensor, None, dtype=dtype),
        aten.mean.dim: _mean,
        aten.mean.default: lambda tensor, *, dtype=None: _mean(tensor, None, dtype=dtype),
        aten.mm.default: _product,
        aten.bmm.default: _product,
    }
)


# What only moves numbers, or makes some zero.


def _as_bits(operator: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    def bits(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return [bits(each) for each in value]
        if not isinstance(value, Tensor) or not value.is_complex():
            return value
        if value.dtype != torch.complex64:
            raise NotImplementedError(f"no integer has as many bits as {value.dtype}")
        return value.view(torch.int64)

    made = operator(*map(bits, args), **kwargs)
    if isinstance(made, tuple | list):
        return tuple([each.view(torch.complex64) for each in made])
    return made.view(torch.complex64)


_MOVING = (
    *(aten.cat.default, aten.index.Tensor, aten.index_select.default, aten.gather.default, aten.flip.default),
    *(aten.roll.default, aten.repeat.default, aten.tril.default, aten.triu.default, aten.slice_scatter.default),
    *(aten.select_scatter.default, aten.diagonal_scatter.default, aten.scatter.src, aten.slice_backward.default),
    *(aten.select_backward.default, aten.diagonal_backward.default, aten.index_copy.default, aten.take.default),
    *(aten.diag_embed.default, aten.masked_scatter.default, aten.stack.default),
)
for _operator in _MOVING:
    TABLE[_operator] = partial(_as_bits, _operator)
