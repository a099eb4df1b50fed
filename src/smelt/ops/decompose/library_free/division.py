"""Division of integers by a tensor where no library may be called: by float64, mended until it is exact.

    x // y   →   ⌊x / y⌋ + ⌊(x - ⌊x / y⌋ · y) / y⌋ + …, and an index that is out of range where y is 0

Processors stop at a zero, and at the least integer divided by -1: kernels divide by neither.
"""

from collections.abc import Callable
from typing import Any

import torch

from smelt.ops.decompose.table import Table, choose, decomposes

Tensor = torch.Tensor
aten = torch.ops.aten

TABLE: Table = {}

_ROUNDS = 2  # of 53 bits each: what is left of 64 is off by one at most


def _parts(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The floor of the quotient, what remains, and the divisor."""
    x, y = aten.broadcast_tensors.default([x.to(torch.int64), y.to(torch.int64)])
    is_zero, is_negated = y == 0, y == -1
    first = torch.arange(1, device=y.device)
    safe = choose(is_zero | is_negated, 1, y) + aten.index.Tensor(first, [is_zero.to(torch.int64)])
    divisor = safe.to(torch.float64)
    quotient: Any = None
    rest = x
    for _ in range(_ROUNDS):
        part = (rest.to(torch.float64) / divisor).floor().to(torch.int64)
        quotient = part if quotient is None else quotient + part
        rest = x - quotient * safe
    below = (rest != 0) & ((rest < 0) != (safe < 0))
    quotient, rest = quotient - below.to(torch.int64), choose(below, rest + safe, rest)
    above = choose(safe < 0, rest <= safe, rest >= safe)
    quotient, rest = quotient + above.to(torch.int64), choose(above, rest - safe, rest)
    return choose(is_negated, -x, quotient), choose(is_negated, 0, rest), y


def _of_integers(compute: Callable[[Tensor, Tensor], Tensor], x: Any, y: Any) -> Any:
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        return NotImplemented
    dtype = torch.result_type(x, y)
    if dtype.is_floating_point or dtype.is_complex or dtype is torch.bool:
        return NotImplemented
    return compute(x, y).to(dtype)


def _truncated(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The quotient without its fraction, and what remains."""
    quotient, rest, divisor = _parts(x, y)
    goes_up = (rest != 0) & (quotient < 0)
    return quotient + goes_up.to(torch.int64), choose(goes_up, rest - divisor, rest)


@decomposes(aten.floor_divide.default, table=TABLE)
def floor_divide(x: Any, y: Any) -> Any:
    return _of_integers(lambda a, b: _parts(a, b)[0], x, y)


@decomposes(aten.div.Tensor_mode, table=TABLE)
def div(x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return NotImplemented
    return floor_divide(x, y) if rounding_mode == "floor" else _of_integers(lambda a, b: _truncated(a, b)[0], x, y)


@decomposes(aten.remainder.Tensor, table=TABLE)
def remainder(x: Any, y: Any) -> Any:
    return _of_integers(lambda a, b: _parts(a, b)[1], x, y)


@decomposes(aten.fmod.Tensor, table=TABLE)
def fmod(x: Any, y: Any) -> Any:
    return _of_integers(lambda a, b: _truncated(a, b)[1], x, y)
