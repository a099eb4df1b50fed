"""A whole training step in one compiled function: zero_grad, forward, backward, clipping and update, in one graph."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from smelt.base.events import collect
from smelt.ir.program import Program

BACKENDS = ["eager", "aot_eager", "llvm"]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    smelt.reset()


def _model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def _step(model: nn.Module, opt: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    opt.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    return loss


def _batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(5, 8, generator=generator), torch.randint(0, 4, (5,), generator=generator)


def _same(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            _same(one[key], other[key])
    elif isinstance(one, list | tuple):
        for each, its in zip(one, other, strict=True):
            _same(each, its)
    else:
        torch.testing.assert_close(one, other)


def train_alike(
    optimizer: Callable[[Any], torch.optim.Optimizer],
    backend: str,
    step: Callable[..., torch.Tensor] = _step,
    steps: int = 5,
    each: Callable[[torch.optim.Optimizer, int], None] = lambda opt, number: None,
) -> dict[str, int]:
    """Train two copies, one of them compiled; all that remains is equal. Returns the counters."""
    ours, theirs = _model(), _model()
    mine, plain = optimizer(ours.parameters()), optimizer(theirs.parameters())
    compiled = smelt.compile(step, fullgraph=True, backend=backend)
    for number in range(steps):
        x, y = _batch(number)
        torch.testing.assert_close(compiled(ours, mine, x, y), step(theirs, plain, x, y))
        each(mine, number)
        each(plain, number)
    _same(list(ours.parameters()), list(theirs.parameters()))
    _same([p.grad for p in ours.parameters()], [p.grad for p in theirs.parameters()])
    _same(mine.state_dict(), plain.state_dict())
    return dict(smelt.counters)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_step_with_sgd_is_one_graph(backend: str, momentum: float) -> None:
    counters = train_alike(lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=momentum), backend)
    assert counters["graphs"] == 2, "one, and one for the state that the first step makes"
    assert counters.get("graph_breaks", 0) == 0 and counters.get("eager_graphs", 0) == 0


def test_a_second_backward_of_the_loss_raises_as_in_eager() -> None:
    model = _model()
    compiled = smelt.compile(_step, fullgraph=True, backend="aot_eager")
    loss = compiled(model, torch.optim.SGD(model.parameters(), lr=0.1), *_batch(0))
    assert loss.requires_grad
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_a_step_with_adam_is_one_graph_whatever_the_rate(backend: str, kind: Any) -> None:
    def schedule(opt: torch.optim.Optimizer, number: int) -> None:
        if number >= 2:
            opt.param_groups[0]["lr"] *= 0.9

    counters = train_alike(lambda parameters: kind(parameters, lr=0.01), backend, steps=6, each=schedule)
    assert counters["graphs"] == 2, "neither the number of steps nor the rate is compiled in"
    assert counters.get("graph_breaks", 0) == 0 and counters.get("eager_graphs", 0) == 0
    assert counters.get("sizes_compiled", 2) == 2


def test_parameters_are_updated_where_they_are() -> None:
    model = _model()
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
    compiled = smelt.compile(_step, fullgraph=True)
    with collect() as events:
        for number in range(3):
            compiled(model, opt, *_batch(number))
    programs = [event.subject for event in events if isinstance(event.subject, Program)]
    handed_back = [operand.shape for operand in programs[-1].outputs if operand is not None]
    assert len(handed_back) == 5, "the loss and four gradients; what Adam keeps and the weights are written in place"


def test_a_write_in_place_is_seen_by_autograd() -> None:
    """A weight that was saved for a backward and then stepped is noticed, as in eager."""

    def step(opt: torch.optim.Optimizer) -> None:
        opt.step()

    model = _model()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    model(_batch(0)[0]).sum().backward()
    loss = model(_batch(1)[0]).square().sum()
    smelt.compile(step, fullgraph=True)(opt)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD, torch.optim.RMSprop])
def test_operators_on_lists_become_kernels(kind: Any) -> None:
    counters = train_alike(lambda parameters: kind(parameters, lr=0.01, foreach=True), "llvm")
    assert counters["graphs"] == 2 and counters.get("eager_graphs", 0) == 0
