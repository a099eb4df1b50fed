"""Writes through conjugated and negated views of a chip's memory: the memory gets the conjugated, negated numbers.

    x.conj().mul_(y)        x = conj(conj(x)·y)
"""

import warnings
from collections.abc import Callable

import pytest
import torch

import smelt

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "conjugated": lambda x: x.conj(),
    "negated": lambda x: x.conj().imag,
    "both": lambda x: torch._neg_view(x.conj()),
    "part": lambda x: x.conj()[1:, ::2],
}
WRITES: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "mul_": lambda view, y: view.mul_(y),
    "of itself": lambda view, y: view.mul_(view),
    "copy_": lambda view, y: view.copy_(y),
    "from the host": lambda view, y: view.copy_(y.cpu()),
    "another dtype": lambda view, y: view.copy_(y.to(torch.complex128 if y.is_complex() else torch.float64)),
    "fill_": lambda view, y: view.fill_(3),
    "row": lambda view, y: view[1].zero_(),
    "out=": lambda view, y: torch.sub(y, 1, out=view),
    "neg_": lambda view, y: view.neg_(),  # PyTorch passes views to these two as they are
    "conj_physical_": lambda view, y: view.conj_physical_(),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("view", VIEWS)
def test_writes_through_conjugated_and_negated_views(view: str, write: str) -> None:
    results = []
    warnings.simplefilter("ignore", smelt.SmeltWarning)  # the host conjugates for this chip
    for device in ("cpu", "sim"):
        x, y = torch.randn(2, 4, 6, dtype=torch.complex64, generator=torch.Generator().manual_seed(1)).to(device)
        target = VIEWS[view](x)
        WRITES[write](target, (y if target.is_complex() else y.real)[-target.shape[0] :, : target.shape[1]].clone())
        results.append((x.cpu(), target.cpu()))
    torch.testing.assert_close(results[1], results[0])
