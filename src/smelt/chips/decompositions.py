"""Operators without a kernel, as calls of others that have some: PyTorch's decompositions, and ours where it has none.

    mvlgamma(x, p)   →   arange, add, lgamma, sum: each a kernel          (PyTorch's, `torch._decomp`)

A decomposition runs on the chip's own tensors. One that asks for its own operator again has said nothing: the host
computes that.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch._decomp import decomposition_table

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


_OURS: dict[torch._ops.OpOverload, Decomposition] = {
    aten.soft_margin_loss_backward.default: _soft_margin_loss_backward,
}

IN_DOUBLE = (aten.grid_sampler_2d.default, aten.upsample_bicubic2d.default, aten.upsample_bicubic2d.vec)
"""Whose weights lose too much in float32: computed in float64 where a chip has it."""


def decomposition_of(operator: torch._ops.OpOverload) -> Decomposition | None:
    """A function that computes an operator by others; None if there is none."""
    if operator._schema.is_mutable:
        return None
    return _OURS.get(operator) or decomposition_table.get(operator)


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
