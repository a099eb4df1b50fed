"""Tensors side by side in a kernel: what is chosen by position, and what is left to the library."""

from typing import Any

import pytest
import torch

import smelt
from smelt.ir.program import Launch, Library, Program
from tests.fuse.running import assert_same

aten = torch.ops.aten


def _calls(program: Program) -> list[str]:
    return [str(step.op) for step in program.steps if isinstance(step, Library)]


def _kernels(program: Program) -> int:
    return sum(isinstance(step, Launch) for step in program.steps)


def _turned(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return torch.cat([-x[..., half:], x[..., :half]], -1)


def test_a_rotation_is_one_kernel() -> None:
    x, cos, sin = torch.randn(2, 3, 5, 8), torch.randn(5, 8), torch.randn(5, 8)
    program = assert_same(lambda x, cos, sin: x * cos + _turned(x) * sin, x, cos, sin)
    assert _kernels(program) == 1 and _calls(program) == []


def test_gradients_of_halves_meet_in_one_kernel() -> None:
    def meet(first: torch.Tensor, second: torch.Tensor) -> Any:
        end = 9223372036854775807
        low = aten.slice_backward.default(first, [4, 6], 1, 0, 3, 1)
        high = aten.slice_backward.default(second.neg(), [4, 6], 1, 3, end, 1)
        return low + high

    program = assert_same(meet, torch.randn(4, 3), torch.randn(4, 3))
    assert _kernels(program) == 1 and _calls(program) == []


def test_sizes_that_vary_are_left_to_the_library() -> None:
    """Fusing such a join went on for ever."""
    smelt.reset()
    compiled = smelt.compile(lambda x: x * 2 + _turned(x), dynamic=True)
    for length in (4, 7):
        x = torch.randn(2, length, 8)
        torch.testing.assert_close(compiled(x), x * 2 + _turned(x))
    assert smelt.counters["graphs"] == 1
    smelt.reset()


def test_a_write_to_a_part_fuses_with_what_is_written_to() -> None:
    def write(x: torch.Tensor, y: torch.Tensor) -> Any:
        x = aten.select_scatter.default(x * 2, y, 1, 0)
        return aten.slice_scatter.default(x, y[:, None].expand(4, 4), 1, 4, 8).exp()

    program = assert_same(write, torch.randn(4, 8), torch.randn(4))
    assert _kernels(program) == 1 and _calls(program) == []


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_a_join_feeds_a_fold(dim: int) -> None:
    a, b = torch.randn(4, 6, 5), torch.randn(4, 5, 6).transpose(1, 2)
    for over in ([0], [1], [2], [0, 2]):
        program = assert_same(lambda a, b, over=over: torch.cat([a, b.exp()], dim).sum(over), a, b)
        assert _calls(program) == []


@pytest.mark.parametrize(
    ("why", "call"),
    [
        ("returned", lambda a, b: torch.cat([a, b], 0)),
        ("a view of it is returned", lambda a, b: torch.cat([a, b], 0).t()),
        ("read by a library call", lambda a, b: torch.cat([a, b], 0) @ a),
        ("of two sizes", lambda a, b: torch.cat([a, b[:2]], 0).neg()),
        ("of many", lambda a, b: torch.cat([a, b, a, b, a], 0).neg()),
    ],
)
def test_left_to_the_library(why: str, call: object) -> None:
    program = assert_same(call, torch.randn(4, 4), torch.randn(4, 4))  # type: ignore[arg-type]
    assert "aten.cat.out" in _calls(program)
