"""`flex_attention` in captured code: one graph, eager's numbers, masks from outside and made inside."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import (
    AuxRequest,
    BlockMask,
    and_masks,
    create_block_mask,
    create_mask,
    flex_attention,
    or_masks,
)

import smelt
from tests.capture.programs import Captured

LENGTH = 128
BIAS = torch.randn(4, LENGTH)
DOCUMENTS = torch.arange(LENGTH) // 50


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def window(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q - k).abs() < 20


def same_document(b: Any, h: Any, q: Any, k: Any) -> Any:
    return DOCUMENTS[q] == DOCUMENTS[k]


def relative(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score + (q - k) * 0.01


def alibi(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score + BIAS[h, k] * torch.exp2(-(h + 1.0))


def capped(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return 20 * torch.tanh(score / 20)


def _mask(kind: Callable[..., Any], length: int = LENGTH) -> BlockMask:
    return create_block_mask(kind, None, None, length, length, device="cpu")


def _heads(length: int = LENGTH, heads: int = 4, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(2, heads, length, 16, dtype=dtype)


def _same(function: Callable[..., Any], *args: Any, runner: Captured | None = None) -> Captured:
    runner = runner or Captured()
    mine, eager = runner(function, *args), function(*args)
    for one, other in zip(*(each if isinstance(each, tuple) else (each,) for each in (mine, eager)), strict=True):
        if other is not None:
            torch.testing.assert_close(one, other)
            assert one.stride() == other.stride()
    assert runner.breaks == []
    return runner


@pytest.mark.parametrize("score_mod", [None, relative, alibi, capped])
@pytest.mark.parametrize("mask_mod", [None, causal, same_document, and_masks(causal, window), or_masks(causal, window)])
def test_a_mask_from_outside(score_mod: Any, mask_mod: Any) -> None:
    mask = None if mask_mod is None else _mask(mask_mod)
    _same(lambda q, k, v: flex_attention(q, k, v, score_mod, mask) + 1, *[_heads() for _ in range(3)])


@pytest.mark.parametrize("mask_mod", [causal, same_document, and_masks(causal, window)])
def test_a_mask_made_inside(mask_mod: Any) -> None:
    def program(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        mask = create_block_mask(mask_mod, 2, None, q.shape[2], k.shape[2], device=q.device)
        return flex_attention(q, k, v, block_mask=mask) + 1

    runner = _same(program, *[_heads() for _ in range(3)])
    _same(program, *[_heads(2 * LENGTH if mask_mod is causal else LENGTH) for _ in range(3)], runner=runner)


def test_a_mask_that_is_made_inside_leaves_as_a_block_mask() -> None:
    def program(x: torch.Tensor) -> Any:
        return create_block_mask(causal, None, None, x.shape[0], x.shape[0], device="cpu"), x + 1

    runner = Captured()
    mask, _ = runner(program, torch.randn(300))
    expected = _mask(causal, 300)
    assert isinstance(mask, BlockMask) and str(mask) == str(expected) and runner.breaks == []
    for mine, theirs in zip(mask.as_tuple()[:-1], expected.as_tuple()[:-1], strict=True):
        assert mine is theirs is None or torch.equal(torch.as_tensor(mine), torch.as_tensor(theirs))


def test_dense_masks() -> None:
    _same(lambda x: create_mask(causal, 1, 2, 8, 8, device="cpu") & (x > 0), torch.randn(8))


def test_layouts_groups_and_what_is_returned_beside() -> None:
    turned = [torch.randn(2, LENGTH, 4, 16).transpose(1, 2) for _ in range(3)]
    _same(lambda q, k, v: flex_attention(q, k, v), *turned)
    grouped = (_heads(), _heads(heads=2), _heads(heads=2))
    _same(lambda q, k, v: flex_attention(q, k, v, relative, enable_gqa=True, scale=0.3), *grouped)
    beside = AuxRequest(lse=True)
    _same(lambda q, k, v: flex_attention(q, k, v, return_aux=beside)[1].lse, *turned)
    low = [_heads(dtype=torch.bfloat16) for _ in range(3)]
    _same(lambda q, k, v: flex_attention(q, k, v, capped), *low)


def test_another_mask_and_another_score_mod_are_other_graphs() -> None:
    runner, heads = Captured(), [_heads() for _ in range(3)]
    masks = {"causal": _mask(causal), "window": _mask(window)}

    def program(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kind: str, score_mod: Any) -> torch.Tensor:
        return flex_attention(q, k, v, score_mod, masks[kind])

    for kind in ("causal", "window", "causal"):
        for score_mod in (relative, capped):
            _same(program, *heads, kind, score_mod, runner=runner)
    masks["causal"] = _mask(window)
    _same(program, *heads, "causal", relative, runner=runner)


def test_changed_contents_of_captured_tensors_are_read() -> None:
    bias = torch.randn(LENGTH)
    heads = [_heads() for _ in range(3)]

    def program(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return flex_attention(q, k, v, lambda score, b, h, i, j: score + bias[j])

    runner = _same(program, *heads)
    bias.mul_(-3)
    _same(program, *heads, runner=runner)
    assert len(runner.graphs) == 1


def test_wrong_arguments_raise_as_in_eager() -> None:
    small = _mask(causal, 64)
    runner = Captured()
    for args in ([_heads(), _heads(), _heads()], [_heads(64)[:, :3], _heads(64), _heads(64)]):
        with pytest.raises(ValueError) as expected:
            flex_attention(*args, block_mask=small)
        with pytest.raises(ValueError) as raised:
            runner(lambda q, k, v: flex_attention(q, k, v, block_mask=small), *args)
        assert str(raised.value) == str(expected.value)


def test_compiled_by_llvm() -> None:
    heads = [_heads() for _ in range(3)]
    mask = _mask(causal)

    def program(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return flex_attention(q, k, v, alibi, mask)

    smelt.reset()
    torch.testing.assert_close(smelt.compile(program, fullgraph=True)(*heads), program(*heads))
    assert smelt.counters["kernels"] > 0
