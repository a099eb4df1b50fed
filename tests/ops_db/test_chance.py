"""The rule itself: kernels that are right in another way pass, and those that are a little wrong do not.

Each stands in for compiled code, beside the function that eager runs.
"""

import importlib
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import smelt
from tests.ops_db.accuracy import Change, Mode, eager_errors
from tests.ops_db.chance import Chance, rounded
from tests.ops_db.comparing import changed, compare
from tests.simt_host.offer import SIMT_HOST
from tests.targets import on_target, seeded

Tensor = torch.Tensor
Function = Callable[..., Any]


def _randn(*shape: int, dtype: torch.dtype = torch.float32, shift: float = 0.0) -> Tensor:
    return (torch.randn(shape, generator=seeded(3), dtype=torch.float64) + shift).to(dtype)


def _places(below: int, *shape: int) -> Tensor:
    return torch.randint(0, below, shape, generator=seeded(4))


def _left_out(function: Function) -> Function:
    """The last of the terms in the second argument is never added."""
    return lambda x, y, index: function(x, torch.cat([y[:-1], torch.zeros_like(y[-1:])]), index)


def _added(x: Tensor, y: Tensor, index: Tensor) -> Tensor:
    return x.scatter_add(0, index, y)


def _added_apart(x: Tensor, y: Tensor, index: Tensor) -> Tensor:
    """What comes from `y` by itself, from the last to the first, and `x` after it."""
    return torch.zeros_like(x).scatter_add(0, index.flip(0), y.flip(0)) + x


def _one_by_one(x: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    total = torch.zeros_like(x.select(dim, 0), dtype=dtype)
    for part in x.unbind(dim):
        total = total + part.to(dtype)
    return total.to(x.dtype)


def _moments_at_once(x: Tensor) -> Tensor:
    """The mean of squares less the square of the mean."""
    return ((x * x).mean(-1) - x.mean(-1) ** 2) * (x.shape[-1] / (x.shape[-1] - 1))


def _enlarged(weight: float) -> Function:
    """Twice as wide, by hand: elements at the quarters between their neighbours."""

    def run(x: Tensor) -> Tensor:
        before, behind = torch.cat([x[..., :1], x[..., :-1]], -1), torch.cat([x[..., 1:], x[..., -1:]], -1)
        left, right = before * (1 - weight) + x * weight, behind * (1 - weight) + x * weight
        return torch.stack([left, right], -1).flatten(-2)

    return run


def _running_products(x: Tensor, dtype: torch.dtype) -> Tensor:
    factors = (x * 0.01 + 1).to(dtype)
    return factors.double().cumprod(-1).to(x.dtype)


def _slope(x: Tensor, y: Tensor, *, unrounded: bool) -> Tensor:
    """Of (2x + y).sin() · x, where of two terms that may cancel one is rounded or neither is."""
    inner = (x * 2 + y).float()
    second = (x.float() * inner.cos()).to(x.dtype)
    first = inner.sin() if unrounded else inner.sin().to(x.dtype).float()
    return (first + second.float() * 2).to(x.dtype)


def _angle_rounded(x: Tensor) -> Tensor:
    """Turns taken off in float32, by one constant."""
    turns = torch.round(x / (2 * torch.pi))
    return torch.sin((x - turns * 6.2831855).double()).float()


_SCATTER = (_randn(300), _randn(4000), _places(300, 4000))
_HALF = torch.bfloat16
_ROWS = _randn(20, 700, dtype=_HALF)

RIGHT: dict[str, tuple[Function, Function, tuple[Tensor, ...]]] = {
    "a scatter in another order": (_added, _added_apart, _SCATTER),
    "a scatter of few terms": (_added, _added_apart, (_randn(2000), _randn(4000), _places(2000, 4000))),
    "a sum one by one": (lambda x: x.sum(1), lambda x: _one_by_one(x, 1, torch.float32), (_randn(5, 5, 5),)),
    "a sum from its end": (lambda x: x.sum(1), lambda x: _one_by_one(x.flip(1), 1, torch.float32), (_randn(50, 9, 5),)),
    "a mean of float64": (lambda x: x.mean(1), lambda x: x.sum(1) / 515, (_randn(77, 515, dtype=torch.float64),)),
    "variance in two passes": (
        lambda x: torch.var(x, -1),
        lambda x: ((x - x.mean(-1, keepdim=True)) ** 2).sum(-1) / 514,
        (_randn(77, 515, dtype=torch.float64),),
    ),
    "an image enlarged": (
        lambda x: F.interpolate(x, scale_factor=2, mode="linear"), _enlarged(0.75), (_randn(8, 30, 190),)
    ),
    "products of 16 bits, kept in more": (
        lambda x: (x * 0.01 + 1).cumprod(-1), lambda x: _running_products(x, _HALF), (_randn(33, 300, dtype=_HALF),)
    ),
    "terms of 16 bits, one rounded": (
        lambda x, y: (x * 2 + y).sin() + (x * (x * 2 + y).cos()) * 2,
        lambda x, y: _slope(x, y, unrounded=True),
        (_randn(90, 300, dtype=_HALF), _randn(300, dtype=_HALF)),
    ),
    "a sum of 16 bits in float32": (lambda x: x.sum(1), lambda x: _one_by_one(x, 1, torch.float32), (_ROWS,)),
}  # fmt: skip

WRONG: dict[str, tuple[Function, Function, tuple[Tensor, ...]]] = {
    "a scatter without its last term": (_added, _left_out(_added_apart), _SCATTER),
    "a sum without its last term": (
        lambda x: x.sum(1), lambda x: x[:, :-1].sum(1), (torch.cat([_randn(50, 700), torch.full((50, 1), 1e-3)], 1),)
    ),
    "a sum of float16 in float16": (
        lambda x: x.sum(1), lambda x: _one_by_one(x, 1, torch.float16), (_randn(20, 700, dtype=torch.float16),)
    ),
    "a sum of bfloat16 in bfloat16": (lambda x: x.sum(1), lambda x: _one_by_one(x, 1, _HALF), (_ROWS,)),
    "a sum of bfloat16 in two parts of 16 bits": (
        lambda x: x.sum(1), lambda x: x.view(400, 7, 14).sum(1).sum(1), (_randn(400, 98, dtype=_HALF),)
    ),
    "a sum of float64 in float32": (
        lambda x: x.sum(1), lambda x: x.float().sum(1).double(), (_randn(20, 70, dtype=torch.float64),)
    ),
    "variance by two moments": (lambda x: torch.var(x, -1), _moments_at_once, (_randn(77, 515, shift=9.0),)),
    "one weight of an image off by two units": (
        lambda x: F.interpolate(x, scale_factor=2, mode="linear"), _enlarged(0.75 + 2.0**-21), (_randn(8, 30, 190),)
    ),
    "running products without the first": (
        lambda x: (x * 0.01 + 1).cumprod(-1),
        lambda x: torch.cat([torch.ones_like(x[:, :1]), _running_products(x[:, 1:], _HALF)], 1),
        (_randn(33, 300, dtype=_HALF, shift=4.0),),
    ),
    "running sums in float32, one by one": (
        lambda x: x.cumsum(-1),
        lambda x: torch.from_numpy(np.cumsum(x.cpu().numpy(), -1)).to(x.device),
        (_randn(3, 20_000),),
    ),
    "a function at a point, however steep": (torch.sin, _angle_rounded, (_randn(4000) * 300,)),
    "gelu by tanh": (F.gelu, lambda x: F.gelu(x, approximate="tanh"), (_randn(4000),)),
}  # fmt: skip


def _judged(
    cases: dict[str, tuple[Function, Function, tuple[Tensor, ...]]], name: str, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    function, other, args = cases[name]
    monkeypatch.setattr("smelt.compile", lambda call, **_: lambda args, kwargs: other(*args))
    return compare(function, args, {}).wrong


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_in_another_way_passes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _judged(RIGHT, name, monkeypatch) == []


@pytest.mark.parametrize("name", WRONG)
def test_what_is_a_little_wrong_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (told,) = _judged(WRONG, name, monkeypatch)
    assert "wrong" in told


def _off_by_a_little(coefficients: tuple[float, ...]) -> tuple[float, ...]:
    return (*coefficients[:-1], coefficients[-1] * (1 + 2.0**-15))


_BROKEN: dict[str, tuple[str, Callable[[Any], Any], Function, Tensor]] = {
    "a coefficient of gelu": (
        "smelt.codegen.loops.math.normal._EXPONENT", _off_by_a_little, F.gelu, _randn(20_000)
    ),
    "one of its slope": (
        "smelt.codegen.loops.math.normal._TAIL", _off_by_a_little, F.gelu, _randn(20_000).requires_grad_()
    ),
    "an exponential's last term": (
        "smelt.codegen.loops.math.exponential._EXP",
        lambda table: table | {"f32": _off_by_a_little(table["f32"])},
        lambda x: torch.softmax(x * 9, -1),
        _randn(50, 400),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", _BROKEN)
def test_a_kernel_that_is_broken_a_little_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled as it is and with a part of the compiler exchanged, by a GPU's schedules."""
    place, change, function, x = _BROKEN[name]
    with on_target(SIMT_HOST):
        assert compare(function, (x,), {}).wrong == []
        module, _, attribute = place.rpartition(".")
        monkeypatch.setattr(place, change(getattr(importlib.import_module(module), attribute)))
        smelt.reset()
        (told,) = compare(function, (x,), {}).wrong
    assert "wrong" in told


def test_terms_of_16_bits_need_not_round_alike() -> None:
    """Both terms are rounded to the same 16 bits, and cancel to nothing; eager's error is theirs even so."""
    x = torch.tensor([0.3, 0.7, 1.3, 5.3]).bfloat16()

    def run(
        change: Change, dtype: torch.dtype | None, tangents: bool = False, mode: Mode | None = None
    ) -> list[Tensor | None]:
        (given,) = changed((x,), change, dtype)
        with mode or nullcontext():
            return [given / 3 - given * (1 / 3)]

    (error,) = eager_errors(run, double=False)
    unit = torch.ldexp(torch.full_like(x, 2.0**-7), torch.frexp(x / 3).exponent - 1)
    assert error is not None and (error > 0).all() and (error <= unit * 1.01).all()


def test_numbers_are_rounded_to_either_neighbour_and_exact_on_average() -> None:
    wide = torch.full((100_000,), 1 + 2.0**-9).to(torch.float32)
    made = rounded(wide, torch.bfloat16, torch.Generator().manual_seed(0)).float()
    assert set(made.tolist()) == {1.0, 1 + 2.0**-7}
    assert abs(float(made.mean()) - float(wide[0])) < 1e-4
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1.5, -3.4e38])
    again = rounded(special, torch.bfloat16, torch.Generator().manual_seed(0)).float()
    assert torch.equal(again[:4], special[:4]) and again[4].isnan() and again[5] == 1.5


def test_exact_results_stay() -> None:
    x = _randn(100, dtype=torch.bfloat16)
    with Chance(1):
        found = [x * 2, -x, x.relu(), x[3:], torch.cat([x, x]), x.float(), x.clone(), x > 0]
    assert all(map(torch.equal, found, [x * 2, -x, x.relu(), x[3:], torch.cat([x, x]), x.float(), x, x > 0]))
