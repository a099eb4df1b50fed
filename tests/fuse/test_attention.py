"""Attention as a kernel of our own: what it reads where, which results it has, and when it stays the library's."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from smelt.base.events import collect
from smelt.device import host_costs
from smelt.device.host_costs import library_attention
from smelt.device.product_costs import AttentionCosts, AttentionSizes
from smelt.fuse.lowering import product_choice
from smelt.fuse.target_choice import TargetChoice
from smelt.ir.check_kernel import is_attention
from smelt.ir.kernel import Kernel
from smelt.ir.program import Launch, Library, Program
from tests.fuse.running import assert_same, compare, fused
from tests.kernel_reference import run_program

flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(0)


def attentions(program: Program) -> list[Kernel]:
    return [step.kernel for step in program.steps if isinstance(step, Launch) and is_attention(step.kernel)]


def own(fn: Callable[..., Any], *args: Tensor, count: int = 1, **rest: Any) -> Program:
    """A program with so many kernels that attend, that computes what eager does."""
    program = assert_same(fn, *args, products="own", **rest)
    assert len(attentions(program)) == count
    assert not [step for step in program.steps if isinstance(step, Library)]
    return program


def _given(heads: int = 3, keys: int = 11, shared: int = 1) -> list[Tensor]:
    return [torch.randn(2, heads * shared, 9, 8), *(torch.randn(2, heads, keys, 8) for _ in range(2))]


@pytest.mark.parametrize(
    "fn",
    [
        lambda q, k, v: flash(q, k, v)[0],
        lambda q, k, v: flash(q, k, v),
        lambda q, k, v: flash(q, k, v, 0.0, True),
        lambda q, k, v: flash(q, k, v, scale=0.7)[0] + 1,
        lambda q, k, v: flash(q.sin(), k * 2, v)[0].transpose(1, 2).reshape(2, 9, -1),
        lambda q, k, v: flash(q, k, v, attn_mask=q[0, 0] @ k[0, 0].t())[0],
        lambda q, k, v: flash(q, k, v, attn_mask=k[:, :1, None, :, 0])[0],
        lambda q, k, v: flash(q, k, v, attn_mask=torch.where(k[:, :1, None, :, 0] > 0, 0.0, -torch.inf))[0],
        lambda q, k, v: flash(q, v, v)[0],
        lambda q, k, v: flash(k, k, k, 0.0, True),
    ],
)
@pytest.mark.parametrize("across", [False, True], ids=["contiguous", "transposed"])
def test_programs_are_right(fn: Callable[..., Any], across: bool) -> None:
    given = _given()
    if across:
        given = [each.transpose(1, 2).contiguous().transpose(1, 2) for each in given]
    own(fn, *given)


def test_one_buffer_for_all_three() -> None:
    """Queries, keys and values as views of one tensor are one input of the kernel."""

    def fn(x: Tensor) -> Tensor:
        parts = x.view(2, 9, 3, 4, 8).permute(2, 0, 3, 1, 4)
        query, key, value = (parts.select(0, number) for number in range(3))
        found: Tensor = flash(query, key, value)[0]
        return found

    (kernel,) = attentions(own(fn, torch.randn(2, 9, 96)))
    assert [buffer.name for buffer in kernel.buffers] == ["q", "y"]


def test_heads_that_share_keys() -> None:
    own(lambda q, k, v: flash(q, k, v), *_given(2, shared=3))


def test_copies_are_read_through() -> None:
    """Made contiguous, or widened: the kernel reads what was copied."""
    given = [each.transpose(1, 2).contiguous().bfloat16() for each in _given()]

    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        query, key, value = (each.transpose(1, 2).contiguous().float() for each in (q, k, v))
        found: Tensor = flash(query, key, value)[0]
        return found

    program = own(fn, *given)
    (kernel,) = attentions(program)
    assert [buffer.dtype for buffer in kernel.buffers[:3]] == [torch.bfloat16] * 3
    assert len(program.steps) == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_other_floats(dtype: torch.dtype) -> None:
    """Narrow ones are summed in float32, and rounded once."""
    given = [each.to(dtype) for each in _given()]
    program = fused(lambda q, k, v: flash(q, k, v), *given, products="own")
    assert len(attentions(program)) == len(program.steps) == 1
    wide = [each if dtype is torch.float64 else each.float() for each in given]
    want, sums = flash(*wide)
    compare(run_program(program, given), (want.to(dtype), sums))


def test_what_stays_the_library_s() -> None:
    with collect() as events:
        program = fused(lambda q, k, v: flash(q, k, v, 0.5)[0], *_given(), products="own")
    assert not attentions(program)
    assert any("it drops weights at random, which kernels do not" in event.text for event in events)
    assert not attentions(fused(lambda q, k, v: flash(q, k, v)[0], *_given(), products="library"))


@pytest.mark.parametrize(
    ("library", "own", "why"),
    [
        (1e9, True, "it attends 6 times 9×11×8 in about 0.00 of the library's time"),
        (1.04e5, False, "it attends 6 times 9×11×8 in about 0.98 of the library's time by a kernel, which saves too"),
        ("was not measured", False, "is a library call: it was not measured"),
    ],
)
def test_chosen_by_cost(monkeypatch: pytest.MonkeyPatch, library: float | str, own: bool, why: str) -> None:
    costs = library if isinstance(library, str) else AttentionCosts(library, 0, 0, 0)
    monkeypatch.setattr(product_choice, "library_attention", lambda _: costs)
    monkeypatch.setattr(TargetChoice, "contraction_cycles", lambda *_: 1e5)
    with collect() as events:
        program = fused(lambda q, k, v: flash(q, k, v)[0], *_given())
    assert bool(attentions(program)) is own
    assert any(why in event.text for event in events)


def test_nothing_is_said_of_other_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_costs, "_processor", lambda: "x86_64 AVX512")
    found = library_attention(AttentionSizes(12, 128, 128, 64))
    assert isinstance(found, str) and "nothing was measured on such a processor" in found


# Gradients.

gradients = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def _saved(**options: Any) -> list[Tensor]:
    """The gradient of a result, and what its attention was given and found."""
    given = _given()
    return [torch.randn(2, 3, 9, 8), *given, *flash(*given, **options)]


@pytest.mark.parametrize(
    "fn",
    [
        lambda *given: gradients(*given, 0.0, False),
        lambda *given: gradients(*given, 0.0, False)[1],
        lambda *given: gradients(*given, 0.0, False)[2] * 2,
        lambda *given: gradients(*given, 0.0, False, attn_mask=given[2][:, :1, None, :, 0]),
        lambda g, *saved: gradients(g.transpose(1, 2).contiguous().transpose(1, 2), *saved, 0.0, False),
    ],
)
def test_programs_of_gradients(fn: Callable[..., Any]) -> None:
    own(fn, *_saved())


def test_causal_gradients() -> None:
    own(lambda *given: gradients(*given, 0.0, True), *_saved(is_causal=True))


def test_a_whole_step() -> None:
    """What the forward leaves is what the gradients read."""

    def fn(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        y, sums = flash(q, k, v, 0.0, True)
        return (y, *gradients(y.cos(), q, k, v, y, sums, 0.0, True))

    own(fn, *_given(), count=2)
