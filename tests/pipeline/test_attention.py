"""Attention in compiled programs: `F.scaled_dot_product_attention` by kernels of our own, beside eager's errors."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import smelt
from tests.targets import chosen

pytestmark = pytest.mark.skipif(chosen != ("cpu", "cpu"), reason="kernels for GPUs hold no products")
WITH = ({"products": "own"}, {"library": "none"})


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    shared = query.shape[1] != key.shape[1]
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal, enable_gqa=shared)


def no_worse_than_eager(mine: Tensor, eager: Tensor, truth: Tensor) -> None:
    """At most twice eager's error, and some roundings of the largest there is."""
    allowed = 2 * (eager.double() - truth).abs().max() + 16 * torch.finfo(eager.dtype).eps * truth.abs().max()
    assert (mine.double() - truth).abs().max() <= allowed


MASKS = {
    "none": None,
    "causal": None,
    "added": lambda: torch.randn(2, 1, 13, 21),
    "bool": lambda: torch.rand(2, 1, 1, 21) > 0.3,
    "nothing": lambda: torch.arange(13).view(13, 1).expand(13, 21) != 4,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("how", MASKS)
@pytest.mark.parametrize("heads", [(4, 4), (4, 2)], ids=str)
@pytest.mark.parametrize("options", WITH, ids=str)
def test_like_eager(options: dict[str, Any], heads: tuple[int, int], how: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    given = [
        torch.randn(2, tokens, count, 16).to(dtype).transpose(1, 2)
        for tokens, count in ((13, heads[0]), (21, heads[1]), (21, heads[1]))
    ]
    make = MASKS[how]
    mask = None if make is None else make()
    mask = mask.to(dtype) if mask is not None and mask.dtype is not torch.bool else mask
    wide = mask.double() if mask is not None and mask.dtype is not torch.bool else mask
    compiled = smelt.compile(attend, fullgraph=True, options={**options, "check_specs": True})
    with torch.no_grad():
        mine, eager = compiled(*given, mask, how == "causal"), attend(*given, mask, how == "causal")
        truth = attend(*(each.double() for each in given), wide, how == "causal")
    assert torch.equal(mine.isnan(), eager.isnan()) and mine.dtype is eager.dtype
    no_worse_than_eager(mine.nan_to_num(), eager.nan_to_num(), truth.nan_to_num())


@pytest.mark.parametrize("options", WITH, ids=str)
@pytest.mark.parametrize("heads", [(3, 3), (6, 2), (4, 1)], ids=str)
@pytest.mark.parametrize("how", ["none", "causal", "added"])
def test_gradients(options: dict[str, Any], heads: tuple[int, int], how: str) -> None:
    torch.manual_seed(0)
    counts = ((13, heads[0]), (21, heads[1]), (21, heads[1]))
    given = [torch.randn(2, tokens, count, 16).transpose(1, 2).requires_grad_() for tokens, count in counts]
    make = MASKS[how]
    mask, causal = None if make is None else make(), how == "causal"
    compiled = smelt.compile(attend, fullgraph=True, options={**options, "check_specs": True})
    wide = [each.detach().double().requires_grad_() for each in given]
    found = [
        torch.autograd.grad(function(*tensors, added, causal).sin().sum(), tensors)
        for function, tensors, added in (
            (compiled, given, mask), (attend, given, mask), (attend, wide, None if mask is None else mask.double()),
        )
    ]  # fmt: skip
    for mine, eager, truth in zip(*found, strict=True):
        no_worse_than_eager(mine, eager, truth)


def test_sizes_that_vary() -> None:
    """The library's where it may be called, taken apart where it may not."""
    for options in WITH:
        compiled = smelt.compile(attend, dynamic=True, options=options)
        for tokens in (5, 7, 12):
            given = [torch.randn(1, 2, tokens, 8) for _ in range(3)]
            torch.testing.assert_close(compiled(*given, None, True), attend(*given, None, True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
def test_gradients_of_shared_heads_where_sizes_vary(causal: bool, dtype: torch.dtype) -> None:
    compiled = smelt.compile(attend, fullgraph=True, dynamic=True, options={"library": "none"})
    for tokens in (8, 11, 30):
        torch.manual_seed(tokens)
        given = [torch.randn(2, heads, tokens, 16).to(dtype).requires_grad_() for heads in (6, 2, 2)]
        wide = [each.detach().double().requires_grad_() for each in given]
        found = [
            torch.autograd.grad(function(*tensors, None, causal).sin().sum(), tensors)
            for function, tensors in ((compiled, given), (attend, given), (attend, wide))
        ]
        for mine, eager, truth in zip(*found, strict=True):
            no_worse_than_eager(mine, eager, truth)
