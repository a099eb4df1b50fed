"""Random numbers of tensors that do not lie row by row: the same ones as eager, in the same places."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt.autograd.joint.bernoulli_order import host_samples_in_memory_order

CASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dropout of a transposed input": lambda x: F.dropout(x.transpose(0, 1), 0.3),
    "dropout of a transposed value": lambda x: F.dropout(x.transpose(0, 1).sin(), 0.3),
    "dropout of channels last": lambda x: F.dropout(x[None].contiguous(memory_format=torch.channels_last).cos(), 0.3),
    "dropout in place": lambda x: F.dropout(x.transpose(0, 1).sin(), 0.3, True, True),
    "dropout of a broadcast": lambda x: F.dropout(x[:, :1].expand(2, 5, 8), 0.3),
    "alpha dropout": lambda x: F.alpha_dropout(x.permute(2, 0, 1), 0.3, True),
    "bernoulli in place": lambda x: torch.empty_like(x.transpose(0, 1)).bernoulli_(0.3) * x.transpose(0, 1),
    "bernoulli": lambda x: torch.bernoulli(x.detach().transpose(0, 1), 0.3) * x.transpose(0, 1),
    "bernoulli method": lambda x: x.detach().transpose(0, 1).bernoulli(p=0.3) * x.transpose(0, 1),
    "uniform in place": lambda x: torch.empty_like(x.transpose(0, 1)).uniform_() * x.transpose(0, 1),
    "rand_like": lambda x: torch.rand_like(x.transpose(0, 1)) * x.transpose(0, 1),
}


@pytest.mark.parametrize("name", CASES)
def test_coins_fall_where_eager_tosses_them(name: str) -> None:
    smelt.reset()
    host_samples_in_memory_order.cache_clear()  # so that it is asked while the graph is traced
    outcomes = []
    for function in (CASES[name], smelt.compile(CASES[name])):
        torch.manual_seed(0)
        x = torch.randn(2, 5, 8).requires_grad_()
        result = function(x)
        result.backward(torch.ones_like(result))
        outcomes.append((result, x.grad))
    for mine, eager in zip(*reversed(outcomes), strict=True):
        torch.testing.assert_close(mine, eager)
    assert smelt.counters["eager_graphs"] == 0
