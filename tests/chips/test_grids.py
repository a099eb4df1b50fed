"""What chips with grids compute without a library: products as sums, by GPU schedules on the host."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import smelt

OPTIONS = {"target": "simt-host", "library": "none"}
CALLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mm": lambda x: x @ x.t(),
    "linear": lambda x: F.linear(x, x, x[:, 0]),
    "bmm": lambda x: torch.bmm(x.expand(2, *x.shape), x.t().expand(2, *reversed(x.shape))),
    "addmm": lambda x: torch.addmm(x[:, :1], x, x.t(), beta=0.5, alpha=2),
}


@pytest.mark.parametrize("name", CALLS)
def test_products_are_sums_where_kernels_hold_no_contractions(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 9)
    found = smelt.compile(CALLS[name], options=OPTIONS, fullgraph=True)(x)
    torch.testing.assert_close(found, CALLS[name](x), rtol=1e-4, atol=1e-5)


def test_their_gradients_are_too() -> None:
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(6, 4), torch.randn(5, 6)
    smelt.compile(layer, options=OPTIONS, fullgraph=True)(x).square().sum().backward()
    assert layer.weight.grad is not None
    found = layer.weight.grad.clone()
    layer.zero_grad()
    layer(x).square().sum().backward()
    torch.testing.assert_close(found, layer.weight.grad, rtol=1e-4, atol=1e-5)
