"""ATen's operators of reflections: QR, and products with Q by what `geqrf` returns."""

from typing import Any

import torch

from smelt.chips.linear_algebra.matrices import given_back, identity, taken, upper
from smelt.chips.linear_algebra.reflections import factored, multiplied

Tensor = torch.Tensor
aten = torch.ops.aten


def _scales(tau: Tensor, like: Tensor) -> Tensor:
    count = tau.shape[:-1].numel()
    return tau.to(like.dtype).contiguous().view(count, 1, tau.shape[-1])


def geqrf(a: Tensor) -> tuple[Tensor, Tensor]:
    made, scales = factored(taken(a))
    columns = given_back(made, a).mT.contiguous().mT  # as LAPACK lays them out
    return columns, scales.to(a.dtype).view(*a.shape[:-2], scales.shape[2])


def qr(a: Tensor, mode: str = "reduced") -> Any:
    if mode not in ("reduced", "complete", "r"):
        return NotImplemented
    made, scales = factored(taken(a))
    count, rows, cols = made.shape
    wanted = rows if mode == "complete" else min(rows, cols)
    right = made[:, :wanted].contiguous()
    right = upper(right)
    if mode == "r":
        return torch.empty([0], dtype=a.dtype, device=a.device), given_back(right, a)
    left = multiplied(made, scales, identity([count, rows, wanted], made))
    return given_back(left, a), given_back(right, a)


def householder_product(a: Tensor, tau: Tensor) -> Tensor:
    vectors = taken(a)
    return given_back(multiplied(vectors, _scales(tau, vectors), identity(vectors.shape, vectors)), a)


def ormqr(a: Tensor, tau: Tensor, other: Tensor, left: bool = True, transpose: bool = False) -> Tensor:
    if not left:
        return ormqr(a, tau, other.mT, True, not transpose).mT
    vectors = taken(a)
    return given_back(multiplied(vectors, _scales(tau, vectors), taken(other), transpose), other)


TABLE: dict[torch._ops.OpOverload, Any] = {
    aten.geqrf.default: geqrf,
    aten.linalg_qr.default: qr,
    aten.linalg_householder_product.default: householder_product,
    aten.ormqr.default: ormqr,
}
