"""Saved tensors and tangents in the layout that a compiled backward expects, and autocast switched off.

    fit_tangent(gradient, spec, stride)   →   the gradient itself, or its values laid out as the backward reads them
"""

from collections.abc import Sequence
from typing import Any

import torch

from smelt import _native
from smelt.base.torch_originals import BASE
from smelt.ir.tensorspec import WORKSPACE, TensorSpec
from smelt.runtime.autograd.differentiable import Differentiable, Flat


def fit_saved(saved: list[Any], state: Differentiable, hooked: bool) -> None:
    """Bring saved tensors into the expected layout, in the list: saved-tensor hooks may return another one."""
    if state.old_values:
        del saved[-len(state.old_values) :]
    if hooked:
        saved[:] = [fit(tensor, kept.spec) for tensor, kept in zip(saved, state.plan.saved, strict=True)]


def fit_tangent(tangent: torch.Tensor | None, spec: TensorSpec, stride: Sequence[int]) -> torch.Tensor:
    plain = tangent is not None and _is_plain(tangent) and tangent.stride() == stride
    return tangent if tangent is not None and plain else fit(tangent, spec)


def without_autocast(function: Flat, inputs: Sequence[Any]) -> Any:
    """Call a compiled function with autocast off: its casts are in the graph already."""
    if torch._C._is_any_autocast_enabled():
        return _native.within(torch._C._DisableAutocast(), function, *inputs)
    return function(*inputs)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor's memory holds its values: strided, and not lazily negated, conjugated or zero."""
    lazy = tensor.is_neg() or tensor.is_conj() or tensor._is_zerotensor()
    return tensor.layout is torch.strided and not lazy


def fit(tensor: torch.Tensor | None, spec: TensorSpec) -> torch.Tensor:
    """A gradient or saved tensor in the layout the backward was traced with; None becomes zeros."""
    if tensor is not None and spec.shape == WORKSPACE:
        return tensor
    fitted = torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device=spec.device)
    if tensor is None:
        return BASE.zero_(fitted)
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    return BASE.copy_(fitted, tensor)
