"""The guide on compiled autograd: the whole backward captured, hooks included, and why it is captured again."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

import smelt
from smelt.base.events import Event, collect


@pytest.fixture(autouse=True)
def switched_off_afterwards() -> Iterator[None]:
    yield
    smelt.config.compiled_autograd = False


OPERATORS: list[Callable[..., torch.Tensor]] = [torch.add, torch.sub, torch.mul, torch.div]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(10, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.linear(x)
        return result


def texts(events: list[Event]) -> list[str]:
    return [event.text for event in events if event.channel == "compiled_autograd"]


def expected(model: Model, x: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(model(x).sum(), list(model.parameters())))


def same_gradients(model: Model, x: torch.Tensor) -> bool:
    found = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return all(torch.allclose(have, want) for have, want in zip(found, expected(model, x), strict=True))


def test_the_basic_use() -> None:
    model, x = Model(), torch.randn(10)
    smelt.config.compiled_autograd = True

    @smelt.compile
    def train(model: Model, x: torch.Tensor) -> None:
        loss = model(x).sum()
        loss.backward()

    train(model, x)
    smelt.config.compiled_autograd = False
    assert same_gradients(model, x)


def test_nodes_of_ahead_of_time_graphs_are_named_after_them() -> None:
    model, x = Model(), torch.randn(10)
    loss = smelt.compile(model)(x).sum()
    smelt.config.compiled_autograd = True
    with collect() as events:
        loss.backward()
    (graph,) = [text for text in texts(events) if text.startswith("captured")]
    assert " = aten.expand.default(" in graph  # of the sum, which was not compiled
    assert all(f"aot{number}_" in graph for number in [graph.split("aot")[1].split("_")[0]])
    smelt.config.compiled_autograd = False
    assert same_gradients(model, x)


def test_other_options_for_the_backward_by_a_compiled_lambda() -> None:
    model, x = Model(), torch.randn(10)

    def train(model: Model, x: torch.Tensor) -> None:
        model = smelt.compile(model)
        loss = model(x).sum()
        smelt.config.compiled_autograd = True
        smelt.compile(lambda: loss.backward(), fullgraph=True)()

    train(model, x)
    assert smelt.counters["compiled_autograd_captures"] == 1
    smelt.config.compiled_autograd = False
    assert same_gradients(model, x)


def test_other_options_for_the_backward_by_a_context_manager() -> None:
    model, x = Model(), torch.randn(10)

    def train(model: Model, x: torch.Tensor) -> None:
        model = smelt.compile(model)
        loss = model(x).sum()
        with smelt.compiled_autograd.enable(smelt.compile(fullgraph=True)):
            loss.backward()

    train(model, x)
    assert smelt.counters["compiled_autograd_captures"] == 1
    assert same_gradients(model, x)


def test_three_forward_graphs_and_one_backward_graph() -> None:
    @smelt.compile(backend="aot_eager")  # type: ignore[untyped-decorator]
    def fn(x: torch.Tensor) -> torch.Tensor:
        temp = x + 10
        smelt.graph_break()
        temp = temp + 10
        smelt.graph_break()
        return temp.sum()

    x = torch.randn(10, 10, requires_grad=True)
    smelt.counters.clear()
    loss = fn(x)
    loss.backward(retain_graph=True)
    assert smelt.counters["graphs"] == 3
    smelt.counters.clear()
    with smelt.compiled_autograd.enable(smelt.compile(backend="aot_eager")):
        loss.backward()
    assert smelt.counters["graphs"] == 1
    assert x.grad is not None and torch.equal(x.grad, torch.full((10, 10), 2.0))


def test_a_hook_is_a_node_of_the_graph() -> None:
    @smelt.compile(backend="aot_eager")  # type: ignore[untyped-decorator]
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.sum()

    x = torch.randn(10, 10, requires_grad=True)
    x.register_hook(lambda grad: grad + 10)
    loss = fn(x)
    smelt.counters.clear()
    with collect() as events, smelt.compiled_autograd.enable(smelt.compile(backend="aot_eager")):
        loss.backward()
    assert any("call_hook(" in text for text in texts(events))
    assert smelt.counters["graphs"] == 1 and not smelt.counters["graph_breaks"]  # and followed into the same graph
    assert x.grad is not None and torch.equal(x.grad, torch.full((10, 10), 11.0))


def test_another_structure_is_a_miss_due_to_a_new_node() -> None:
    smelt.config.compiled_autograd = True
    x = torch.randn(10, requires_grad=True)
    with collect() as events:
        for op in OPERATORS:
            loss = op(x, x).sum()
            smelt.compile(lambda: loss.backward(), backend="eager")()  # noqa: B023  # as the guide writes it
    reasons = [text for text in texts(events) if "cache miss" in text]
    assert [reason.partition(":")[0] for reason in reasons] == ["cache miss due to new autograd node"] * 4
    assert ["Sub" in reasons[1], "Mul" in reasons[2], "Div" in reasons[3]] == [True] * 3
    smelt.config.compiled_autograd = False
    wanted = [torch.autograd.grad(op(x, x).sum(), x)[0] for op in OPERATORS]
    torch.testing.assert_close(x.grad, torch.stack(wanted).sum(0))


def test_another_shape_is_a_miss_and_makes_sizes_dynamic() -> None:
    smelt.config.compiled_autograd = True
    with collect() as events:
        for i in [10, 100, 10, 50, 7]:
            x = torch.randn(i, i, requires_grad=True)
            loss = x.sum()
            smelt.compile(lambda: loss.backward(), backend="eager")()  # noqa: B023  # as the guide writes it
            assert x.grad is not None and torch.equal(x.grad, torch.ones(i, i))
    reasons = [text for text in texts(events) if "cache miss" in text]
    assert [reason.partition(":")[0] for reason in reasons] == [
        "cache miss due to new autograd node",
        "cache miss due to changed shape",
    ]
