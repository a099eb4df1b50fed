"""Running sums, products and extremes: eager's numbers and gradients in every layout, one kernel with neighbours."""

from collections.abc import Callable

import pytest
import torch

import smelt
from smelt.ir.program import Library, Program
from smelt.ops.decompositions import DECOMPOSITIONS
from tests.fuse.running import compare, fused
from tests.kernel_reference import run_program
from tests.targets import seeded

Function = Callable[[torch.Tensor], torch.Tensor]

SCANS: dict[str, Function] = {
    "sums along the last": lambda x: x.cumsum(-1),
    "sums along the first": lambda x: x.cumsum(0),
    "sums between": lambda x: x.cumsum(1),
    "sums from the end": lambda x: x.flip(1).cumsum(1).flip(1),
    "sums of every dim": lambda x: x.cumsum(0).cumsum(1).cumsum(2),
    "products": lambda x: x.cumprod(-1),
    "products from the end": lambda x: x.flip(-1).cumprod(-1).flip(-1),
    "shares": lambda x: x.softmax(-1).cumsum(-1),
    "sums of sums": lambda x: x.cumsum(-1).sum(-1),
    "sums over rows of sums": lambda x: x.cumsum(1).sum(0),
    "both ways": lambda x: x.cumsum(-1) * x.flip(-1).cumsum(-1).flip(-1),
    "of a mask": lambda x: (x > 0).cumsum(1),
    "in float64": lambda x: x.cumsum(1, dtype=torch.float64),
    "maxima along the last": lambda x: x.cummax(-1).values,
    "maxima along the first": lambda x: x.cummax(0).values,
    "minima between": lambda x: x.cummin(1).values,
    "places of maxima": lambda x: x.cummax(-1).indices,
    "places of minima": lambda x: x.round().cummin(1).indices,
    "logs of sums of exponentials": lambda x: (x * 9).logcumsumexp(-1),
    "logs of sums between": lambda x: x.logcumsumexp(1),
    "logs of sums from the end": lambda x: x.flip(1).logcumsumexp(1).flip(1),
}
LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "contiguous": lambda: _x(3, 5, 37),
    "transposed": lambda: _x(37, 3, 5).permute(1, 2, 0),
    "every second of a slice": lambda: _x(7, 11, 80)[1:4, ::2, 5:79:2][:, :5],
    "spread out": lambda: _x(3, 1, 37).expand(3, 5, 37),
    "spread out along the last": lambda: _x(3, 5, 1).expand(3, 5, 37),
}


def _x(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=seeded(5))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", SCANS)
def test_numbers_and_gradients_are_eagers(name: str, layout: str) -> None:
    scan, x = SCANS[name], LAYOUTS[layout]().detach().requires_grad_()
    found, expected = smelt.compile(lambda x: scan(x), fullgraph=True)(x), scan(x)
    assert found.stride() == expected.stride() and found.dtype is expected.dtype
    torch.testing.assert_close(found, expected)
    if expected.requires_grad:
        tangent = torch.randn(expected.shape, generator=seeded(4), dtype=expected.dtype)
        mine, theirs = (torch.autograd.grad(each, x, tangent)[0] for each in (found, expected))
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", SCANS)
def test_the_interpreter_agrees(name: str) -> None:
    x = _x(3, 5, 37)
    compare(run_program(fused(SCANS[name], x, decompositions=DECOMPOSITIONS), [x]), [SCANS[name](x)])


def _calls(program: Program) -> list[str]:
    return [str(step.op) for step in program.steps if isinstance(step, Library)]


@pytest.mark.parametrize(
    "name",
    [
        "sums along the last",
        "sums along the first",
        "sums from the end",
        "shares",
        "sums of sums",
        "of a mask",
        "maxima along the first",
        "places of maxima",
        "logs of sums from the end",
    ],
)
def test_it_is_one_kernel_with_its_neighbours(name: str) -> None:
    program = fused(lambda x: SCANS[name](x * 2) + 1, _x(3, 5, 37), decompositions=DECOMPOSITIONS)
    assert _calls(program) == [] and len(program.steps) == 1


@pytest.mark.parametrize("name", [name for name in SCANS if name != "sums of every dim"])
def test_sizes_that_vary(name: str) -> None:
    compiled = smelt.compile(lambda x: SCANS[name](x) + 1, dynamic=True)
    for shape in ((3, 5, 37), (2, 6, 41), (4, 11, 16), (2, 5, 130), (20, 3, 3)):
        x = _x(*shape)
        torch.testing.assert_close(compiled(x), SCANS[name](x) + 1)


EDGES: dict[str, tuple[tuple[int, ...], Function]] = {
    "of nothing": ((0, 3), lambda x: x.cumsum(1)),
    "along nothing": ((3, 0), lambda x: x.cumsum(1)),
    "of a number": ((), lambda x: x.cumsum(0)),
    "along one": ((3, 1, 4), lambda x: x.cumsum(1)),
    "of one": ((1,), lambda x: x.cumprod(0)),
    "along one, from the end": ((3, 1), lambda x: x.flip(1).cumsum(1).flip(1)),
    "extremes of nothing": ((0, 3), lambda x: x.cummax(1).values),
    "extremes of a number": ((), lambda x: x.cummin(0).values),
    "extremes along one": ((3, 1, 4), lambda x: x.cummax(1).values),
    "places along one": ((3, 1, 4), lambda x: x.cummax(1).indices),
    "logs of a number": ((), lambda x: x.logcumsumexp(0)),
    "logs along one": ((3, 1), lambda x: x.logcumsumexp(1)),
}


@pytest.mark.parametrize("name", EDGES)
def test_nothing_and_one(name: str) -> None:
    shape, scan = EDGES[name]
    x = _x(*shape)
    found, expected = smelt.compile(lambda x: scan(x) * 2)(x), scan(x) * 2
    assert found.shape == expected.shape and found.stride() == expected.stride()
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_integers(dtype: torch.dtype) -> None:
    x = torch.arange(120).reshape(3, 40).remainder(5).to(dtype)

    def scans(x: torch.Tensor) -> list[torch.Tensor]:
        return [scan(x, dim) for scan in (torch.cumsum, torch.cumprod) for dim in (0, 1)]

    for found, expected in zip(smelt.compile(scans)(x), scans(x), strict=True):
        assert found.dtype is expected.dtype and torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_long_sums_are_as_exact_as_eagers(dtype: torch.dtype) -> None:
    x = torch.rand(2, 20_000, generator=seeded(1)).to(dtype)
    expected = x.double().cumsum(1)
    found, eager = smelt.compile(lambda x: x.cumsum(1))(x), x.cumsum(1)
    assert (found.double() - expected).abs().max() <= (eager.double() - expected).abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.uint8])
def test_extremes_stand_where_eager_finds_them(dtype: torch.dtype) -> None:
    """The last of equals; NaN is more extreme than anything, and the last of those stays."""
    x = torch.randint(0, 4, (3, 67), generator=seeded(2)).to(dtype)
    if dtype.is_floating_point:
        x[0, 20], x[0, 40], x[1, 3], x[1, 9] = torch.nan, torch.nan, torch.inf, -torch.inf
    for scan in (torch.cummax, torch.cummin):
        for dim in (0, 1):
            found, expected = smelt.compile(lambda x, scan=scan, dim=dim: scan(x, dim))(x), scan(x, dim)
            torch.testing.assert_close(found.values, expected.values, equal_nan=True, rtol=0, atol=0)
            assert torch.equal(found.indices, expected.indices) and found.indices.dtype is torch.int64


def test_logs_of_sums_at_the_ends_of_the_range() -> None:
    inf, nan = torch.inf, torch.nan
    rows = [[-inf, -inf, 1, 2, inf, 1, inf, -inf, nan, 1], [1e30, 1e30, -1e30, 3, 3, 3, 3, -inf, 0, 3e38]]
    x = torch.tensor([*rows, [-1000.0, -999, 0, 1, 900, 900, 1, 2, 3, 4]])
    for dim in (0, 1):
        found = smelt.compile(lambda x, dim=dim: x.logcumsumexp(dim))(x)
        torch.testing.assert_close(found, x.logcumsumexp(dim), equal_nan=True, rtol=2e-7, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_logs_of_sums_do_not_go_by_rounded_ones(dtype: torch.dtype) -> None:
    """Ten thousand and its logarithm more are one number in sixteen bits: by that, each gradient would be a sum."""
    x = torch.full((5,), 10_000.0).to(dtype).requires_grad_()
    found = torch.autograd.grad(smelt.compile(lambda x: x.logcumsumexp(0))(x).sum(), x)[0]
    expected = torch.tensor([sum(1 / count for count in range(first, 6)) for first in range(1, 6)])
    torch.testing.assert_close(found, expected.to(dtype), rtol=2e-2, atol=0)
