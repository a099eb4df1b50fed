"""Modules that multiply, with products by kernels of our own: forward and backward against eager."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.base.events import collect
from smelt.base.options import Options
from tests.absent_device.ahead import compile_ahead, spec_like
from tests.targets import device_type

OWN = {"products": "own", "check_specs": True}


class Attention(nn.Module):
    """Attention as products, heads by views, a mask added."""

    def __init__(self, heads: int = 4, width: int = 32) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        scores = q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))


class Gated(nn.Module):
    """A feed-forward block with a gate and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(24)
        self.gate, self.up, self.down = nn.Linear(24, 40), nn.Linear(24, 40), nn.Linear(40, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))


class Products(nn.Module):
    """Products that are no layers."""

    def forward(self, a: torch.Tensor, b: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        first = torch.addmm(v, a, b, alpha=0.5, beta=2) + torch.einsum("ik,kj->ij", a, b)
        second = torch.baddbmm(first[None], a[None].expand(2, -1, -1), b[None].expand(2, -1, -1), beta=0.5)
        return torch.mv(second.sum(0), v) + torch.dot(v, v) + torch.addmv(a[:, 0], first, v, alpha=3)


MODULES: dict[str, tuple[Callable[[], nn.Module], list[tuple[int, ...]]]] = {
    "perceptron": (lambda: nn.Sequential(nn.Linear(20, 33), nn.GELU(), nn.Linear(33, 7)), [(5, 3, 20)]),
    "one row": (lambda: nn.Sequential(nn.Linear(20, 33), nn.ReLU(), nn.Linear(33, 7)), [(1, 20)]),
    "one column": (lambda: nn.Sequential(nn.Linear(20, 1), nn.Tanh(), nn.Linear(1, 4)), [(6, 20)]),
    "attention": (Attention, [(2, 9, 32)]),
    "gated": (Gated, [(3, 5, 24)]),
    "products": (Products, [(6, 5), (5, 7), (7,)]),
    "encoder": (lambda: nn.TransformerEncoderLayer(32, 4, 48, dropout=0.0, batch_first=True), [(2, 9, 32)]),
    "gru cell": (lambda: nn.GRUCell(12, 20), [(3, 12)]),
    "normed": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(20, 9)), [(4, 20)]),
    "tied": (lambda: nn.Sequential(*[nn.Linear(16, 16)] * 2), [(4, 16)]),
}


def assert_alike(module: nn.Module, inputs: list[torch.Tensor], **tolerance: Any) -> None:
    """Results, gradients of parameters and of inputs."""
    ours = copy.deepcopy(module)
    compiled = smelt.compile(ours, options=OWN)
    grads = []
    for each, parameters in ((module, module.parameters()), (compiled, ours.parameters())):
        given = [x.clone().requires_grad_() for x in inputs]
        result = each(*given)
        result.backward(torch.linspace(-1, 1, result.numel()).view_as(result).to(result.dtype))
        grads.append([result.detach(), *(x.grad for x in given), *(p.grad for p in parameters)])
    torch.testing.assert_close(grads[1], grads[0], **tolerance)


def _inputs(name: str, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, list[torch.Tensor]]:
    torch.manual_seed(0)
    make, shapes = MODULES[name]
    return make().to(dtype), [torch.randn(shape).to(dtype) for shape in shapes]


@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str) -> None:
    assert_alike(*_inputs(name), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", ["perceptron", "attention", "gated", "products"])
def test_modules_in_double(name: str) -> None:
    assert_alike(*_inputs(name, torch.float64))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["perceptron", "attention", "gated"])
def test_modules_in_16_bits(name: str, dtype: torch.dtype) -> None:
    assert_alike(*_inputs(name, dtype), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("name", ["perceptron", "attention"])
def test_without_gradients(name: str) -> None:
    module, inputs = _inputs(name)
    compiled = smelt.compile(module, options=OWN)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*inputs), module(*inputs), rtol=2e-4, atol=2e-5)


def test_autocast() -> None:
    module, inputs = _inputs("perceptron")
    compiled = smelt.compile(module, options=OWN)
    with torch.autocast(device_type(), torch.bfloat16), torch.no_grad():
        result = compiled(*inputs)
        assert result.dtype is torch.bfloat16
        torch.testing.assert_close(result, module(*inputs), rtol=0.05, atol=0.05)


def test_sizes_that_vary() -> None:
    module, _ = _inputs("perceptron")
    compiled = smelt.compile(module, options=OWN, dynamic=True)
    for rows in (3, 5, 8):
        x = torch.randn(rows, 20)
        torch.testing.assert_close(compiled(x), module(x), rtol=2e-4, atol=2e-5)


def test_deterministic() -> None:
    """The same bits, whatever the number of threads."""
    module, inputs = _inputs("attention")
    results = []
    threads = torch.get_num_threads()
    for count in (1, 2, 1):
        torch.set_num_threads(count)
        smelt.reset()
        results.append(smelt.compile(module, options=OWN)(*inputs))
    torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_the_result_may_be_written_to_what_is_read() -> None:
    """`w` becomes a product of itself: the old one is read till the last point is written."""

    def step(w: torch.Tensor, x: torch.Tensor) -> None:
        with torch.no_grad():
            w.copy_(torch.tanh(w @ x))

    torch.manual_seed(0)
    w, x = torch.randn(17, 17), torch.randn(17, 17)
    expected = torch.tanh(w @ x)
    smelt.compile(step, options=OWN)(w, x)
    torch.testing.assert_close(w, expected, rtol=2e-4, atol=2e-5)


LIBRARY = "mm is a library call: it is left to the library, as the option `products` asks for"
BY_KERNEL = "computes {mm, add, gelu}: it multiplies 15×33×20, as the option `products` asks for"


def test_the_reason_is_explained() -> None:
    module, inputs = _inputs("perceptron")
    for wanted, told in (("own", BY_KERNEL), ("library", LIBRARY)):
        with collect() as events, torch.no_grad():
            smelt.compile(module, options={"products": wanted})(*inputs)
        assert any(told in event.text for event in events), wanted


@pytest.mark.parametrize(("wanted", "told"), [("own", BY_KERNEL), ("library", LIBRARY)])
def test_the_reason_is_explained_for_a_gpu(wanted: str, told: str) -> None:
    """Products are kernels there too where that is asked for, and it is said why."""
    with torch.device("cpu"):
        module, _ = _inputs("perceptron")
    with collect() as events, torch.no_grad():
        compile_ahead(module, [spec_like((5, 3, 20))], Options(target="sm_90", products=wanted))
    assert any(told in event.text for event in events)
