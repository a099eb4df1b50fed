"""Matrix products as sums of products, for targets whose kernels hold no contractions, where no library may be called.

    mm(a[m, k], b[k, n])   →   (a[m, k, 1] * b[1, k, n]).sum(k)

Nothing of that size is in memory: the multiplication is part of the kernel that sums.
"""

from collections.abc import Callable
from typing import Any

import torch

from smelt.ops.decompose.table import widen

Tensor = torch.Tensor
aten = torch.ops.aten


def _product(a: Tensor, b: Tensor) -> Tensor:
    terms = widen(a).unsqueeze(-1) * widen(b).unsqueeze(-3)
    return terms.sum(-2)


def product(a: Tensor, b: Tensor) -> Tensor:
    return _product(a, b).to(a.dtype)


def product_and_sum(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    made = _product(a, b)
    made = made if alpha == 1 else made * alpha
    if beta != 0:
        made = made + (widen(bias) if beta == 1 else widen(bias) * beta)
    return made.to(a.dtype)


TABLE: dict[Any, Callable[..., Any]] = {
    aten.mm.default: product,
    aten.bmm.default: product,
    aten.addmm.default: product_and_sum,
    aten.baddbmm.default: product_and_sum,
}
