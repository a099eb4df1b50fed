"""Functions that checks compile: each becomes one kernel or a few."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def pointwise(x: Tensor, y: Tensor) -> Any:
    return torch.where(x > 0, x * y + 1, y.exp()), (x - y).abs().sqrt()


def centered(x: Tensor) -> Any:
    """Normalized rows, and the maximum of each column."""
    centered_rows = x - x.mean(-1, keepdim=True)
    return centered_rows / (centered_rows.square().mean(-1, keepdim=True) + 1e-5).sqrt(), (x * 2).amax(0)


def product(x: Tensor, w: Tensor) -> Tensor:
    return F.gelu(x @ w + 1).softmax(-1)


def normed_product(x: Tensor, w: Tensor) -> Tensor:
    return F.gelu(F.layer_norm(x, (9,)) @ w)
