"""Operators that take Python numbers, at elements just below, at and just above them: what eager says, to the bit.

A number need not be one of the tensor's dtype. Some operators round it to that, others compare with the number itself;
what is chosen and compared is exact, so it must be eager's, zeros with their signs. Numbers are written in the program
(one graph for all), or given at each call.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt.ir.scalar import SCALAR_OPS
from smelt.ops.decompositions import DECOMPOSITIONS
from tests.fuse.running import fused
from tests.kernel_reference import run_program
from tests.targets import seeded

Tensor = torch.Tensor
Case = tuple[Callable[..., Any], Sequence[tuple[Any, ...]]]
NARROW = (torch.float16, torch.bfloat16)
FLOATS = (*NARROW, torch.float32, torch.float64)
INTEGERS = (torch.int8, torch.uint8, torch.int64, torch.bool)
INF, NAN = math.inf, math.nan

_BOUNDS = (0.1, -0.3, 1 / 3, 1e-9, -1e-9, 0.0, 6.0, 1e-40, INF, -INF)
_ONE = [(number,) for number in _BOUNDS]
_TWO = [(-0.1, 0.1), (-1.0, 1.0), (0.0, 6.0), (-1e-9, 1e-9), (1e-40, 2e-40), (-INF, 0.1), (1 / 3, INF), (0.1, 0.1)]
_STEPS = [(number,) for number in (0.1, -0.3, 1 / 3, 3.0, 2.0, 7, -3)]

EXACT: dict[str, Case] = {
    "hardtanh": (F.hardtanh, _TWO),
    "relu6": (F.relu6, [()]),
    "threshold": (F.threshold, [(bound, filler) for bound in _BOUNDS for filler in (0.1, -20.0)]),
    "clamp": (torch.clamp, [*_TWO, (0.3, -0.3), (NAN, 0.1), (-0.1, NAN)]),
    "clamp_min": (torch.clamp_min, [*_ONE, (NAN,)]),
    "clamp_max": (torch.clamp_max, [*_ONE, (NAN,)]),
    "hardshrink": (F.hardshrink, _ONE),
    "softshrink": (F.softshrink, [(number,) for number in (0.1, 1 / 3, 1e-9, 0.0)]),
    "leaky_relu": (F.leaky_relu, _ONE),
    "nan_to_num": (torch.nan_to_num, [(0.1, 0.3, -0.3), (1e-40, 6.0, -6.0)]),
    "masked_fill": (lambda x, number: x.masked_fill(x > 0.2, number), [*_ONE, (NAN,)]),
    "where": (lambda x, number: torch.where(x > 0.2, x, number), [*_ONE, (NAN,)]),
    "add": (torch.add, _ONE),
    "sub": (torch.sub, _ONE),
    "mul": (torch.mul, _ONE),
    "div": (torch.div, _STEPS),
    "foreach": (lambda x, number: torch._foreach_clamp_min([x, x], number)[1], _ONE[:4]),
}
WITHOUT_GRADIENT: dict[str, Case] = {
    **{
        name: (getattr(torch, name), [*_ONE, (NAN,), (2049,), (257,), (2**24 + 1,), (2**53 + 1,)])
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
    },
    "floor_divide": (torch.floor_divide, _STEPS),
    "div, floor": (lambda x, number: torch.div(x, number, rounding_mode="floor"), _STEPS),
    "div, trunc": (lambda x, number: torch.div(x, number, rounding_mode="trunc"), _STEPS),
    "remainder": (torch.remainder, _STEPS),
    "fmod": (torch.fmod, _STEPS),
    "isclose": (lambda x, by: torch.isclose(x, x.flip(0), rtol=by, atol=0.01), [(0.1,), (1 / 3,)]),
}
_WHOLE = [
    (number,) for number in (0.1, -0.5, 2.5, 126.7, 1e300, -INF, NAN, 1, -1, 127, 128, 255, 256, -129, 2**40, True)
]
OF_INTEGERS: dict[str, Case] = {
    **{name: (getattr(torch, name), _WHOLE) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "clamp": (torch.clamp, [(2, 5), (-1, 2.5), (0.5, 1), (5, 2)]),
    "where": (lambda x, number: torch.where(x > 0, x, number), [(0.1,), (3,), (300,), (True,)]),
    "floor_divide": (torch.floor_divide, [(3,), (0.3,), (7,)]),
    "remainder": (torch.remainder, [(3,), (0.3,), (7,)]),
}


def _beside(numbers: Tensor) -> Tensor:
    """The numbers, and those next to them on both sides."""
    bits = numbers.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[numbers.element_size()])
    return torch.cat([(bits + step).view(numbers.dtype) for step in (0, 1, -1, 2)])


def _elements(dtype: torch.dtype, given: Sequence[tuple[Any, ...]], widest: float = INF) -> Tensor:
    """As many as fill vectors: the last few of a row eager computes by other code, of which zeros have other signs."""
    numbers = [float(each) for some in given for each in some if not math.isnan(each)]
    if not dtype.is_floating_point:
        limits = (0, 1) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
        near = [int(each) + step for each in numbers if math.isfinite(each) for step in (-1, 0, 1)]
        whole = [each for each in (*near, *limits, 0, 1, 2, 3) if limits[0] <= each <= limits[1]]
        return torch.tensor((whole * 64)[: max(64, len(whole) // 64 * 64)]).to(dtype)
    known = torch.tensor([*numbers, *(-each for each in numbers), 1.0, 0.5, 3.0, -6.0], dtype=torch.float64).to(dtype)
    least = _beside(torch.zeros(1, dtype=dtype))[1:2]
    special = torch.tensor([0.0, -0.0, INF, -INF, NAN, torch.finfo(dtype).max, torch.finfo(dtype).tiny]).to(dtype)
    found = torch.cat([_beside(known.unique()), special, least, -least, torch.linspace(-4, 4, 50).to(dtype)])
    found = found[(found.abs() <= widest) | found.isnan()]
    return torch.cat([found, found])[: -(-len(found) // 64) * 64]


def _same(mine: Any, eager: Any) -> Tensor:
    assert mine.dtype is eager.dtype and mine.shape == eager.shape
    if not eager.is_floating_point():
        return torch.as_tensor(mine == eager)
    return (mine.isnan() & eager.isnan()) | ((mine == eager) & (mine.signbit() == eager.signbit()))


def _assert_same(mine: Any, eager: Any, x: Tensor, given: Any) -> None:
    wrong = ~_same(mine, eager)
    assert not wrong.any(), f"{given}: of {x[wrong][:4]} {mine[wrong][:4]} instead of {eager[wrong][:4]}"


def _held(given: Sequence[tuple[Any, ...]], dtype: torch.dtype) -> list[tuple[Any, ...]]:
    """Those that eager takes for this dtype."""
    most = torch.finfo(dtype).max
    return [some for some in given if all(abs(each) <= most or not math.isfinite(each) for each in some)]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", EXACT)
def test_floats_and_their_gradients(name: str, dtype: torch.dtype) -> None:
    function, given = EXACT[name][0], _held(EXACT[name][1], dtype)
    x = _elements(dtype, given)
    weights = torch.linspace(-1.5, 2, len(x)).to(dtype)

    def program(*inputs: Tensor) -> list[Tensor]:
        return [function(each, *some) for each, some in zip(inputs, given, strict=True)]

    outcomes = []
    for each in (smelt.compile(program), program):
        inputs = [x.clone().requires_grad_(name != "foreach") for _ in given]
        made = each(*inputs)
        if name != "foreach":
            torch.autograd.backward(made, [weights] * len(made))
        outcomes.append((made, [tensor.grad for tensor in inputs]))
    for place, some in enumerate(given):
        _assert_same(outcomes[0][0][place], outcomes[1][0][place], x, some)
        if name != "foreach":
            _assert_same(outcomes[0][1][place], outcomes[1][1][place], x, ("gradient", some))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", WITHOUT_GRADIENT)
def test_comparisons_and_quotients(name: str, dtype: torch.dtype) -> None:
    function, given = WITHOUT_GRADIENT[name]
    x = _elements(dtype, given, widest=1e4 if given is _STEPS else INF)  # of a huge quotient eager knows no remainder

    def program(x: Tensor) -> list[Tensor]:
        return [function(x, *some) for some in given]

    for mine, eager, some in zip(smelt.compile(program)(x), program(x), given, strict=True):
        _assert_same(mine, eager, x, some)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("name", OF_INTEGERS)
def test_integers(name: str, dtype: torch.dtype) -> None:
    function, given = OF_INTEGERS[name]
    x = _elements(dtype, given)
    for some in given:
        smelt.reset()
        try:
            eager = function(x, *some)
        except RuntimeError:
            with pytest.raises(RuntimeError):
                smelt.compile(lambda x: function(x, *some))(x)  # noqa: B023
        else:
            _assert_same(smelt.compile(lambda x: function(x, *some))(x), eager, x, some)  # noqa: B023


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("name", ["hardtanh", "threshold", "clamp", "masked_fill", "add", "lt", "floor_divide"])
def test_numbers_given_at_each_call(name: str, dtype: torch.dtype) -> None:
    function, every = (EXACT | WITHOUT_GRADIENT)[name]
    given = [some for some in _held(every, dtype) if all(type(each) is float and not math.isnan(each) for each in some)]
    x = _elements(dtype, given, widest=1e4 if every is _STEPS else INF)
    compiled = smelt.compile(lambda x, *some: function(x, *some), dynamic=True)
    for some in given[:6]:
        mine, eager = x.clone().requires_grad_(), x.clone().requires_grad_()
        made, theirs = compiled(mine, *some), function(eager, *some)
        _assert_same(made.detach(), theirs.detach(), x, some)
        if theirs.requires_grad and name != "floor_divide":
            made.sum().backward()
            theirs.sum().backward()
            _assert_same(mine.grad, eager.grad, x, ("gradient", some))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ["hardtanh", "clamp", "clamp_min", "clamp_max"])
def test_zeros_where_the_processor_takes_the_second_of_two(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on x86: beside a bound that is zero in the tensor's dtype an element that is zero stays as it is."""
    for op, chosen in (("maximum", torch.gt), ("minimum", torch.lt)):
        second = functools.partial(_of_two, chosen)
        monkeypatch.setitem(SCALAR_OPS, op, dataclasses.replace(SCALAR_OPS[op], reference=second))
    zeros = torch.tensor([0.0, -0.0] * 8).to(dtype)
    least = 0.1 * float(_beside(torch.zeros(1, dtype=dtype))[1])
    for number in (0.0, -0.0, least, -least):
        given = (number, abs(number)) if name in ("hardtanh", "clamp") else (number,)
        program = fused(lambda x: EXACT[name][0](x, *given), zeros, decompositions=DECOMPOSITIONS)  # noqa: B023
        (made,) = run_program(program, [zeros])
        assert _same(made, zeros).all(), given


def _of_two(chosen: Callable[[Tensor, Tensor], Tensor], first: Tensor, second: Tensor) -> Tensor:
    return torch.where(chosen(first, second) | first.isnan(), first, second)


OUT_OF_RANGE: dict[str, Callable[[Tensor], Any]] = {
    "clamp": lambda x: x.clamp(-1e5, 1e5),
    "clamp_min": lambda x: x.clamp_min(1e5),
    "hardtanh": lambda x: F.hardtanh(x, -1e5, 1.0),
    "threshold": lambda x: F.threshold(x, 0.1, 1e5),
    "softshrink": lambda x: F.softshrink(x, 1e5),
    "masked_fill": lambda x: x.masked_fill(x > 0, 1e5),
    "full_like": lambda x: torch.full_like(x, 1e5) + x,
    "alpha": lambda x: torch.add(x, x, alpha=1e5),
    "minus alpha": lambda x: torch.sub(x, x, alpha=70000),
    "a bool for alpha": lambda x: torch.add(x, x.flip(0), alpha=True),
    "pow": lambda x: x**1e5,
    "foreach": lambda x: torch._foreach_maximum([x], 1e5)[0],
    "alpha of integers": lambda x: torch.add(x.to(torch.int8), x.to(torch.int8), alpha=300),
}


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_a_number_out_of_range_is_refused_as_eager_does(name: str) -> None:
    function, x = OUT_OF_RANGE[name], torch.randn(64).to(torch.float16)
    with pytest.raises(RuntimeError):
        function(x)
    with pytest.raises(RuntimeError):
        smelt.compile(function)(x)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_powers_and_multiples_by_numbers_as_rounded(dtype: torch.dtype) -> None:
    """What eager rounds first: an exponent, a base, `alpha`."""
    x = torch.linspace(0.1, 40, 256).to(dtype)

    def program(x: Tensor) -> tuple[Tensor, ...]:
        zeros = torch.zeros_like(x)
        return x**0.1, x ** (1 / 3), 0.1**x, torch.add(zeros, x, alpha=0.1), torch.sub(zeros, x, alpha=1 / 3)

    for mine, eager in zip(smelt.compile(program)(x), program(x), strict=True):
        torch.testing.assert_close(mine, eager, rtol=torch.finfo(dtype).eps, atol=1e-6)


def test_a_weight_that_is_a_half_in_float32() -> None:
    """Which of two formulas eager takes goes by the number as the tensor's dtype has it."""
    x = torch.tensor([INF, -INF, 1.0, 2.0] * 16)
    y = torch.tensor([1.0, 2.0, INF, -INF] * 16)

    def program(x: Tensor, y: Tensor) -> Tensor:
        return torch.lerp(x, y, 0.49999999999)

    _assert_same(smelt.compile(program)(x, y), program(x, y), x, "weight")


ZEROS: dict[str, Callable[[Tensor], Any]] = {
    "max along the last": lambda x: torch.max(x, -1),
    "max along the first": lambda x: torch.max(x, 0),
    "min along the last": lambda x: torch.min(x, -1, keepdim=True),
    "min along the first": lambda x: torch.min(x, 0),
    "cummax along the last": lambda x: torch.cummax(x, -1),
    "cummax along the first": lambda x: torch.cummax(x, 0),
    "cummin along the last": lambda x: torch.cummin(x, -1),
    "sort": lambda x: torch.sort(x, dim=-1, stable=True),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ZEROS)
def test_which_of_several_zeros(name: str, dtype: torch.dtype) -> None:
    """Where the place is told, the value is the element that stands there."""
    generator = seeded(1)
    compiled = smelt.compile(lambda x: (*ZEROS[name](x), ZEROS[name](x)[0] * 1), dynamic=False)
    for sign in (1.0, -1.0):
        for shape in ((9, 5), (33, 70)):
            kinds = torch.tensor([0.0, -0.0, sign])[torch.randint(3, shape, generator=generator)]
            x = kinds.to(dtype)
            for mine, eager in zip(compiled(x), (*ZEROS[name](x), ZEROS[name](x)[0] * 1), strict=True):
                assert _same(mine, eager).all(), (name, shape, sign)


MOVED: dict[str, Callable[[Tensor], Tensor]] = {
    "max along a dim": lambda x: torch.max(x, -2, keepdim=True)[0],
    "min along a dim": lambda x: torch.min(x, -1)[0],
    "cummax": lambda x: torch.cummax(x, -2)[0],
    "where": lambda x: torch.where(x > 0, x, x.flip(0)),
    "masked_fill": lambda x: x.masked_fill(x > 0, 0.5),
    "cat": lambda x: torch.cat([x, x.flip(1)], 1),
    "gather": lambda x: x[torch.tensor([1, 0, 1])],
    "a copy": lambda x: x.transpose(0, 1).contiguous(),
    "the other sign": lambda x: torch.where(x > 0, -x, x),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", MOVED)
def test_signs_of_nan_that_is_only_moved(name: str, dtype: torch.dtype) -> None:
    """On some machines each NaN that eager turns to bfloat16 is one with a sign, which `signbit` shows."""
    x = torch.linspace(-2, 2, 2 * 33 * 2 * 9).to(dtype).view(2, 33, 2, 9)
    bits = x.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]).view(-1)
    bits[[5, 720]], bits[[100, 700, 1187]] = torch.iinfo(bits.dtype).max, -1
    compiled = smelt.compile(lambda x: (MOVED[name](x), torch.signbit(MOVED[name](x))))
    made, signs = compiled(x)
    assert signs.equal(torch.signbit(MOVED[name](x))) and signs.equal(torch.signbit(made))
