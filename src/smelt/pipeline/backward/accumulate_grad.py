"""Adding a gradient to a leaf, as PyTorch's engine does.

The first gradient becomes `leaf.grad` itself if nobody else holds it and it has the strides of the leaf; otherwise a
copy that has. Later ones are accumulated in place.
"""

from typing import Any

import torch

from smelt.base.torch_originals import BASE
from smelt.symbolic.shapes import is_dense


def accumulate(engine: Any, leaf: torch.Tensor, gradient: torch.Tensor, owned: bool) -> None:
    """Accumulate `gradient` into the leaf; `owned`: nobody else holds it. Grad mode must be off."""
    before = leaf.grad
    if before is None:
        own = gradient if owned and _has_leaf_strides(gradient, leaf) else _copy(gradient, leaf)
        leaf.grad = BASE.detach(own) if own._is_view() else own
    elif type(before) is torch.Tensor and before.layout is torch.strided:
        BASE.add_(before, gradient)
    else:
        accumulate_by_engine(engine, leaf, gradient)


def accumulate_by_engine(engine: Any, leaf: torch.Tensor, gradient: torch.Tensor) -> None:
    """Let the engine accumulate, with all hooks of the leaf and of its node."""
    engine.run_backward((leaf,), (gradient,), False, False, (), allow_unreachable=True, accumulate_grad=True)


def _has_leaf_strides(gradient: torch.Tensor, leaf: torch.Tensor) -> bool:
    return (gradient.stride() == leaf.stride() and gradient.is_contiguous()) or _follows_layout_contract(gradient, leaf)


def _follows_layout_contract(gradient: torch.Tensor, leaf: torch.Tensor) -> bool:
    """PyTorch's rule: the leaf's own strides if it is dense, else row-major; extents of one may have any but zero."""
    if leaf.numel() and not is_dense(leaf.shape, leaf.stride()):
        return gradient.is_contiguous()
    return all(
        have == want or (size == 1 and have != 0)
        for size, have, want in zip(leaf.shape, gradient.stride(), leaf.stride(), strict=True)
    )


def _copy(gradient: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    if leaf.numel() and not is_dense(leaf.shape, leaf.stride()):
        return BASE.clone(gradient, memory_format=torch.contiguous_format)
    return torch.empty_strided(leaf.shape, leaf.stride(), dtype=gradient.dtype, device=gradient.device).copy_(gradient)
