"""What a decomposition recorded is written again for the next layer, and only for one that is the same in all it sees.

Each program has layers that differ in one thing: its graph is that of a trace in which every decomposition is run.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from smelt.autograd.joint import functional_trace
from smelt.autograd.joint.decomposition_templates import DecompositionTemplate
from smelt.autograd.joint.trace_joint import trace_joint
from smelt.ir.graph import format_graph
from smelt.ops.decompositions import DECOMPOSITIONS
from tests.autograd.helpers import captured

Tensor = torch.Tensor


def eps(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(F.layer_norm(F.layer_norm(x, (8,), w, b), (8,), w, b, 1e-3), (8,), w, b)


def dtype(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    low = F.layer_norm(F.layer_norm(x, (8,), w, b), (8,), w, b)
    wide = F.layer_norm(low.double(), (8,), w.double(), b.double())
    return F.layer_norm(wide.to(torch.bfloat16), (8,), w.to(torch.bfloat16), b.to(torch.bfloat16))


def stride(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    turned = F.layer_norm(x, (8,), w, b).t().reshape(8, 8).t()
    return F.layer_norm(F.layer_norm(turned, (8,), w, b).contiguous(), (8,), w, b)


def offset(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    long = torch.cat([x, x])
    return F.layer_norm(long[:8], (8,), w, b) + F.layer_norm(long[4:12], (8,), w, b)


def given_twice(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.addmm(b, x, x.relu()) + torch.addmm(b, x, x) + F.mse_loss(x, x) + F.mse_loss(x, x.relu())


def no_bias(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(F.layer_norm(F.layer_norm(x, (8,), w, b), (8,), w), (8,), None, b)


def frozen(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(F.layer_norm(F.layer_norm(x, (8,), w, b), (8,), w.detach(), b), (8,), w, b.detach())


def without_gradients(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    before = torch.is_grad_enabled()
    torch._C._set_grad_enabled(False)
    made = F.layer_norm(x, (8,), w, b)
    torch._C._set_grad_enabled(before)
    return F.layer_norm(x + made, (8,), w, b) + made


def zeros(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.elu(x, 0.0) + F.elu(x, -0.0) + F.hardtanh(x, 0.0, 1.0) + F.hardtanh(x, -0.0, 1.0) + F.softplus(x, 1)


def numbers(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(x) + F.gelu(x, approximate="tanh") + F.softplus(x, 1.0) + F.softplus(x, 2.0) + torch.addmm(b, x, x)


def scaled(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.addmm(b, x, x) + torch.addmm(b, x, x, alpha=2) + torch.addmm(b, x, x, beta=0.5)


def dropped(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.dropout(F.dropout(F.dropout(x, 0.1), 0.1), 0.2) + F.dropout(x, 0.1, training=False)


PROGRAMS = [
    eps, dtype, stride, offset, given_twice, no_bias, frozen, without_gradients, zeros, numbers, scaled, dropped
]  # fmt: skip


def _text(program: Callable[..., Any], inputs: list[Tensor]) -> str:
    with torch.random.fork_rng():
        return format_graph(trace_joint(captured(program, inputs), DECOMPOSITIONS).traced.graph)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_layers_that_differ_in_one_thing(program: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = [torch.randn(8, 8, requires_grad=True), *(torch.randn(8, requires_grad=True) for _ in range(2))]
    with_templates = _text(program, inputs)
    monkeypatch.setattr(functional_trace, "call_of", lambda *given: None)
    assert with_templates == _text(program, inputs)


def test_the_same_layer_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[DecompositionTemplate] = []
    write = DecompositionTemplate.written

    def counted(self: DecompositionTemplate, *given: Any) -> Any:
        written.append(self)
        return write(self, *given)

    monkeypatch.setattr(DecompositionTemplate, "written", counted)

    def layers(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        for _ in range(5):
            x = F.layer_norm(x, (8,), w, b)
        return x

    inputs = [torch.randn(8, 8, requires_grad=True), *(torch.randn(8, requires_grad=True) for _ in range(2))]
    _text(layers, inputs)
    assert len(written) >= 8  # all but one, forward and backward
