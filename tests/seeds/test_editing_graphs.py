"""The guides on editing graphs with torch.fx: on the graph that smelt captured, through a backend."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

import smelt

Compiled = Callable[..., Any]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear1 = nn.Linear(10, 20)
        self.linear2 = nn.Linear(20, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear1(x)
        x = torch.relu(x)
        x = self.linear2(x)
        return x


class ModelWithDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear1 = nn.Linear(10, 20)
        self.dropout = nn.Dropout(0.5)
        self.linear2 = nn.Linear(20, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear1(x)
        x = self.dropout(x)
        x = self.linear2(x)
        return x


def captured(model: Compiled, *args: Any) -> fx.GraphModule:
    """The graph that a backend is handed."""
    seen: list[fx.GraphModule] = []

    def keep(module: fx.GraphModule, examples: Sequence[Any]) -> Compiled:
        seen.append(module)
        return module

    smelt.compile(model, backend=keep, fullgraph=True)(*args)
    (module,) = seen
    return module


def remove_dropout(module: fx.GraphModule) -> list[str]:
    """Take every dropout out of the graph; their names."""
    removed = []
    for node in list(module.graph.nodes):
        if node.op == "call_function" and node.target is F.dropout:
            node.replace_all_uses_with(node.args[0])
            module.graph.erase_node(node)
            removed.append(node.name)
    module.recompile()
    return removed


def test_the_code_of_the_captured_graph_can_be_read() -> None:
    code = captured(Model(), torch.randn(5, 10)).code
    lines = [line.strip() for line in code.strip().splitlines()]
    calls = [line for line in lines if "linear(" in line or "relu(" in line]
    assert ["linear" in calls[0], "relu" in calls[1], "linear" in calls[2]] == [True] * 3
    assert len(calls) == 3
    assert lines[-1].startswith("return")


def test_relu_becomes_gelu_on_the_captured_graph() -> None:
    changed = []

    def gelu_for_relu(module: fx.GraphModule, examples: Sequence[Any]) -> Compiled:
        for node in module.graph.nodes:
            if node.op == "call_function" and node.target == torch.relu:
                node.target = F.gelu
                changed.append(node.name)
        module.recompile()
        assert "gelu" in module.code and "torch.relu" not in module.code
        return module

    model = Model()
    x = torch.randn(5, 10)
    output = smelt.compile(model, backend=gelu_for_relu)(x)
    assert changed == ["relu"]
    assert output.shape == (5, 5)
    torch.testing.assert_close(output, model.linear2(F.gelu(model.linear1(x))))
    assert not torch.allclose(output, model(x))


def test_dropout_is_removed_from_the_captured_graph() -> None:
    removed = []

    def deploy(module: fx.GraphModule, examples: Sequence[Any]) -> Compiled:
        assert "dropout" in module.code
        removed.extend(remove_dropout(module))
        assert "dropout" not in module.code
        return module

    model = ModelWithDropout()  # in training mode: dropout would show
    x = torch.randn(5, 10)
    compiled = smelt.compile(model, backend=deploy)
    expected = model.linear2(model.linear1(x))
    torch.testing.assert_close(compiled(x), expected)
    torch.testing.assert_close(compiled(x), expected)
    assert removed == ["dropout"]


def test_in_eval_mode_dropout_changes_nothing() -> None:
    model = ModelWithDropout().eval()
    x = torch.randn(5, 10)
    torch.testing.assert_close(smelt.compile(model)(x), model.linear2(model.linear1(x)))


def test_an_edited_graph_still_trains() -> None:
    def deploy(module: fx.GraphModule, examples: Sequence[Any]) -> Compiled:
        remove_dropout(module)
        return module

    model = ModelWithDropout()
    x = torch.randn(5, 10)
    smelt.compile(model, backend=deploy)(x).sum().backward()
    got = model.linear1.weight.grad
    assert got is not None
    (expected,) = torch.autograd.grad(model.linear2(model.linear1(x)).sum(), [model.linear1.weight])
    torch.testing.assert_close(got, expected)


def test_the_graph_of_symbolic_trace_compiles_too() -> None:
    model = Model()
    traced = fx.symbolic_trace(model)
    for node in traced.graph.nodes:
        if node.op == "call_function" and node.target == torch.relu:
            node.target = F.gelu
    traced.recompile()
    x = torch.randn(5, 10)
    torch.testing.assert_close(smelt.compile(traced, fullgraph=True)(x), traced(x))
