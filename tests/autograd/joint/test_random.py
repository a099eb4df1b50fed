"""Random numbers in compiled training: eager's own, the same mask in forward and backward, the right distribution."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from tests.targets import random_states

BACKENDS = ["aot_eager", "llvm"]


class Block(nn.Module):
    """Attention and an MLP, dropped out in every way there is a layer for."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, dropout=0.2, batch_first=True)
        self.norm = nn.LayerNorm(16)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.3), nn.Linear(32, 16), nn.AlphaDropout(0.1))
        self.channels = nn.Dropout1d(0.25)
        self.slope = nn.RReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + F.dropout(self.attention(x, x, x, need_weights=False)[0], 0.1, self.training)
        x = self.channels(x + self.mlp(self.norm(x)))
        return self.slope(x) + 0.1 * torch.randn_like(x) * torch.rand(x.shape[1], 1)


def trained(compiled: Callable[[nn.Module], Any], steps: int = 4) -> list[Any]:
    torch.manual_seed(0)
    model = Block()
    run = compiled(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found: list[Any] = []
    for _ in range(steps):
        out = run(torch.randn(3, 5, 16))
        loss = out.square().mean()
        optimizer.zero_grad()
        loss.backward()
        found.append((out.detach(), [None if p.grad is None else p.grad.clone() for p in model.parameters()]))
        optimizer.step()
    return [*found, *random_states()]


@pytest.mark.parametrize("recompute", [True, False])
def test_a_model_with_dropout_is_eager_bit_for_bit(recompute: bool) -> None:
    options = {"eager_random": True, "recompute": recompute}
    mine = trained(lambda model: smelt.compile(model, backend="aot_eager", options=options))
    torch.testing.assert_close(mine, trained(lambda model: model), rtol=0, atol=0)


def test_generated_code_draws_what_eager_draws() -> None:
    mine = trained(lambda model: smelt.compile(model, options={"eager_random": True}))
    torch.testing.assert_close(mine, trained(lambda model: model), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("recompute", [True, False])
def test_forward_and_backward_see_one_mask(recompute: bool, backend: str) -> None:
    """The gradient of what was dropped is zero, and of the rest it is what scaled it, computed again or not."""

    def function(x: Any) -> Any:
        return F.dropout(F.dropout(x.exp(), 0.4) * x.sin(), 0.3)

    compiled = smelt.compile(function, backend=backend, options={"recompute": recompute})
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.rand(64, 64, dtype=torch.float64).add(0.5).requires_grad_()
        out = compiled(x)
        (grad,) = torch.autograd.grad(out.sum(), x)
        kept = out.detach() != 0
        assert torch.equal(kept, grad != 0)
        inner = (x.exp() * x.sin() / 0.6 / 0.7)[kept]
        torch.testing.assert_close(out[kept], inner)
        torch.testing.assert_close(grad[kept], (x.exp() * (x.sin() + x.cos()) / 0.6 / 0.7)[kept])


@pytest.mark.parametrize("backend", BACKENDS)
def test_dropout_is_dropout_in_distribution(backend: str) -> None:
    """How many are dropped, over elements and over calls, and that one draw tells nothing of the next."""
    compiled = smelt.compile(lambda x: (F.dropout(x, 0.3), F.dropout(x, 0.3)), backend=backend)
    torch.manual_seed(0)
    x = torch.ones(400, 500, requires_grad=True)
    masks = [(part != 0).double().detach() for _ in range(4) for part in compiled(x)]
    for mask in masks:
        assert abs(mask.mean() - 0.7) < 4 * (0.21 / mask.numel()) ** 0.5
        assert (mask.mean(0) - 0.7).abs().max() < 6 * (0.21 / 400) ** 0.5  # in every column
    for one, other in itertools.pairwise(masks):
        assert abs(((one - 0.7) * (other - 0.7)).mean()) < 4 * 0.21 / one.numel() ** 0.5
        assert abs(((one[:, 1:] - 0.7) * (one[:, :-1] - 0.7)).mean()) < 4 * 0.21 / one.numel() ** 0.5


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_seed_decides(backend: str) -> None:
    compiled = smelt.compile(lambda x: F.dropout(x, 0.5), backend=backend)
    found = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        found.append(compiled(torch.ones(100, requires_grad=True)).detach())
    assert torch.equal(found[0], found[2]) and not torch.equal(found[0], found[1])
