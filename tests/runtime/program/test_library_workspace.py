"""What library calls take for themselves, found by trying them."""

from typing import Any

import pytest
import torch
from torch.autograd.profiler_legacy import profile

from smelt.ir.program import Library, Operand, Place, Program, ProgramBuffer
from smelt.ir.tensorspec import TensorSpec
from smelt.runtime.program import flatten, library_workspace
from smelt.runtime.program.library_workspace import scratch_of, scratch_of_step

aten = torch.ops.aten


def spec(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> TensorSpec:
    return TensorSpec.of(torch.empty(shape, dtype=dtype, device=device))


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_workspace, "_known", {})


def made_of_copies(x: torch.Tensor, n: int) -> torch.Tensor:
    """Takes twice its result besides it."""
    return (x.repeat(n) + x.repeat(n)) * 1.0


@pytest.fixture
def op(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An operator of which we know what it takes: its call is replaced."""
    calls: list[int] = []

    def call(x: torch.Tensor, n: int) -> torch.Tensor:
        calls.append(n)
        return made_of_copies(x, n)

    monkeypatch.setitem(flatten.BINDINGS, aten.repeat.default, call)
    return calls


def test_the_most_that_is_taken_beside_the_result(op: list[int]) -> None:
    # Two copies and their sum are there at once; then the sum and the result.
    assert scratch_of(aten.repeat.default, (spec(1000), 10), {}) == 80_000
    assert scratch_of(aten.repeat.default, (spec(1000), 20), {}) == 160_000
    assert scratch_of(aten.repeat.default, (spec(1000), 10), {}) == 80_000
    assert op == [10, 20]  # each is tried once


def test_what_has_effects_is_not_tried() -> None:
    state = torch.get_rng_state()
    assert scratch_of(aten.bernoulli.p, (spec(1000), 0.5), {}) == 0
    assert scratch_of(aten.add_.Tensor, (spec(1000), spec(1000)), {}) == 0
    assert torch.equal(torch.get_rng_state(), state)


def test_what_cannot_be_tried_counts_as_nothing(op: list[int]) -> None:
    assert scratch_of(aten.cholesky.default, (spec(3, 3),), {}) == 0  # raises: zeros are not positive definite
    assert scratch_of(len, ((1, 2),), {}) == 0
    assert scratch_of(aten.repeat.default, (spec(1000, device="meta"), 10), {}) == 0
    with profile(profile_memory=True):
        assert scratch_of(aten.repeat.default, (spec(1000), 30), {}) == 0
    assert op == []


def test_a_step_of_a_program() -> None:
    shapes = {"x": (6, 4), "w": (4, 5), "out": (6, 5)}
    buffers = tuple(ProgramBuffer(name, spec(*shape), Place.FRESH) for name, shape in shapes.items())
    x, w = Operand("x", (4, 6), (1, 4)), Operand("w", (5, 4), (1, 5))
    step = Library(aten.mm.out, (Operand("x", (6, 4), (4, 1)), Operand("w", (4, 5), (5, 1))), (), ("out",), ("out",))
    program = Program("p", buffers, ("x", "w"), (), (step,), ())
    assert scratch_of_step(program, step) == 0
    turned = Library(aten.mm.default, (w, x), (), ("out",))
    assert scratch_of_step(program, turned) == 0
    assert len(library_workspace._known) == 2
