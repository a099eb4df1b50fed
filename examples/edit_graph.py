"""Edit the graph that smelt captured: a backend that turns ReLU into GELU and takes Dropout out, then compiles on.

    python examples/edit_graph.py

A backend is a function from a captured graph to what shall run in its place:

    relu = torch.relu(linear)          →   relu = F.gelu(linear)
    dropout = F.dropout(relu, 0.5)         (gone)
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

import smelt

RELUS = (torch.relu, F.relu)


def gelu_without_dropout(module: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
    """A backend: gets a `torch.fx.GraphModule` and inputs like those to come, gives back what shall run."""
    for node in list(module.graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in RELUS:
            node.target, node.kwargs = F.gelu, {}
            node.args = node.args[:1]
            print(f"{node.name}: now gelu")
        elif node.target is F.dropout:
            node.replace_all_uses_with(node.args[0])
            module.graph.erase_node(node)
            print(f"{node.name}: removed")
    module.recompile()
    print(module.code.strip())
    compiled: Callable[..., Any] = smelt.compile(module)  # the edited graph, through the whole compiler
    return compiled


class Model(nn.Module):
    """Two layers with what is to be edited between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(10, 20)
        self.activation = nn.ReLU()
        self.dropout = nn.Dropout(0.5)
        self.second = nn.Linear(20, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.second(self.dropout(self.activation(self.first(x))))
        return y


def main() -> None:
    torch.manual_seed(0)
    model = Model()  # training: without the edit, dropout would show
    x = torch.randn(4, 10)
    output = smelt.compile(model, backend=gelu_without_dropout, fullgraph=True)(x)
    expected = model.second(F.gelu(model.first(x)))
    torch.testing.assert_close(output, expected)
    output.sum().backward()
    assert model.first.weight.grad is not None
    print(f"output {tuple(output.shape)} as expected, and the edited model trains")


if __name__ == "__main__":
    main()
