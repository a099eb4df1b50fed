"""Sample calls for records: small tensors of a dtype, with the values that go wrong first.

    list(unary(torch.float32))  → calls with NaN, infinities, zeros of both signs, an expanded and a 0-dim tensor
"""

import math
from collections.abc import Iterator
from typing import Any

import torch

from smelt.ops.record import Sample, Samples

_FLOATS = (0.0, -0.0, 0.5, -0.5, 1.0, -1.5, 2.5, 3.0, -7.25, 30.0, math.inf, -math.inf, math.nan, 1e-3, 0.1, -2.0)
_INTEGERS = (0, 1, 2, 3, 5, 7, 11, 100, 127, -1, -2, -3, -7, -100, 4, 6)


def tensor(dtype: torch.dtype, shape: tuple[int, ...] = (2, 8), turn: int = 0) -> torch.Tensor:
    """A tensor of `shape` filled with the telling values of its kind, starting at the `turn`-th."""
    count = math.prod(shape)
    if dtype is torch.bool:
        values: list[Any] = [(turn + i) % 3 == 0 for i in range(count)]
    elif dtype.is_floating_point:
        values = [_FLOATS[(turn + i) % len(_FLOATS)] for i in range(count)]
    else:
        found = [_INTEGERS[(turn + i) % len(_INTEGERS)] for i in range(count)]
        values = [abs(v) for v in found] if dtype is torch.uint8 else found
    return torch.tensor(values, dtype=dtype).reshape(shape)


def finite(dtype: torch.dtype, shape: tuple[int, ...] = (3, 4), turn: int = 0) -> torch.Tensor:
    """As `tensor`, without NaN and infinities."""
    made = tensor(dtype, shape, turn)
    return torch.where(torch.isfinite(made), made, torch.ones((), dtype=dtype)) if dtype.is_floating_point else made


def unary(dtype: torch.dtype) -> Iterator[Sample]:
    """One tensor, contiguous, 0-dim, transposed, expanded."""
    yield Sample((tensor(dtype),))
    yield Sample((tensor(dtype, (), 2),))
    yield Sample((tensor(dtype, (3, 4)).t(),))
    yield Sample((tensor(dtype, (1, 4)).expand(3, 4),))


def binary(dtype: torch.dtype) -> Iterator[Sample]:
    """Two tensors: of one dtype, broadcast, 0-dim on either side, of other dtypes."""
    left = tensor(dtype)
    yield Sample((left, tensor(dtype, turn=5)))
    yield Sample((left, tensor(dtype, (8,), 3)))
    yield Sample((left, tensor(dtype, (2, 1), 1)))
    for other in (torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool):
        yield Sample((left, tensor(other, (), 4)))
        yield Sample((tensor(other, (), 3), left))
        yield Sample((left, tensor(other, turn=3)))


def with_numbers(*numbers: Any) -> Samples:
    """A tensor and a Python number."""

    def generate(dtype: torch.dtype) -> Iterator[Sample]:
        for number in numbers:
            yield Sample((tensor(dtype), number))
            yield Sample((tensor(dtype, (), 3), number))

    return generate


def call(*extra: Any, tensors: int = 1, **kwargs: Any) -> Samples:
    """`tensors` tensors of one dtype, then fixed arguments."""

    def generate(dtype: torch.dtype) -> Iterator[Sample]:
        given = tuple(tensor(dtype, turn=3 * i) for i in range(tensors))
        yield Sample((*given, *extra), kwargs)

    return generate


def chain(*several: Samples) -> Samples:
    """The samples of each in turn."""

    def generate(dtype: torch.dtype) -> Iterator[Sample]:
        for samples in several:
            yield from samples(dtype)

    return generate


def fixed(*calls: tuple[tuple[Any, ...], dict[str, Any]]) -> Samples:
    """Calls that take no tensor; every one is tried with `dtype=` set too."""

    def generate(dtype: torch.dtype) -> Iterator[Sample]:
        for args, kwargs in calls:
            yield Sample(args, {**kwargs, "dtype": dtype})

    return generate
