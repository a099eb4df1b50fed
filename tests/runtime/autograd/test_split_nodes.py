"""Results that lead to different inputs, with histories apart from each other: `smelt.runtime.autograd.split_nodes`."""

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import smelt

BACKENDS = ["aot_eager", "llvm"]
Tensors = list[torch.Tensor | None]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    smelt.reset()


def _two(h: torch.Tensor, k: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (h.sin() * w).exp(), (k.cos() * w).exp(), (h * k).tanh()


class _Graph:
    """A call of a function on tensors that eager code computed, and what came out."""

    def __init__(self, function: Callable[..., Any]) -> None:
        torch.manual_seed(0)
        self.a, self.b, self.w = (torch.randn(4, requires_grad=True) for _ in range(3))
        self.h, self.k = self.a.exp() * 2, self.b.exp() * 3
        self.p, self.q, self.r = function(self.h, self.k, self.w)

    def gradients(self) -> Tensors:
        return [leaf.grad for leaf in (self.a, self.b, self.w)]


def _one_after_the_other(graph: _Graph) -> Tensors:
    graph.p.sum().backward()
    assert graph.b.grad is None
    graph.q.sum().backward()
    return graph.gradients()


def _together(graph: _Graph) -> Tensors:
    (graph.p.sum() + graph.q.sum() + graph.r.sum()).backward()
    return graph.gradients()


def _retained(graph: _Graph) -> Tensors:
    graph.p.sum().backward(retain_graph=True)
    (graph.p.sum() + graph.q.sum()).backward(retain_graph=True)
    graph.r.sum().backward()
    return graph.gradients()


def _twice_differentiated(graph: _Graph) -> Tensors:
    (slope,) = torch.autograd.grad(graph.p.sum() + graph.r.sum(), graph.a, create_graph=True)
    (slope.pow(2).sum() + graph.q.sum()).backward()
    return graph.gradients()


def _asked_for(graph: _Graph) -> Tensors:
    (slope,) = torch.autograd.grad(graph.p.sum() + graph.q.sum(), graph.h, retain_graph=True)
    graph.q.sum().backward()
    return [slope, *graph.gradients()]


def _batched(graph: _Graph) -> Tensors:
    (rows,) = torch.autograd.grad(graph.p, graph.h, torch.eye(4), is_grads_batched=True, retain_graph=True)
    graph.q.sum().backward()
    return [rows, *graph.gradients()]


def _looked_at(graph: _Graph) -> Tensors:
    seen: Tensors = []
    graph.p.register_hook(seen.append)
    graph.q.register_hook(seen.append)
    graph.h.retain_grad()
    graph.p.sum().backward()
    graph.q.sum().backward()
    return [*seen, graph.h.grad, *graph.gradients()]


def _hooked_leaf(graph: _Graph) -> Tensors:
    graph.p.sum().backward()
    graph.w.register_hook(lambda gradient: gradient * 2)
    graph.q.sum().backward()
    return graph.gradients()


WAYS = [
    _one_after_the_other,
    _together,
    _retained,
    _twice_differentiated,
    _asked_for,
    _batched,
    _looked_at,
    _hooked_leaf,
]


def _alike(ours: Tensors, eagers: Tensors) -> None:
    for one, other in zip(ours, eagers, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("captured", [False, True], ids=["engine", "compiled autograd"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("backwards", WAYS)
def test_backwards_reach_what_eager_reaches(backwards: Any, backend: str, captured: bool) -> None:
    compiled = smelt.compile(_two, backend=backend, fullgraph=True)
    for _ in range(2):
        if captured:
            with smelt.compiled_autograd.enable(smelt.compile(backend=backend)):
                ours = backwards(_Graph(compiled))
        else:
            ours = backwards(_Graph(compiled))
        _alike(ours, backwards(_Graph(_two)))


@pytest.mark.parametrize("captured", [False, True], ids=["engine", "compiled autograd"])
def test_a_second_backward_of_one_result_raises_as_in_eager(captured: bool) -> None:
    for function in (_two, smelt.compile(_two)):
        graph = _Graph(function)
        with smelt.compiled_autograd.enable("aot_eager") if captured else smelt.compiled_autograd.disable():
            graph.p.sum().backward()
            with pytest.raises(RuntimeError, match="backward through the graph a second time"):
                graph.p.sum().backward()
            graph.q.sum().backward()
            with pytest.raises(RuntimeError, match="backward through the graph a second time"):
                graph.q.sum().backward()


def test_captured_backwards_are_captured_once() -> None:
    compiled = smelt.compile(_two)
    with smelt.compiled_autograd.enable(smelt.compile()):
        for _ in range(3):
            _one_after_the_other(_Graph(compiled))
    assert smelt.counters["compiled_autograd_captures"] == 2
    assert smelt.counters["engine_backwards"] == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_hooks_of_leaves_that_nothing_arrives_for_are_not_called(backend: str) -> None:
    one, other = nn.Linear(3, 3), nn.Linear(3, 3)
    calls: list[torch.Tensor] = []
    other.weight.register_hook(calls.append)  # each call appends a gradient, never None
    compiled = smelt.compile(lambda x: (one(x).sum(), other(x).sum()), backend=backend)
    first, second = compiled(torch.ones(2, 3))
    first.backward()
    assert calls == []
    second.backward()
    assert [gradient.shape for gradient in calls] == [(3, 3)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_network_judges_two_images(backend: str) -> None:
    """As in adversarial training: what was made is judged together with what was found."""
    torch.manual_seed(0)
    judge, maker = nn.Linear(4, 1), nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def losses(found: torch.Tensor, made: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return judge(found).exp().mean(), judge(made).exp().mean()

    def train(function: Callable[..., Any]) -> Tensors:
        noise = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
        found = torch.ones(5, 4).requires_grad_() * 2
        on_found, on_made = function(found, maker(noise))
        on_found.backward()
        on_made.backward()
        parameters = [*judge.parameters(), *maker.parameters()]
        gradients = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        return gradients

    _alike(train(smelt.compile(losses, backend=backend)), train(losses))


@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs_that_are_written_and_results_that_lean_on_others(backend: str) -> None:
    def write(h: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h.mul_(3)
        first = k.sin()
        return first, first.exp(), h.cos()

    def train(function: Callable[..., Any]) -> Tensors:
        a, b = (torch.full((3,), value, requires_grad=True) for value in (0.5, 0.25))
        h, k = a.sin(), b.exp()
        first, second, third = function(h, k)
        seen: Tensors = []
        first.register_hook(seen.append)
        third.sum().backward(retain_graph=True)
        second.sum().backward()
        h.sum().backward()
        return [*seen, a.grad, b.grad]

    _alike(train(smelt.compile(write, backend=backend)), train(write))


def test_nothing_is_kept_in_circles() -> None:
    compiled = smelt.compile(_two)
    _together(_Graph(compiled))
    gc.collect()
    gc.disable()
    try:
        graph = _Graph(compiled)
        leaf = weakref.ref(graph.a)
        del graph
        assert leaf() is None
    finally:
        gc.enable()


def test_what_is_saved_is_let_go_with_the_last_backward() -> None:
    saved: list[weakref.ref[Any]] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept = tensor.clone()
        saved.append(weakref.ref(kept))
        return kept

    h, k, w = (torch.randn(4, requires_grad=True) for _ in range(3))
    compiled = smelt.compile(_two)
    given = h * 2, k * 2, w
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        p, q, r = compiled(*given)
    assert saved
    p.sum().backward(retain_graph=True)
    (q.sum() + r.sum()).backward(retain_graph=True)
    (p.sum() + q.sum() + r.sum()).backward()
    gc.collect()
    assert all(reference() is None for reference in saved)


def test_two_threads_go_back_through_one_graph() -> None:
    compiled = smelt.compile(_two)
    _together(_Graph(compiled))
    expected = _together(_Graph(_two))
    graph = _Graph(compiled)
    total = graph.p.sum() + graph.q.sum() + graph.r.sum()
    found: list[Any] = []

    def go_back() -> None:
        for _ in range(20):
            found.append(torch.autograd.grad(total, (graph.a, graph.b, graph.w), retain_graph=True))

    threads = [threading.Thread(target=go_back) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 40
    for gradients in found:
        _alike(list(gradients), expected)
