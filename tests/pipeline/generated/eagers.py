"""What else eager PyTorch might have said of a program: its answers are one choice among several that are as right.

    with Elsewhere(apart=True): program(a)     elements lie apart in memory, so that scalar code computes them
    with Elsewhere(apart=False): program(a)    there are many side by side, so that vector code does
    with Backwards(): program(a)               what is folded is folded from its end
    with OtherNaN(): program(a)                NaN has the other sign
    with OtherZero(): program(a)               of several zeros, the extreme is one of the other sign
    with Rounded(7): program(a)                results that are not exact are a neighbour of what they were

Eager has a scalar and a vector version of a function, and which of them an element gets depends on where it lies: the
last few of a row get the scalar one. Where a formula does not say what becomes of NaN, the two differ.

It folds in an order of its own. A mean that is moved by the difference to each element (`var_mean`) is infinite if only
the last one is, and NaN if another is.

What sign a NaN has that an operator makes, the square root of a negative number, is the processor's choice and the
library's, and nobody's rule; `copysign` and `signbit` show it. Of a row that is normalized or folded it is the sign of
any NaN in it, if there are some: that is a matter of order and of vectors again. If all of them have one sign it is
that one, unless this build of PyTorch loses it, as `logsumexp` does.

Nor is which of several zeros the largest element is: eager's `amax` of the same row is 0 or -0 by where the row lies.
(Not so where it says the place too: `max` along a dim yields the element that stands there.)

And eager rounds. Where a program cancels (the sum of a normalized row) what is left is rounding alone, and so is its
sign, and whatever follows from that: NaN or none behind a logarithm, the outcome of a comparison. This is Monte Carlo
arithmetic: results that float64 says are inexact are moved by one unit in the last place, and what goes into a sum or a
product of matrices by one beforehand, as any order of summation may; one without a right digit may be zero or have the
other sign. What is exact stays so, equal values stay equal (the direction is drawn from the value), so that what is
wrong otherwise still shows.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

Tensor = torch.Tensor
aten = torch.ops.aten
_OF_ROWS = {aten._softmax.default, aten._log_softmax.default, aten.logsumexp.default}
_EXTREMES = {aten.amax.default, aten.amin.default, aten.max.default, aten.min.default}
_PLAIN = {"Tensor", "Optional[Tensor]", "number", "float", "bool", "str", "Optional[number]", "Optional[float]"}
_MANY = 64
"""Copies of an element, so that one at least is in the middle of vectors of any width."""


def modes() -> Iterator[TorchDispatchMode]:
    """For eager's other answers, as many as are asked for."""
    yield Elsewhere(apart=True)
    yield Elsewhere(apart=False)
    yield Backwards()
    yield OtherNaN()
    yield OtherZero()
    for seed in range(40):
        yield Rounded(seed)


def _floats(*values: Any) -> list[Tensor]:
    return [each for each in tree_leaves(values) if isinstance(each, Tensor) and each.is_floating_point()]


def _is_plain(func: Any) -> bool:
    """Whether it makes new tensors, by no chance, of tensors and numbers alone, none of which names a dim."""
    schema = func._schema
    if any(each.alias_info for each in (*schema.arguments, *schema.returns)):
        return False
    return all(str(each.type) in _PLAIN for each in schema.arguments) and not _is_random(func)


def _is_random(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


class Elsewhere(TorchDispatchMode):
    """Runs operators that compute element by element on the same elements at another place."""

    def __init__(self, apart: bool) -> None:
        super().__init__()
        self.apart = apart

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not _is_plain(func) or not isinstance(result, Tensor) or not result.is_floating_point() or kwargs:
            return result
        scalars = result.dim() == 0

        def moved(value: Any) -> Any:
            if not isinstance(value, Tensor) or (value.dim() == 0 and not scalars):
                return value
            line = value.expand(result.shape).reshape(-1)
            if self.apart:
                return torch.stack([line, line], 1)[:, 0]
            return line.repeat(_MANY)

        try:
            there = func(*tree_map(moved, args))
        except RuntimeError:  # it does care for dims
            return result
        count = result.numel()
        if there.dtype != result.dtype or there.numel() != (count if self.apart else count * _MANY):
            return result
        return torch.empty_like(result).copy_(there[:count].view(result.shape))


class Backwards(TorchDispatchMode):
    """Runs reductions to numbers, not those to places, on the same elements from the last to the first."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        made = tree_leaves(result)
        if torch.Tag.reduction not in func.tags or func._schema.is_mutable or len(_floats(made)) != len(made):
            return result
        value, *rest = args
        named = dict(zip((each.name for each in func._schema.arguments), args, strict=False)) | kwargs
        dims = named.get("dim")
        dims = [dims] if isinstance(dims, int) else dims or range(value.dim())
        return func(value.flip(*dims), *rest, **kwargs) if value.dim() else result


class OtherNaN(TorchDispatchMode):
    """Gives the NaN that operators make of tensors and numbers the other sign. Those they are given keep theirs."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        made = _is_plain(func) and not any(bool(each.isnan().any()) for each in _floats(args, kwargs))
        if func in _OF_ROWS:
            free = ~_one_sign(args[0], args[1], keepdim=result.dim() == args[0].dim())
            free |= _loses_sign(func, args[0].device)
            return torch.where(result.isnan() & free, -result, result)
        for each in _floats(result) if made else ():
            each.copy_(torch.where(each.isnan(), -each, each))
        return result


def _one_sign(value: Tensor, dims: Any, keepdim: bool) -> Tensor:
    """Where a row has NaN, and of one sign only."""
    nan, negative = value.isnan(), value.signbit()
    some, others = (aten.amax.default(nan & which, dims, keepdim) for which in (negative, ~negative))
    return some ^ others


@cache
def _loses_sign(func: Any, device: torch.device) -> bool:
    """Whether the only NaN of a row, wherever it stands, comes out with another sign here."""
    dims = [1] if func is aten.logsumexp.default else 1
    rest = () if func is aten.logsumexp.default else (False,)
    one = torch.ones((), device=device)
    for nan in (torch.full_like(one, torch.nan), -torch.full_like(one, torch.nan)):
        given = torch.where(torch.eye(_MANY + 1, dtype=torch.bool, device=device), nan, one)
        for rows in (given, given.t().contiguous().t()):
            if bool((func(rows, dims, *rest).signbit() != nan.signbit()).any()):
                return True
    return False


class OtherZero(TorchDispatchMode):
    """Gives an extreme that is zero the other sign, where a zero of that sign is in the row."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func not in _EXTREMES or not result.is_floating_point():
            return result
        zero = args[0] == 0

        negative = args[0].signbit()
        both = aten.amax.default(zero & negative, *args[1:], **kwargs)
        both = both & aten.amax.default(zero & ~negative, *args[1:], **kwargs)
        return torch.where((result == 0) & both, -result, result)


class Drawn(TorchDispatchMode):
    """Notes what operators draw, or with what was noted yields that again, whatever the dtype."""

    def __init__(self, noted: list[Tensor] | None = None) -> None:
        super().__init__()
        self.noted: list[Tensor] = []
        self.again = None if noted is None else iter(noted)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if _is_random(func):
            for each in tree_leaves(result):
                if self.again is None:
                    self.noted.append(each.clone())
                else:
                    each.copy_(next(self.again))
        return result


class Rounded(TorchDispatchMode):
    """Moves inexact results to a neighbour."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = func._schema
        if _is_random(func) or (not schema.is_mutable and any(each.alias_info for each in schema.returns)):
            return func(*args, **kwargs)
        wide = [_changed(each, lambda t: t.double().clone()) for each in (args, kwargs)]
        if _is_plain(func) and not _floats(args, kwargs):  # of integers, floats are computed in the default dtype
            wide[0] = tree_map(lambda each: each.double() if isinstance(each, Tensor) else each, args)
        near = wide
        if not _is_plain(func):
            near = [_changed(each, lambda t: self._beside(t).double()) for each in (args, kwargs)]
        result = func(*args, **kwargs)
        if not _floats(result):
            return result
        try:
            exact, other = (func(*given[0], **given[1]) for given in (wide, near))
        except RuntimeError:  # it is not written for these dtypes
            return result
        for here, true, beside in zip(_floats(result), _floats(exact), _floats(other), strict=True):
            if here.shape == true.shape == beside.shape and true.dtype == torch.float64:
                moved = self._beside(beside.to(here.dtype))
                moved = torch.where((here - true).abs() > 0.25 * here.abs(), moved * (self.seed % 3 - 1), moved)
                here.copy_(torch.where(_inexact(here, true), moved, here))
        return result

    def _beside(self, value: Tensor) -> Tensor:
        """The number, or the next above or below; zero, infinities and NaN as they are."""
        kind = {8: torch.int64, 4: torch.int32, 2: torch.int16}[value.element_size()]
        bits = value.contiguous().view(kind)
        mixed = (bits.to(torch.int64) + self.seed) * -0x61C8864680B583EB
        mixed = (mixed ^ (mixed >> 29)) * -0x4B47D0C5A1A64B3B >> 33
        moved = (bits + mixed % 3 - 1).to(kind).view(value.dtype)
        return torch.where((value != 0) & value.isfinite() & moved.isfinite(), moved, value)


def _inexact(here: Tensor, true: Tensor) -> Tensor:
    """Where a result is not what float64 says, or of float64, has digits to the end."""
    if here.dtype == torch.float64:
        return here.contiguous().view(torch.int64) & 0xFFF != 0
    return here.double() != true


def _changed(values: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The values with every float tensor changed, and dtypes that are asked for made float64."""

    def one(value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point():
            return change(value)
        return torch.float64 if isinstance(value, torch.dtype) and value.is_floating_point else value

    return tree_map(one, values)
