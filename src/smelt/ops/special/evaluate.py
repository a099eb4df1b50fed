"""How a special function gets into the table, and what they are all written with.

    @special(aten.lgamma.default)
    def lgamma(x): ...            x is float64; the result is rounded to the dtype that the operator returns
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from smelt.ops.decompose.table import Table, choose, decomposes

Tensor = torch.Tensor
Function = Callable[[Tensor], Tensor]

TABLE: Table = {}
_takes_apart = partial(decomposes, table=TABLE)


def special(*ops: Any) -> Callable[[Function], Function]:
    """Use a function of float64 for operators of one tensor."""

    def enter(function: Function) -> Function:
        def in_double(x: Tensor) -> Any:
            if x.is_complex():
                return NotImplemented
            return function(x.to(torch.float64)).to(x.dtype if x.is_floating_point() else torch.get_default_dtype())

        for op in ops:
            _takes_apart(op)(in_double)
        return function

    return enter


def polynomial(coefficients: Sequence[float], t: Tensor) -> Tensor:
    """Σ cₖ tᵏ, by Horner's rule."""
    *rest, highest = coefficients
    found = t * highest + rest.pop()
    for each in reversed(rest):
        found = found * t + each
    return found


def on(low: float, high: float, x: Tensor) -> Tensor:
    """-1 at `low` to 1 at `high`, which is what fitted polynomials take."""
    return x * (2 / (high - low)) - (high + low) / (high - low)


def where(condition: Tensor, yes: Tensor | float, no: Tensor | float) -> Tensor:
    return choose(condition, yes, no)


def of_pi(x: Tensor) -> Tensor:
    """sin πx but for its sign, without the error that πx has."""
    return ((x - x.round()) * math.pi).sin()
