"""Packed sequences round a recurrent layer: how long they are only data tell, so there are breaks, and few."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import smelt

BREAKS = ["pack_padded_sequence", "zeros", "zeros", "lstm", "pad_packed_sequence"]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    smelt.reset()


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 5)
        self.layer = nn.LSTM(5, 7, batch_first=True, bidirectional=True)
        self.head = nn.Linear(14, 4)

    def forward(self, words: torch.Tensor, lengths: Any) -> Any:
        packed = pack_padded_sequence(self.embedding(words), lengths, batch_first=True, enforce_sorted=False)
        out, (last, _) = self.layer(packed)
        padded, sizes = pad_packed_sequence(out, batch_first=True)
        return self.head(padded).tanh(), last, sizes


@pytest.mark.parametrize("as_list", [False, True], ids=["tensor", "list"])
def test_a_tagger_breaks_where_lengths_are_needed(as_list: bool) -> None:
    model = Tagger()
    eager = copy.deepcopy(model)
    compiled = smelt.compile(model)
    for number in range(4):
        lengths: Any = torch.tensor([2 + number % 3, 6, 4])
        lengths = lengths.tolist() if as_list else lengths
        words = torch.randint(20, (3, 6))
        for module in (compiled, eager):
            module.zero_grad()
        found, expected = compiled(words, lengths), eager(words, lengths)
        torch.testing.assert_close(found, expected)
        for told in (found, expected):
            (told[0].sum() + told[1].pow(2).sum()).backward()
        for mine, its in zip(model.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, its.grad, rtol=1e-4, atol=1e-5)
    told = smelt.explain(Tagger(), backend="eager")(torch.randint(20, (3, 6)), [6, 4, 2] if as_list else lengths)
    reasons = [each.reason for each in told.break_reasons]
    assert {each.code for each in told.break_reasons} == {"B004"} and len(reasons) == len(BREAKS)
    assert all(name in reason for name, reason in zip(BREAKS, reasons, strict=True))


def test_fields_of_a_packed_sequence_are_read() -> None:
    def f(packed: PackedSequence) -> Any:
        return packed.data.sin(), packed.unsorted_indices

    packed = pack_padded_sequence(torch.randn(4, 3, 2), torch.tensor([2, 4, 1]), enforce_sorted=False)
    torch.testing.assert_close(smelt.compile(f, fullgraph=True)(packed), f(packed))


def test_a_list_becomes_a_tensor() -> None:
    def f(x: torch.Tensor) -> Any:
        return x + torch.as_tensor([1, 2, 3]), torch.as_tensor((0.5, 1), dtype=torch.float64)

    x = torch.ones(3)
    torch.testing.assert_close(smelt.compile(f, fullgraph=True)(x), f(x))
