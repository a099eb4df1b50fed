"""Values and gradients of many small functions against eager, in float64, under both partitions."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt
from tests.autograd.helpers import PARTITIONS, compare


def g(*shape: int) -> torch.Tensor:
    """A float64 input that requires grad."""
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def c(*shape: int) -> torch.Tensor:
    """A float64 input that does not."""
    return torch.randn(*shape, dtype=torch.float64)


def mlp(x: Any, w1: Any, b1: Any, w2: Any) -> Any:
    return F.linear(F.relu(F.linear(x, w1, b1)), w2)


def block(x: Any, w: Any, b: Any) -> Any:
    return F.softmax(F.gelu(F.layer_norm(x, (8,), w, b)), -1) * x.tanh()


def attention(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def batch_norm(x: Any, mean: Any, var: Any, w: Any, b: Any) -> Any:
    return F.relu(F.batch_norm(x, mean, var, w, b, training=True))


def many_outputs(x: Any, y: Any) -> Any:
    return x * y, x.argmax(), (x + y).detach(), 3, None, y.sum(0), x > 0


def no_grad_region(x: Any, w: Any) -> Any:
    torch._C._set_grad_enabled(False)
    scale = (x * x).sum() + w.sum()
    torch._C._set_grad_enabled(True)
    return x * scale * w


def writes_intermediate(x: Any) -> Any:
    y = x * 2
    y[0].mul_(3)
    y.t().add_(1)
    return y.sin() * x


CASES: dict[str, tuple[Callable[..., Any], Callable[[], list[torch.Tensor]]]] = {
    "mlp": (mlp, lambda: [g(4, 5), g(6, 5), g(6), g(3, 6)]),
    "mlp, input without grad": (mlp, lambda: [c(4, 5), g(6, 5), g(6), g(3, 6)]),
    "mlp, frozen first layer": (mlp, lambda: [c(4, 5), c(6, 5), c(6), g(3, 6)]),
    "block": (block, lambda: [g(4, 8), g(8), g(8)]),
    "attention": (attention, lambda: [g(2, 2, 4, 8), g(2, 2, 4, 8), g(2, 2, 4, 8)]),
    "batch norm": (batch_norm, lambda: [g(6, 3), c(3), c(3).abs(), g(3), g(3)]),
    "many outputs": (many_outputs, lambda: [g(3, 4), g(3, 4)]),
    "no_grad region": (no_grad_region, lambda: [g(3, 4), g(4)]),
    "writes an intermediate": (writes_intermediate, lambda: [g(3, 3)]),
    "unused input": (lambda x, y: x.exp(), lambda: [g(3), g(4)]),
    "unused output of an op": (lambda x: x.max(0)[0] * 2, lambda: [g(3, 4)]),
    "used twice": (lambda x: x * x + x, lambda: [g(3)]),
    "broadcast": (lambda x, y: x * y + y, lambda: [g(3, 1), g(4)]),
    "views": (lambda x: x.view(-1)[2:7].unsqueeze(0).expand(3, 5) * x.t().reshape(-1)[:5], lambda: [g(3, 4)]),
    "split": (lambda x: [part * n for n, part in enumerate(x.split(2, 1), 1)], lambda: [g(3, 6)]),
    "cat and stack": (
        lambda x, y: torch.cat([x, y]).sin() + torch.stack([x, y]).view(6, 4),
        lambda: [g(3, 4), g(3, 4)],
    ),
    "embedding": (lambda i, w: F.embedding(i, w).tanh(), lambda: [torch.randint(0, 9, (2, 5)), g(9, 4)]),
    "cross entropy": (lambda x, t: F.cross_entropy(x, t), lambda: [g(5, 7), torch.randint(0, 7, (5,))]),
    "mse": (lambda x, t: F.mse_loss(x.sigmoid(), t), lambda: [g(5, 7), c(5, 7)]),
    "conv": (lambda x, w, b: F.conv2d(x, w, b, padding=1).relu(), lambda: [g(2, 3, 5, 5), g(4, 3, 3, 3), g(4)]),
    "max pool": (lambda x: F.max_pool2d(x, 2).sum(), lambda: [g(2, 3, 4, 4)]),
    "dropout": (lambda x: F.dropout(x.sin(), 0.4) * x, lambda: [g(16, 16)]),
    "dropout twice": (lambda x: F.dropout(x, 0.4) * F.dropout(x, 0.4), lambda: [g(16, 16)]),
    "unused random numbers": (lambda x: (torch.rand(3), x * torch.rand(4))[1], lambda: [g(4)]),
    "factories": (lambda x: x + torch.arange(4) * torch.ones(4), lambda: [g(4)]),
    "tensor literal": (lambda x: x * torch.tensor([1.0, 2.0], dtype=torch.float64), lambda: [g(2)]),
    "where": (lambda x: torch.where(x > 0, x.exp(), x * 3), lambda: [g(20)]),
    "leaky relu, hardtanh": (lambda x: F.leaky_relu(x, 0.1) + F.hardtanh(x), lambda: [g(20)]),
    "integer output": (lambda x: x.topk(2), lambda: [g(5)]),
    "same value twice": (lambda x: (x + 1, x + 1), lambda: [g(5)]),
    "same value, different gradient": (lambda x: (x * x.detach(), x * x), lambda: [g(5)]),
    "numbers of different kinds": (lambda n, x: (n * 1, n * 1.0, n + True, x * n), lambda: [torch.arange(4), g(4)]),
    "non-contiguous inputs": (lambda x, y: (x @ y).sin(), lambda: [g(4, 3).detach().t().requires_grad_(), g(4, 5)]),
    "double softplus": (lambda x: F.softplus(x) + F.elu(x) + F.silu(x), lambda: [g(9)]),
    "gradient of an input that is returned": (lambda x: (x, x * 2), lambda: [g(5)]),
    "to another dtype": (lambda x: (x.float() * 2).double().sin(), lambda: [g(5)]),
    "complex": (lambda x: torch.view_as_real(torch.fft.fft(x)).square().sum(), lambda: [g(8)]),
    "lstm cell": (
        lambda x, h, s, wi, wh: torch._VF.lstm_cell(x, (h, s), wi, wh),
        lambda: [g(2, 3), g(2, 4), g(2, 4), g(16, 3), g(16, 4)],
    ),
}


@pytest.mark.parametrize("partition_fn", PARTITIONS, ids=["default", "min_cut"])
@pytest.mark.parametrize("name", CASES)
def test_against_eager(name: str, partition_fn: Any) -> None:
    torch.manual_seed(0)
    function, make = CASES[name]
    compare(function, make(), partition_fn)


def added(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x.view(6) + w).exp()


def crossed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x.t() * 2 + w.view(3, 2)).sin() + x.t()


def side_by_side(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.cat([x.view(6), w, x.view(6)])


def viewed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x.view(6) + w


@pytest.mark.parametrize("backend", ["aot_eager", "llvm"])
@pytest.mark.parametrize("function", [added, crossed, side_by_side, viewed])
def test_gradients_of_two_leaves_do_not_share_memory(function: Callable[..., torch.Tensor], backend: str) -> None:
    """One gradient was a view of the other; both leaves took theirs as it was, and a second step was added twice."""
    torch.manual_seed(0)
    given = torch.randn(2, 3), torch.randn(6)
    compiled = smelt.compile(function, backend=backend, fullgraph=True)
    found: list[list[torch.Tensor | None]] = []
    for call in (function, compiled):
        x, w = (tensor.clone().requires_grad_() for tensor in given)
        for _ in range(3):
            call(x, w).sum().backward()
        found.append([x.grad, w.grad])
    x, w = (tensor.clone().requires_grad_() for tensor in given)
    tangent = torch.ones_like(function(x, w))
    for _ in range(2):
        compiled(x, w).backward(tangent)  # eager makes x's gradient a view of it, and adds to both
    assert x.grad is not None and w.grad is not None and torch.equal(tangent, torch.ones_like(tangent))
    assert x.grad.untyped_storage().data_ptr() != w.grad.untyped_storage().data_ptr()
    for mine, theirs in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(mine, theirs)
