"""Attention masks that follow from the program alone: recognised at any size, and kept where samples differ."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import smelt
from smelt.autograd.joint import known_masks
from tests.targets import HOST, chosen

pytestmark = pytest.mark.skipif(chosen[0] != HOST, reason="GPUs attend by other operators with other arguments")

Mask = Callable[[int, int], Tensor]


def packed_causal(batch: int, length: int) -> Tensor:
    """As Hugging Face makes it: causal within sequences, which begin where positions do not go on."""
    positions = torch.arange(length).unsqueeze(0).expand(batch, -1)
    number = (torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1) != 1).cumsum(-1)
    rows, columns = torch.arange(length)[:, None], torch.arange(length)[None, :]
    samples = torch.arange(batch)[:, None, None, None]
    same = number[samples, rows] == number[samples, columns]
    causal = positions[samples, columns] <= positions[samples, rows]
    return (torch.ones((), dtype=torch.bool) & same & causal).expand(batch, -1, length, length)


def added_causal(batch: int, length: int) -> Tensor:
    below = torch.ones(length, length, dtype=torch.bool).tril()
    mask = torch.zeros(length, length).masked_fill(~below, -torch.inf)
    return mask.expand(batch, 1, length, length)


def first_sample_differs(batch: int, length: int) -> Tensor:
    below = torch.ones(length, length, dtype=torch.bool).tril()
    return below.expand(batch, 1, length, length) | (torch.arange(batch) == 0)[:, None, None, None]


def last_sample_differs(batch: int, length: int) -> Tensor:
    counts = length - (torch.arange(batch) == batch - 1).long()
    return (torch.arange(length) < counts[:, None])[:, None, None, :].expand(batch, 1, length, length)


def all_kept(batch: int, length: int) -> Tensor:
    return (torch.arange(length) >= 0).expand(batch, 1, length, length)


def graph_of(mask: Mask, batch: int, length: int) -> str:
    """The call of attention in the ATen graph, without its inputs, checked beside eager."""
    query = torch.randn(batch, 1, length, 8)

    def attend(query: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, query, query, attn_mask=mask(batch, length))

    calls: list[str] = []

    def keep(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        calls.extend(f"{n.args[3:]} {n.kwargs}" for n in gm.graph.nodes if "attention" in str(n.target))
        return gm.forward

    def traced(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return smelt.aot_module_simplified(gm, inputs, keep)

    compiled = smelt.compile(attend, backend=traced)
    torch.testing.assert_close(compiled(query), attend(query))
    (call,) = calls
    return call


# The second size has more elements than the mask may take, were each sample computed.
@pytest.mark.parametrize(("batch", "length"), [(3, 16), (64, 512)])
@pytest.mark.parametrize("mask", [packed_causal, added_causal])
def test_causal_masks_are_recognised(mask: Mask, batch: int, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_masks, "MAX_ELEMENTS", 1 << 21)
    assert graph_of(mask, batch, length) == "(0.0, True) {}"


def test_a_mask_that_keeps_all_is_left_out() -> None:
    assert graph_of(all_kept, 3, 16) == "() {}"


@pytest.mark.parametrize("mask", [first_sample_differs, last_sample_differs])
def test_masks_that_differ_between_samples_stay(mask: Mask) -> None:
    assert "attn_mask" in graph_of(mask, 3, 16)


def test_large_masks_are_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_masks, "MAX_ELEMENTS", 200)
    assert "attn_mask" in graph_of(packed_causal, 3, 16)
