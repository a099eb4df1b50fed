"""Keys and values that heads share are not copied for attention, and nothing else changes."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt.base.events import collect
from smelt.ir.program import Launch, Program

T = torch.Tensor
Fn = Callable[[T, T, T], T]


def repeat(x: T, times: int) -> T:
    batch, heads, length, width = x.shape
    return x[:, :, None].expand(batch, heads, times, length, width).reshape(batch, heads * times, length, width)


def shared(q: T, k: T, v: T) -> T:
    return F.scaled_dot_product_attention(q, repeat(k, 4), repeat(v, 4), is_causal=q.shape[2] > 1)


def masked(q: T, k: T, v: T) -> T:
    mask = torch.ones(q.shape[2], k.shape[2]).tril(2)
    return F.scaled_dot_product_attention(q, repeat(k, 4), repeat(v, 4), attn_mask=mask, scale=0.3)


def interleaved(q: T, k: T, v: T) -> T:
    return F.scaled_dot_product_attention(q, k.repeat_interleave(4, 1), v.repeat_interleave(4, 1))


def wound_round(q: T, k: T, v: T) -> T:
    """Heads of queries go round the heads of keys: not what attention would make of fewer heads."""
    return F.scaled_dot_product_attention(q, k.repeat(1, 4, 1, 1), v.repeat(1, 4, 1, 1))


def keys_alone(q: T, k: T, v: T) -> T:
    return F.scaled_dot_product_attention(q, repeat(k, 4), torch.cat([v, v, v, v], 1))


def given(length: int, dtype: torch.dtype = torch.float32) -> list[T]:
    torch.manual_seed(0)
    shapes = (2, 8, length, 16), (2, 2, length + 3, 16), (2, 2, length + 3, 16)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def programs(fn: Fn, inputs: list[T]) -> list[Program]:
    """Run compiled and eagerly, forward and backward; equal, the forward to the last bit."""
    smelt.reset()
    with collect() as events:
        found, wanted = smelt.compile(fn, fullgraph=True)(*inputs), fn(*inputs)
        assert torch.equal(found, wanted)
        tangent = torch.randn_like(wanted)
        theirs = torch.autograd.grad(wanted, inputs, tangent)
        torch.testing.assert_close(torch.autograd.grad(found, inputs, tangent), theirs)
    return [event.subject for event in events if isinstance(event.subject, Program)]


def copies(program: Program) -> list[str]:
    names = [step.kernel.name for step in program.steps if isinstance(step, Launch)]
    return [name for name in names if "clone" in name or "repeat" in name or "cat" in name]


@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize("fn", [shared, masked])
def test_heads_share_keys(fn: Fn, length: int) -> None:
    forward, _ = programs(fn, given(length))
    assert copies(forward) == []
    # The forward keeps what the heads share: query, keys, values, and what attention itself saves.
    kept = [output for output in forward.outputs if output is not None]
    assert all(getattr(each, "shape", ()) != (2, 8, length + 3, 16) for each in kept)


@pytest.mark.parametrize("fn", [interleaved, wound_round, keys_alone])
def test_what_is_repeated_otherwise(fn: Fn) -> None:
    programs(fn, given(4))


def test_without_gradients_and_for_sizes_that_vary() -> None:
    smelt.reset()
    compiled = smelt.compile(shared)
    with torch.no_grad(), collect() as events:
        for length in (4, 5, 9):
            inputs = given(length)
            assert torch.equal(compiled(*inputs), shared(*inputs))
    found = [event.subject for event in events if isinstance(event.subject, Program)]
    assert any(buffer.spec.varies for program in found for buffer in program.buffers)
    assert all(copies(program) == [] for program in found)


def test_without_fuel_copies_are_made() -> None:
    smelt.reset()
    inputs = [each.detach() for each in given(4)]
    with collect() as events:
        found = smelt.compile(shared, options={"max_rewrites": 0})(*inputs)
    assert torch.equal(found, shared(*inputs))
    (program,) = (event.subject for event in events if isinstance(event.subject, Program))
    assert copies(program)
