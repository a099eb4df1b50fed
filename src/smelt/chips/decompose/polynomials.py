"""Orthogonal polynomials by their recurrences, in float64, as far as the greatest degree that is asked for.

    legendre_polynomial_p(x, n)   →   Pₖ₊₁ = ((2k + 1) x Pₖ - k Pₖ₋₁) / (k + 1), kept where n > k
"""

import math
from collections.abc import Callable
from typing import Any

import torch

from smelt.chips.decompose.table import DoesNotApply, computes, in_double

Tensor = torch.Tensor
aten = torch.ops.aten

Step = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # k, x, that of degree k and of k - 1 → that of k + 1
_MOST = 4096
_HERMITE = {torch.float64: 512}  # degrees beyond which PyTorch does not compute; 128 for others


def _computes(name: str, first: Callable[[Tensor], Tensor], step: Step, is_hermite: bool = False) -> None:
    def polynomial(x: Any, n: Any) -> Tensor:
        like = x if isinstance(x, Tensor) else n
        dtype = torch.result_type(x, n)
        dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
        wide = [
            in_double(each)
            if isinstance(each, Tensor)
            else torch.full([], float(each), dtype=torch.float64, device=like.device)
            for each in (x, n)
        ]
        at, degree = (each.contiguous() for each in torch.broadcast_tensors(*wide))  # type: ignore[no-untyped-call]
        degree = degree.trunc()
        limit = float(_HERMITE.get(dtype, 128)) if is_hermite else math.inf
        highest = torch.where(degree > limit, 0.0, degree).max().item()
        if not highest <= _MOST:
            raise DoesNotApply("the degree is too high")
        before, now = torch.ones_like(at), first(at)
        found = torch.where(degree < 0.0, 0.0, torch.where(degree == 0.0, before, now))
        for k in range(1, int(highest)):
            before, now = now, step(k, at, now, before)
            found = torch.where(degree == float(k + 1), now, found)
        return torch.where(degree > limit, math.nan, found).to(dtype)

    packet = getattr(aten, f"special_{name}")
    computes(packet.default, packet.x_scalar, packet.n_scalar)(polynomial)


def _chebyshev(k: int, x: Tensor, now: Tensor, before: Tensor) -> Tensor:
    return x * now * 2.0 - before


def _shifted(k: int, x: Tensor, now: Tensor, before: Tensor) -> Tensor:
    return (x * 2.0 - 1.0) * now * 2.0 - before


_FIRST: dict[str, Callable[[Tensor], Tensor]] = {
    "t": lambda x: x,
    "u": lambda x: x * 2.0,
    "v": lambda x: x * 2.0 - 1.0,
    "w": lambda x: x * 2.0 + 1.0,
}


def _at_shifted(first: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: first(x * 2.0 - 1.0)


for _kind, _one in _FIRST.items():
    _computes(f"chebyshev_polynomial_{_kind}", _one, _chebyshev)
    _computes(f"shifted_chebyshev_polynomial_{_kind}", _at_shifted(_one), _shifted)
_computes(
    "hermite_polynomial_h",
    lambda x: x * 2.0,
    lambda k, x, now, before: (x * now - before * float(k)) * 2.0,
    is_hermite=True,
)
_computes(
    "hermite_polynomial_he", lambda x: x, lambda k, x, now, before: x * now - before * float(k), is_hermite=True
)
_computes(
    "laguerre_polynomial_l",
    lambda x: 1.0 - x,
    lambda k, x, now, before: (((2 * k + 1) - x) * now - before * float(k)) / float(k + 1),
)
_computes(
    "legendre_polynomial_p",
    lambda x: x,
    lambda k, x, now, before: (x * now * float(2 * k + 1) - before * float(k)) / float(k + 1),
)
