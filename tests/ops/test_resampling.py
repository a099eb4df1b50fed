"""Images at other sizes: as near to the truth as eager, forward and backward, without a library call."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt.ir.program import Library
from smelt.ops.decompositions import DECOMPOSITIONS
from tests.fuse.running import compare, fused
from tests.kernel_reference import run_program
from tests.ops_db.accuracy import off
from tests.targets import seeded

Function = Callable[[torch.Tensor], torch.Tensor]


def _to(mode: str, **how: Any) -> Function:
    return lambda x: F.interpolate(x, mode=mode, **how)


_HOWS: dict[str, dict[str, Any]] = {
    "twice": {"scale_factor": 2},
    "twice, with corners": {"scale_factor": 2, "align_corners": True},
    "to a size": {"size": (5, 21)},
    "to a size, with corners": {"size": (13, 4), "align_corners": True},
    "by a broken number": {"scale_factor": 2.3},
    "halved": {"scale_factor": 0.5},
    "columns only": {"scale_factor": (1, 3)},
    "to one": {"size": (1, 1)},
    "to one, with corners": {"size": (1, 1), "align_corners": True},
}
WAYS: dict[str, Function] = {
    f"{mode}, {name}": _to(mode, **how)
    for mode in ("bilinear", "bicubic")
    for name, how in _HOWS.items()
}
LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "contiguous": lambda: _x(2, 3, 7, 9),
    "channels last": lambda: _x(2, 3, 7, 9).to(memory_format=torch.channels_last),
    "every second of a slice": lambda: _x(2, 3, 9, 20)[:, :, 1:8, 1:19:2],
    "transposed": lambda: _x(2, 3, 9, 7).transpose(2, 3),
    "spread out": lambda: _x(2, 3, 7, 1).expand(2, 3, 7, 9),
    "of one": lambda: _x(2, 3, 1, 1),
}


def _x(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=seeded(3))


def _results(function: Function, x: torch.Tensor, tangent: torch.Tensor | None = None) -> list[torch.Tensor]:
    x = x.detach().requires_grad_()
    y = function(x)
    return [y.detach(), *torch.autograd.grad(y, x, torch.ones_like(y) if tangent is None else tangent.to(y.dtype))]


def _tangent(function: Function, x: torch.Tensor) -> torch.Tensor:
    return torch.randn(function(x).shape, generator=seeded(4))


def _assert_near(function: Function, x: torch.Tensor) -> None:
    tangent = _tangent(function, x).to(x.dtype)
    found = _results(smelt.compile(lambda x: function(x), fullgraph=True), x, tangent)
    eager, true = _results(function, x, tangent), _results(function, x.double(), tangent)
    assert found[0].stride() == eager[0].stride()
    for mine, theirs, exact in zip(found, eager, true, strict=True):
        # Beside the largest of them: where terms cancel, one of two sums that are equally good is exact by luck.
        error = (theirs.double() - exact).abs().max().expand(exact.shape)
        assert off(mine, theirs, exact, error) == []


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", WAYS)
def test_numbers_and_gradients_are_as_exact_as_eagers(name: str, layout: str) -> None:
    if "halved" in name and layout == "of one":
        pytest.skip("nothing is left of it: eager raises")
    _assert_near(WAYS[name], LAYOUTS[layout]())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["bilinear, twice", "bicubic, to a size", "bilinear, halved"])
def test_other_floats(name: str, dtype: torch.dtype) -> None:
    _assert_near(WAYS[name], _x(2, 3, 7, 9).to(dtype))


@pytest.mark.parametrize("corners", [False, True])
def test_lines(corners: bool) -> None:
    for size in (2, 9, 31):
        _assert_near(_to("linear", size=size, align_corners=corners), _x(2, 3, 9))


@pytest.mark.parametrize("name", WAYS)
def test_the_interpreter_agrees(name: str) -> None:
    x = _x(2, 3, 7, 9)
    program = fused(WAYS[name], x, decompositions=DECOMPOSITIONS)
    compare(run_program(program, [x]), [WAYS[name](x)], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in WAYS if "one" not in name])
def test_there_is_no_library_call(name: str) -> None:
    program = fused(WAYS[name], _x(2, 3, 7, 9), decompositions=DECOMPOSITIONS)
    assert [str(step.op) for step in program.steps if isinstance(step, Library)] == []


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(14, 18), (5, 4), (7, 30)])
def test_what_is_infinite_goes_nowhere_else_than_in_eager(mode: str, size: tuple[int, int]) -> None:
    function, x = _to(mode, size=size), _x(1, 2, 7, 9)
    tangent = _tangent(function, x)
    tangent[0, 0, 3, 2], tangent[0, 1, 1, 1] = torch.inf, torch.nan
    mine, theirs = (_results(each, x, tangent)[1] for each in (smelt.compile(lambda x: function(x)), function))
    usual = torch.isfinite(theirs)
    assert not usual.all() and not torch.isfinite(mine).all()
    torch.testing.assert_close(mine[usual], theirs[usual], rtol=1e-5, atol=1e-5)


def test_sizes_that_vary_are_left_to_the_library() -> None:
    compiled = smelt.compile(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear") + 1, dynamic=True)
    for shape in ((1, 2, 4, 5), (2, 2, 6, 5), (1, 3, 8, 8)):
        x = _x(*shape)
        torch.testing.assert_close(compiled(x), F.interpolate(x, scale_factor=2, mode="bilinear") + 1)


def test_infinity_at_the_end_stays_infinity() -> None:
    x = torch.tensor([[[torch.nan, 3.0, 4.0, torch.inf, torch.inf]]])
    function = _to("linear", size=11)
    assert function(x)[0, 0, -1] == torch.inf
    torch.testing.assert_close(smelt.compile(lambda x: function(x))(x), function(x), equal_nan=True)
