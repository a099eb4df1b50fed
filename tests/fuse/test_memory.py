"""The plan of memory: buffers apart while alive, memory used again, outputs over dying inputs where that is safe."""

from dataclasses import replace

import pytest
import torch

from smelt.base.errors import SpecError
from smelt.fuse.buffer_reuse import is_safe
from smelt.fuse.memory_plan import lifetimes, plan_memory
from smelt.ir.check_kernel import check_program
from smelt.ir.kernel import Role
from smelt.ir.program import Launch, Place, Program, arena_bytes
from tests.fuse.running import assert_same


def overlapping(program: Program) -> list[tuple[str, str]]:
    """Pairs of arena buffers that share bytes while both are alive."""
    lives = lifetimes(program)
    planned = [buffer for buffer in program.buffers if buffer.place is Place.ARENA]
    found = []
    for number, a in enumerate(planned):
        for b in planned[number + 1 :]:
            apart = lives[a.name][1] < lives[b.name][0] or lives[b.name][1] < lives[a.name][0]
            disjoint = a.offset + arena_bytes(a) <= b.offset or b.offset + arena_bytes(b) <= a.offset
            if not apart and not disjoint:
                found.append((a.name, b.name))
    return found


def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(5):
        x = torch.cumsum(torch.relu(x @ w) @ w, 0)
    return x


def test_memory_is_used_again() -> None:
    program = assert_same(chain, torch.randn(16, 16) / 4, torch.randn(16, 16) / 4)
    assert overlapping(program) == []
    total = sum(arena_bytes(buffer) for buffer in program.buffers if buffer.place is Place.ARENA)
    assert program.arena_bytes < total
    assert all(buffer.offset % 64 == 0 for buffer in program.buffers)


def test_overlaps_are_found() -> None:
    """The checkers above see a broken plan: every buffer at offset zero."""
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    program = assert_same(lambda x, w: (torch.relu(x @ w), torch.sin(x @ w.t()) @ (x @ w)), x, w)
    broken = replace(program, buffers=tuple(replace(buffer, offset=0) for buffer in program.buffers))
    assert overlapping(broken)
    with pytest.raises(SpecError, match="shares memory"):
        check_program(broken)


def test_an_output_takes_over_a_dying_input() -> None:
    program = assert_same(lambda x, w: torch.relu(x @ w) @ w, torch.randn(4, 4), torch.randn(4, 4))
    (kernel,) = program.kernels
    assert [buffer.role for buffer in kernel.parameters] == [Role.INOUT]


def test_an_input_read_elsewhere_is_not_taken_over() -> None:
    """The transposed reading would see what other points have overwritten."""
    program = assert_same(lambda x, w: ((x @ w) + (x @ w).t().exp()) @ w, torch.randn(4, 4), torch.randn(4, 4))
    for kernel in program.kernels:
        for source in kernel.parameters:
            if source.role is Role.INPUT:
                others = [target for target in kernel.parameters if target.role is Role.OUTPUT]
                assert not any(is_safe(kernel, source, target) for target in others if source.name == "in1")


def test_memory_with_a_view_of_it_is_not_taken_over() -> None:
    """The windows read y at places that writing z over y would spoil."""

    def windows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x @ w)
        z = (y + y.unfold(0, 1, 1).squeeze(-1).flatten().as_strided((4, 4), (1, 4))) * 2
        return z @ w

    program = assert_same(windows, torch.randn(4, 4), torch.randn(4, 4))
    viewed = {"relu", "mm"}
    for step in program.steps:
        if isinstance(step, Launch):
            taken = [name for p, name in zip(step.kernel.parameters, step.args, strict=True) if p.role is Role.INOUT]
            assert "relu" not in taken and set(taken) <= viewed


def test_an_input_needed_later_is_not_taken_over() -> None:
    def twice(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x @ w
        return torch.relu(y) @ w + torch.cumsum(y, 0)

    program = assert_same(twice, torch.randn(4, 4), torch.randn(4, 4))
    assert all(buffer.role is not Role.INOUT for buffer in program.kernels[0].parameters)


def test_safety_of_a_fold_read_twice() -> None:
    """softmax reads its row before it writes it, at the same places: safe. A shifted reading is not."""
    program = assert_same(lambda x, w: torch.softmax(x @ w, -1).exp().cumsum(0), torch.randn(4, 8), torch.randn(8, 8))
    for kernel in program.kernels:
        for source in kernel.parameters:
            for target in kernel.parameters:
                if source.role is Role.INPUT and target.role is Role.OUTPUT:
                    assert is_safe(kernel, source, target) or source.dtype is not target.dtype


def test_planning_again_changes_nothing() -> None:
    program = assert_same(chain, torch.randn(4, 4), torch.randn(4, 4))
    assert plan_memory(program) == program
