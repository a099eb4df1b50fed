"""Operators without a kernel, as calls of others that have some: PyTorch's decompositions, and ours where it has none.

    mvlgamma(x, p)   →   arange, add, lgamma, sum: each a kernel          (PyTorch's, `torch._decomp`)

A decomposition runs on the chip's own tensors. One that asks for its own operator again has said nothing: the host
computes that.
"""

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch._decomp import decomposition_table

from smelt.chips import complex_numbers, fourier
from smelt.chips.linear_algebra import orthogonal, solving, spectra
from smelt.dispatch import tensors

aten = torch.ops.aten

Decomposition = Callable[..., Any]


class Circular(Exception):
    """A decomposition has come back to the operator that it is for."""


def _soft_margin_loss_backward(
    grad: torch.Tensor, tensor: torch.Tensor, target: torch.Tensor, reduction: int
) -> torch.Tensor:
    """As PyTorch computes it on the CPU. Its decomposition takes 1 from what is nearly 1."""
    found = -target * grad * torch.sigmoid(-target * tensor)
    return found / tensor.numel() if reduction == 1 else found


def _angle(tensor: torch.Tensor) -> torch.Tensor:
    """Of real numbers."""
    numbers = tensor if tensor.is_floating_point() else tensor.to(torch.get_default_dtype())
    return torch.where(numbers < 0, math.pi, torch.where(numbers.isnan(), numbers, 0.0))


def _padded(tensor: torch.Tensor, pad: Sequence[int], value: Any = 0) -> torch.Tensor:
    """The tensor without what is cut off, in a larger one that is filled."""
    shape = torch.nn.functional.pad(tensors.on_meta(tensor), list(pad), value=value).shape
    made = torch.full(shape, value, dtype=tensor.dtype, device=tensor.device)
    inner, kept = made, tensor
    for place in range(len(pad) // 2):
        dim, before, after = tensor.dim() - 1 - place, pad[2 * place], pad[2 * place + 1]
        kept = kept.narrow(dim, max(-before, 0), kept.shape[dim] - max(-before, 0) - max(-after, 0))
        inner = inner.narrow(dim, max(before, 0), kept.shape[dim])
    inner.copy_(kept)
    return made


def _product_of_nothing(one: torch.Tensor, other: torch.Tensor) -> Any:
    if one.numel() and other.numel():
        return NotImplemented
    return torch.zeros([*one.shape[:-1], other.shape[-1]], dtype=one.dtype, device=one.device)


def _sum_of_nothing(
    tensor: torch.Tensor, dims: Any, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    if tensor.numel():
        return NotImplemented
    made = torch.sum(tensors.on_meta(tensor), dims, keepdim, dtype=dtype)
    return torch.zeros(made.shape, dtype=made.dtype, device=tensor.device)


_OURS: dict[torch._ops.OpOverload, Decomposition] = {
    aten.soft_margin_loss_backward.default: _soft_margin_loss_backward,
    aten.angle.default: _angle,
    aten.fill.Scalar: torch.full_like,
    aten.constant_pad_nd.default: _padded,
    aten.mm.default: _product_of_nothing,
    aten.bmm.default: _product_of_nothing,
    aten.sum.dim_IntList: _sum_of_nothing,
    **fourier.TABLE,
    **solving.TABLE,
    **orthogonal.TABLE,
    **spectra.TABLE,
}

IN_DOUBLE = (aten.grid_sampler_2d.default, aten.upsample_bicubic2d.default, aten.upsample_bicubic2d.vec)
"""Whose weights lose too much in float32: computed in float64 where a chip has it."""


def decomposition_of(
    operator: torch._ops.OpOverload, args: Any, dtypes: Iterable[torch.dtype]
) -> Decomposition | None:
    """A function that computes an operator on such arguments, with results of these dtypes, by others; None if there is
    none."""
    of_pairs = complex_numbers.TABLE if complex_numbers.is_complex(args, dtypes) else {}
    if operator._schema.is_mutable:
        twin = _twin(operator)
        return None if twin is None else partial(_written, of_pairs.get(twin, twin))
    if operator in of_pairs:
        return of_pairs[operator]
    return _OURS.get(operator) or decomposition_table.get(operator)


def _twin(operator: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """The operator that returns what this one writes."""
    schema = operator._schema
    name, overload = schema.name.partition("::")[2], operator._overloadname
    written = [each.name for each in schema.arguments if each.alias_info is not None and each.alias_info.is_write]
    if written == ["self"] and name.endswith("_"):
        name = name[:-1]
    elif written == ["out"] and overload.endswith("out"):
        overload = overload.removesuffix("out").removesuffix("_") or "default"
    else:
        return None
    return getattr(getattr(aten, name, None), overload, None)


def _written(twin: Decomposition, *args: Any, out: torch.Tensor | None = None, **kwargs: Any) -> Any:
    """By the twin, and a copy."""
    target: torch.Tensor = args[0] if out is None else out
    made = twin(*args, **kwargs)
    if made.dtype != target.dtype or made.shape != target.shape:
        return NotImplemented  # an error, or a cast, or memory that grows
    target.copy_(made)
    return ()


def lays_out(operator: torch._ops.OpOverload) -> bool:
    """Whether results that nobody can describe beforehand are laid out by a decomposition of ours."""
    return operator in _OURS


_running = threading.local()


@contextmanager
def _entered(operator: torch._ops.OpOverload) -> Iterator[None]:
    stack: list[torch._ops.OpOverload] = _running.__dict__.setdefault("operators", [])
    if operator in stack:
        raise Circular(str(operator))
    stack.append(operator)
    try:
        yield
    finally:
        stack.pop()


def decomposed(
    operator: torch._ops.OpOverload, rule: Decomposition, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, ...]:
    """The results of an operator, computed by its decomposition."""
    with _entered(operator), torch.no_grad():
        found = rule(*args, **kwargs)
    if found is NotImplemented:
        raise Circular(str(operator))
    return tuple(found) if isinstance(found, tuple | list) else (found,)
