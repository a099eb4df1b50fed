"""Special functions as kernels: within a rounding of float64's own, over their whole range and at its edges."""

import math
from collections.abc import Callable

import mpmath  # type: ignore[import-untyped]
import pytest
import torch
from torch import Tensor

import smelt
from smelt.base.options import Options
from smelt.ops.decompositions import decompositions
from tests.targets import chosen

pytestmark = pytest.mark.skipif(chosen != ("cpu", "cpu"), reason="it is the table of programs without a library")

INF, NAN = math.inf, math.nan
_ROUND_ZERO = torch.linspace(-12, 12, 2001)
_FAR = torch.logspace(-8, 4, 300)
WIDE = torch.cat([_ROUND_ZERO, _FAR, -_FAR])
SHARES = torch.cat([torch.linspace(-0.999, 0.999, 1999), torch.logspace(-38, -1, 200), 1 - torch.logspace(-7, -1, 99)])

FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], Tensor]] = {
    "lgamma": (torch.lgamma, WIDE),
    "digamma": (torch.digamma, WIDE),
    "erfc": (torch.erfc, WIDE),
}


def without_library(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def called(x: Tensor) -> Tensor:
        return function(x)

    found: Callable[[Tensor], Tensor] = smelt.compile(called, fullgraph=True, options={"library": "none"})
    return found


def errors(found: Tensor, truth: Tensor) -> Tensor:
    """In units of the last place of `found`, where both are finite and not tiny."""
    wrong = (found.double() - truth).abs() / truth.abs() / torch.finfo(found.dtype).eps
    usual = torch.isfinite(truth) & (truth.abs() > 1e-37) & (truth.abs() < 3e38)
    return torch.where(usual, wrong, 0.0)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_kernel_is_right_to_a_rounding(name: str) -> None:
    function, x = FUNCTIONS[name]
    found = without_library(function)(x)
    truth = function(x.double())
    assert errors(found, truth).max() <= 0.51
    assert torch.equal(found.isnan(), truth.isnan())


def test_inverses_are_right_where_eager_is_not() -> None:
    """Near 1 eager's float64 is wrong in the tenth digit."""
    x = torch.cat([SHARES, torch.tensor([1 - 2**-24])])
    found = without_library(torch.erfinv)(x)
    truth = torch.tensor([float(mpmath.erfinv(mpmath.mpf(each))) for each in x.tolist()], dtype=torch.float64)
    assert errors(found, truth).max() <= 0.51


def test_the_second_derivative_of_ln_gamma() -> None:
    x = torch.cat([torch.linspace(-9.97, 30, 999), torch.tensor([1e-8, 1e4])])
    found = without_library(lambda x: torch.polygamma(1, x))(x)
    truth = torch.tensor([float(mpmath.psi(1, mpmath.mpf(each))) for each in x.tolist()], dtype=torch.float64)
    assert errors(found, truth).max() <= 0.51


EDGES: dict[str, list[tuple[float, float]]] = {
    "lgamma": [(0.0, INF), (-3.0, INF), (INF, INF), (-INF, INF), (1.0, 0.0), (2.0, 0.0), (NAN, NAN)],
    "digamma": [(0.0, -INF), (-0.0, INF), (-2.0, NAN), (INF, INF), (NAN, NAN)],
    "erfc": [(INF, 0.0), (-INF, 2.0), (0.0, 1.0), (NAN, NAN)],
}


@pytest.mark.parametrize("name", EDGES)
def test_what_stands_at_the_edges(name: str) -> None:
    points = EDGES[name]
    function = FUNCTIONS[name][0]
    found = without_library(function)(torch.tensor([at for at, _ in points]))
    assert torch.allclose(found, torch.tensor([value for _, value in points]), rtol=0, atol=0, equal_nan=True)


def test_doubles_are_right_to_a_few_roundings() -> None:
    wide = WIDE.double()
    assert errors(without_library(torch.erfc)(wide), torch.erfc(wide)).max() <= 8


def test_whole_numbers_give_floats() -> None:
    x = torch.arange(1, 9)
    assert torch.allclose(without_library(torch.lgamma)(x), torch.lgamma(x))


def test_targets_without_doubles_are_left_without_them() -> None:
    assert torch.ops.aten.lgamma.default in decompositions(Options(library="none"))
    assert torch.ops.aten.lgamma.default not in decompositions(Options())
