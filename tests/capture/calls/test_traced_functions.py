"""Functions marked by `torch.compiler.allow_in_graph`: their operators are part of the graph, their Python is not."""

import subprocess
import sys
from typing import Any

import pytest
import torch

import smelt

pytestmark = pytest.mark.filterwarnings("ignore")


class Table:
    """Python that capture does not follow: thread-local state, `id`, code made by `exec`."""

    made: dict[Any, Any]

    def __init__(self) -> None:
        self.made = {}

    def function(self, shape: tuple[int, ...]) -> Any:
        if shape not in self.made:
            names: dict[str, Any] = {}
            exec(f"def made(x, y):\n    return x.reshape({shape[0]}, 1) - y.T[None] * {id(self) * 0 + 2}", names)
            self.made[shape] = names["made"]
        return self.made[shape]


TABLE = Table()


@torch.compiler.allow_in_graph  # type: ignore[untyped-decorator]
def marked(x: torch.Tensor, y: torch.Tensor, *, twice: bool = False) -> Any:
    made = TABLE.function(tuple(x.shape))(x, y)
    return {"made": made.relu(), "both": [made, torch.stack((y, y))]} if twice else made


@torch.compiler.allow_in_graph  # type: ignore[untyped-decorator]
def handles_what_went_wrong(x: torch.Tensor) -> torch.Tensor:
    try:
        return x * x.sum().item()
    except Exception:
        return x * 0


@torch.compiler.allow_in_graph  # type: ignore[untyped-decorator]
def raises(x: torch.Tensor) -> torch.Tensor:
    raise KeyError(str(len(x)))


def test_its_operators_are_in_the_graph() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        both = marked(x.sin(), y, twice=True)
        return both["made"] + marked(x, y), both["both"]

    compiled = smelt.compile(function, fullgraph=True)
    for size in (4, 6, 6, 9):
        x, y = torch.randn(size, requires_grad=True), torch.randn(3)
        got, wanted = compiled(x, y), function(x, y)
        torch.testing.assert_close(got, wanted)
        gradients = [torch.autograd.grad(each[0].sum(), x)[0] for each in (got, wanted)]
        torch.testing.assert_close(*gradients)


def test_nodes_are_pytorchs() -> None:
    targets: list[Any] = []

    def backend(module: Any, examples: Any) -> Any:
        targets.extend(node.target for node in module.graph.nodes if node.op.startswith("call"))
        return module

    smelt.compile(lambda x, y: marked(x, y), backend=backend)(torch.randn(4), torch.randn(3))
    assert marked not in targets and "reshape" in targets


def test_a_break_inside_is_one_at_the_call() -> None:
    explanation = smelt.explain(lambda x: handles_what_went_wrong(x) + 1, backend="eager")
    x = torch.randn(5)
    found = explanation(x)
    assert [reason.code for reason in found.break_reasons] == ["B004"]
    compiled = smelt.compile(lambda x: handles_what_went_wrong(x) + 1, backend="eager")
    torch.testing.assert_close(compiled(x), handles_what_went_wrong(x) + 1)


def test_an_exception_is_its_own() -> None:
    with pytest.raises(KeyError, match="5"):
        smelt.compile(lambda x: raises(x + 1), backend="eager")(torch.randn(5))


def test_an_unmarked_one_is_followed() -> None:
    """No module of `torch.compile` is loaded to find out that nothing is marked."""
    program = "import sys, torch, smelt\nsmelt.compile(lambda x: x + 1)(torch.ones(2))\n"
    text = program + "print('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
