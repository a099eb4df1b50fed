"""Elements moved along dimensions: flips, rolls, pads and repeats are eager's, one kernel with their neighbours."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt.ir.program import Library
from smelt.ops.decompositions import DECOMPOSITIONS
from tests.fuse.running import fused
from tests.targets import seeded

Function = Callable[[torch.Tensor], torch.Tensor]

MOVES: dict[str, Function] = {
    "flipped": lambda x: x.flip(-1),
    "flipped rows": lambda x: x.flip(0),
    "flipped all": lambda x: x.flip(0, 1, 2),
    "padded": lambda x: F.pad(x, (3, 2), value=1.5),
    "padded after": lambda x: F.pad(x, (0, 17)),
    "padded before, along two": lambda x: F.pad(x, (3, 0, 1, 2), value=-torch.inf),
    "padded along all": lambda x: F.pad(x, (1, 1, 1, 1, 1, 1)),
    "cropped": lambda x: F.pad(x, (-3, -2, 0, -1)),
    "cropped and padded": lambda x: F.pad(x, (-3, 2, 1, -1)),
    "rolled": lambda x: x.roll(3, -1),
    "rolled back": lambda x: x.roll(-1, 1),
    "rolled along two": lambda x: x.roll((1, -2), (1, 2)),
    "rolled along one twice": lambda x: x.roll((1, 2), (2, 2)),
    "rolled once round": lambda x: x.roll(37, 2),
    "rolled further than round": lambda x: x.roll(-95, 2),
    "rolled over the ends": lambda x: x.roll(5),
    "reflected": lambda x: F.pad(x, (3, 7), mode="reflect"),
    "reflected along two": lambda x: F.pad(x, (3, 0, 2, 1), mode="reflect"),
    "edges repeated": lambda x: F.pad(x, (3, 7), mode="replicate"),
    "edges repeated along two": lambda x: F.pad(x, (0, 7, 1, 9), mode="replicate"),
    "repeated": lambda x: x.repeat(2, 1, 3),
    "repeated in front": lambda x: x.repeat(2, 1, 3, 1),
    "repeated never": lambda x: x.repeat(1, 0, 1),
    "each repeated": lambda x: x.repeat_interleave(3, 1),
    "windows": lambda x: x.unfold(2, 5, 2),
}
# What is no kernel, and why that is right.
CALLS = {"rolled over the ends": "aten.roll.default", "repeated never": "aten.repeat.default"}


def _x(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=seeded(5))


LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "contiguous": lambda: _x(3, 5, 37),
    "transposed": lambda: _x(37, 3, 5).permute(1, 2, 0),
    "every second of a slice": lambda: _x(7, 11, 80)[1:4, ::2, 5:79:2][:, :5],
    "spread out": lambda: _x(3, 1, 37).expand(3, 5, 37),
    "spread out along the last": lambda: _x(3, 5, 1).expand(3, 5, 37),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", MOVES)
def test_numbers_and_gradients_are_eagers(name: str, layout: str) -> None:
    move, x = MOVES[name], LAYOUTS[layout]().detach().requires_grad_()
    found, expected = smelt.compile(lambda x: move(x) * 2, fullgraph=True)(x), move(x) * 2
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    tangent = torch.randn(expected.shape, generator=seeded(4))
    mine, theirs = (torch.autograd.grad(each, x, tangent)[0] for each in (found, expected))
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("name", [name for name in MOVES if name not in CALLS and name != "windows"])
def test_it_is_one_kernel_with_what_follows(name: str) -> None:
    program = fused(lambda x: MOVES[name](x).sigmoid() * 2, _x(3, 5, 37), decompositions=DECOMPOSITIONS)
    assert len(program.steps) == 1 and not isinstance(program.steps[0], Library)


@pytest.mark.parametrize("name", ["flipped", "flipped all", "cropped"])
def test_it_is_one_kernel_with_what_comes_before(name: str) -> None:
    program = fused(lambda x: MOVES[name](x.sigmoid() * 2) + 1, _x(3, 5, 37), decompositions=DECOMPOSITIONS)
    assert len(program.steps) == 1 and not isinstance(program.steps[0], Library)


@pytest.mark.parametrize("name, call", {"reflected": "reflection_pad1d", "edges repeated": "replication_pad1d"}.items())
def test_what_is_wanted_in_memory_is_copied_by_the_library_where_that_is_faster(name: str, call: str) -> None:
    program = fused(MOVES[name], _x(3, 5, 37), decompositions=DECOMPOSITIONS)
    assert [str(step.op) for step in program.steps if isinstance(step, Library)] == [f"aten.{call}.default"]


@pytest.mark.parametrize("name, call", {"flipped": "flip", "cropped": "constant_pad_nd"}.items())
def test_short_rows_are_copied_by_the_library(name: str, call: str) -> None:
    short, long, computed = (
        fused(function, _x(3, 5, size), decompositions=DECOMPOSITIONS)
        for function, size in ((MOVES[name], 37), (MOVES[name], 370), (lambda x: MOVES[name](x + 1), 37))
    )
    assert [str(step.op) for step in short.steps if isinstance(step, Library)] == [f"aten.{call}.default"]
    assert all(len(each.steps) == 1 and not isinstance(each.steps[0], Library) for each in (long, computed))


@pytest.mark.parametrize("name", CALLS)
def test_what_is_no_kernel(name: str) -> None:
    program = fused(MOVES[name], _x(3, 5, 37), decompositions=DECOMPOSITIONS)
    assert [str(step.op) for step in program.steps if isinstance(step, Library)] == [CALLS[name]]


@pytest.mark.parametrize("name", [name for name in MOVES if "all" not in name])
def test_sizes_that_vary(name: str) -> None:
    compiled = smelt.compile(lambda x: MOVES[name](x) + 1, dynamic=True)
    for shape in ((3, 5, 37), (2, 6, 41), (4, 11, 16), (2, 5, 130)):
        x = _x(*shape)
        torch.testing.assert_close(compiled(x), MOVES[name](x) + 1, rtol=0, atol=0)


EDGES: dict[str, tuple[tuple[int, ...], Function]] = {
    "flip of nothing": ((0, 3), lambda x: x.flip(1)),
    "flip of a number": ((), lambda x: x.flip([])),
    "flip of one": ((1, 1), lambda x: x.flip(0, 1)),
    "pad of nothing": ((0, 3), lambda x: F.pad(x, (1, 1))),
    "pad of nothing to something": ((0,), lambda x: F.pad(x, (2, 1), value=3.0)),
    "pad of one": ((1,), lambda x: F.pad(x, (20, 30), value=3.0)),
    "pad down to nothing": ((4,), lambda x: F.pad(x, (-2, -2))),
    "roll of nothing": ((2, 0), lambda x: x.roll(1, 1)),
    "roll of a number": ((), lambda x: x.roll(1)),
    "roll of one": ((3, 1), lambda x: x.roll(1, 1)),
    "repeat of a number": ((), lambda x: x.repeat(3, 2)),
    "repeat of nothing": ((0, 2), lambda x: x.repeat(3, 2)),
    "edge of one, repeated": ((2, 1), lambda x: F.pad(x, (4, 40), mode="replicate")),
    "windows of one": ((1,), lambda x: x.unfold(0, 1, 1)),
    "windows of a number": ((), lambda x: x.unfold(0, 1, 1)),
}


@pytest.mark.parametrize("name", EDGES)
def test_nothing_and_one(name: str) -> None:
    shape, move = EDGES[name]
    x = _x(*shape)
    found, expected = smelt.compile(lambda x: move(x) * 2)(x), move(x) * 2
    assert found.shape == expected.shape and found.stride() == expected.stride()
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_integers(dtype: torch.dtype) -> None:
    x = torch.arange(80).reshape(2, 40).to(dtype)

    def moved(x: torch.Tensor) -> Any:
        return F.pad(x, (3, 4), value=1), x.flip(1), x.roll(3, 1), F.pad(x, (1, 2)), F.pad(x, (1, 2), value=2.0)

    for found, expected in zip(smelt.compile(moved)(x), moved(x), strict=True):
        assert found.dtype is dtype and torch.equal(found, expected)


def test_a_number_that_the_dtype_cannot_hold_is_pytorchs() -> None:
    x = torch.ones(3, dtype=torch.int64)
    assert torch.equal(smelt.compile(lambda x: F.pad(x, (1, 1), value=-2.5))(x), F.pad(x, (1, 1), value=-2.5))


@pytest.mark.parametrize("affine", [False, True])
def test_repeated_statistics_of_an_instance_norm(affine: bool) -> None:
    """PyTorch repeats the running ones for each image, and means them afterwards."""
    mine, theirs = (torch.nn.InstanceNorm1d(3, affine=affine, track_running_stats=True) for _ in range(2))
    compiled = smelt.compile(mine)
    for turn in range(3):
        x = _x(2, 3, 9) + turn
        torch.testing.assert_close(compiled(x), theirs(x))
        torch.testing.assert_close(mine.running_mean, theirs.running_mean)
        torch.testing.assert_close(mine.running_var, theirs.running_var)
