"""Operators that draw random numbers, made of words of 32 bits, for programs that have a generator of their own.

    bernoulli(x, 0.9)   →  random_words(x.numel()) < 0.9 · 2³²
    rand([3])           →  (random_words(3) >> 8) · 2⁻²⁴
    multinomial(p, 1)   →  argmax(p / exponential), the first of it

They are distributed as PyTorch's, but are other numbers than its generator draws.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch

from smelt.device.host_library import HOST
from smelt.ir.nodes.random_words import RANDOM_WORDS
from smelt.ops.decompose.sorting import sort, topk
from smelt.ops.decompose.table import Table, decomposes

Tensor = torch.Tensor
aten = torch.ops.aten

Function = TypeVar("Function", bound=Callable[..., Any])
TABLE: Table = {}
_takes_apart = partial(decomposes, table=TABLE)
_WORD = 1 << 32
_BITS = {torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}


def _words(shape: Sequence[Any], device: Any) -> Tensor:
    count = math.prod(shape)
    words: Tensor = aten.view.default(RANDOM_WORDS(count, device=torch.device(device or HOST)), list(shape))
    return words


def _shifted(words: Tensor, bits: int) -> Tensor:
    return words // (1 << bits)


def _uniform(shape: Sequence[Any], dtype: torch.dtype | None, device: Any) -> Tensor:
    """From 0 up to 1, which is not reached."""
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if dtype is torch.float64:
        high, low = _words(shape, device), _words(shape, device)
        return (_shifted(high, 5) * (1 << 26) + _shifted(low, 6)).to(dtype) * 2.0**-53
    bits = _BITS[dtype]
    return (_shifted(_words(shape, device), 32 - bits).to(torch.float32) * 2.0**-bits).to(dtype)


def _above_zero(shape: Sequence[Any], dtype: torch.dtype, device: Any) -> Tensor:
    """Above 0 and at most 1, in float32 or float64."""
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    return (_words(shape, device).to(wide) + 1.0) * 2.0**-32


def _normal(shape: Sequence[Any], dtype: torch.dtype | None, device: Any) -> Tensor:
    """By the transform of Box and Muller: a radius and an angle."""
    dtype = torch.get_default_dtype() if dtype is None else dtype
    radius = (_above_zero(shape, dtype, device).log() * -2.0).sqrt()
    angle = _above_zero(shape, dtype, device) * (2 * math.pi)
    return (radius * angle.cos()).to(dtype)


def _exponential(shape: Sequence[Any], dtype: torch.dtype, device: Any) -> Tensor:
    return (-_above_zero(shape, dtype, device).log() + torch.finfo(torch.float32).tiny).to(dtype)


def _integers(shape: Sequence[Any], low: int, high: int, dtype: torch.dtype | None, device: Any) -> Any:
    if high - low > 1 << 31:
        return NotImplemented
    numbers = _shifted(_words(shape, device) * (high - low), 32) + low
    return numbers.to(torch.int64 if dtype is None else dtype)


@_takes_apart(aten.bernoulli.p)
def bernoulli(x: Tensor, p: float = 0.5, *, generator: Any = None) -> Any:
    if generator is not None:
        return NotImplemented
    return (_words(x.shape, x.device) < round(p * _WORD)).to(x.dtype)


@_takes_apart(aten.bernoulli.default)
def bernoulli_of_each(p: Tensor, *, generator: Any = None) -> Any:
    if generator is not None:
        return NotImplemented
    return (_words(p.shape, p.device).to(torch.float64) < p.to(torch.float64) * _WORD).to(p.dtype)


# What is new has its elements row by row, and what is like another tensor is laid out as that is.


def rand(size: Sequence[Any], *, dtype: Any = None, device: Any = None, **rest: Any) -> Any:
    return _uniform(size, dtype, device)


def randn(size: Sequence[Any], *, dtype: Any = None, device: Any = None, **rest: Any) -> Any:
    return _normal(size, dtype, device)


def randint(high: int, size: Sequence[Any], *, dtype: Any = torch.int64, device: Any = None, **rest: Any) -> Any:
    return _integers(size, 0, high, dtype, device)


def randint_from(
    low: int, high: int, size: Sequence[Any], *, dtype: Any = torch.int64, device: Any = None, **rest: Any
) -> Any:
    return _integers(size, low, high, dtype, device)


def randperm(n: int, *, dtype: Any = torch.int64, device: Any = None, **rest: Any) -> Any:
    return sort(_words([n], device))[1].to(dtype)


TABLE[aten.rand.default], TABLE[aten.randn.default] = rand, randn
TABLE[aten.randint.default], TABLE[aten.randint.low] = randint, randint_from
TABLE[aten.randperm.default] = randperm


def _fills(op: Any) -> Callable[[Function], Function]:
    """For an operator that fills a tensor, whatever was in it: one whose elements are row by row."""

    def enter(function: Function) -> Function:
        def decomposition(x: Tensor, *args: Any, generator: Any = None, **kwargs: Any) -> Any:
            if generator is not None or not x.is_contiguous() or x.dtype not in (*_BITS, torch.float64):
                return NotImplemented
            return function(x, *args, **kwargs)

        TABLE[op] = decomposition
        return function

    return enter


@_takes_apart(aten.rand_like.default)
def rand_like(x: Tensor, *, dtype: Any = None, **rest: Any) -> Any:
    return _uniform(x.shape, dtype or x.dtype, x.device)


@_takes_apart(aten.randn_like.default)
def randn_like(x: Tensor, *, dtype: Any = None, **rest: Any) -> Any:
    return _normal(x.shape, dtype or x.dtype, x.device)


@_fills(aten.uniform.default)
def uniform(x: Tensor, low: float = 0.0, high: float = 1.0) -> Any:
    return _uniform(x.shape, x.dtype, x.device) * (high - low) + low


@_fills(aten.normal_functional.default)
def normal(x: Tensor, mean: float = 0.0, std: float = 1.0) -> Any:
    return _normal(x.shape, x.dtype, x.device) * std + mean


@_fills(aten.exponential.default)
def exponential(x: Tensor, rate: float = 1.0) -> Any:
    return _exponential(x.shape, x.dtype, x.device) / rate


def multinomial(p: Tensor, count: int, replacement: bool = False, *, generator: Any = None) -> Any:
    if generator is not None or p.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    if not replacement:
        return topk(p / _exponential(p.shape, p.dtype, p.device), count)[1].contiguous()
    shape = [*p.shape[:-1], count, p.shape[-1]]
    return (aten.unsqueeze.default(p, -2) / _exponential(shape, p.dtype, p.device)).argmax(-1)


TABLE[aten.multinomial.default] = multinomial
