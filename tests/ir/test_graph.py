"""The rules of the two graph levels: one broken graph per rule, and the text that shows where."""

import operator
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import fx

from smelt.base.errors import SpecError
from smelt.ir.graph import GraphLevel, Traced, check_graph, format_graph, output_node, outputs, placeholders
from smelt.ir.tensorspec import TensorSpec, set_spec

aten = torch.ops.aten
SPEC = TensorSpec((2, 3), (3, 1), torch.float32, torch.device("cpu"))


def started() -> tuple[fx.Graph, fx.Node]:
    graph = fx.Graph()
    x = graph.placeholder("x")
    set_spec(x, SPEC)
    return graph, x


def call(graph: fx.Graph, target: Callable[..., object], *args: object) -> fx.Node:
    node = graph.call_function(target, args)  # type: ignore[arg-type]
    set_spec(node, SPEC)
    return node


def good_pure() -> fx.Graph:
    graph, x = started()
    graph.output((call(graph, aten.relu.default, call(graph, aten.add.Tensor, x, 1)),))
    return graph


def use_before_definition() -> fx.Graph:
    graph = good_pure()
    add, relu = (node for node in graph.nodes if node.op == "call_function")
    relu.append(add)
    return graph


def foreign_opcode() -> fx.Graph:
    graph, x = started()
    node = graph.call_module("layer", (x,))
    set_spec(node, SPEC)
    graph.output((node,))
    return graph


def method_in_a_pure_graph() -> fx.Graph:
    graph, x = started()
    node = graph.call_method("relu", (x,))
    set_spec(node, SPEC)
    graph.output((node,))
    return graph


def torch_function_in_a_pure_graph() -> fx.Graph:
    graph, x = started()
    graph.output((call(graph, torch.relu, x),))
    return graph


def write_in_a_pure_graph() -> fx.Graph:
    graph, x = started()
    graph.output((call(graph, aten.relu_.default, x),))
    return graph


def value_without_a_spec() -> fx.Graph:
    graph, x = started()
    graph.output((graph.call_function(aten.relu.default, (x,)),))
    return graph


def input_without_a_spec() -> fx.Graph:
    graph = fx.Graph()
    x = graph.placeholder("x")
    set_spec(x, (SPEC,))
    graph.output((x,))
    return graph


def no_output() -> fx.Graph:
    graph, x = started()
    call(graph, aten.relu.default, x)
    return graph


@pytest.mark.parametrize(
    ("make", "level", "says"),
    [
        (use_before_definition, GraphLevel.PURE, "before it is defined"),
        (foreign_opcode, GraphLevel.TORCH, "opcode call_module"),
        (foreign_opcode, GraphLevel.PURE, "opcode call_module"),
        (method_in_a_pure_graph, GraphLevel.PURE, "opcode call_method"),
        (torch_function_in_a_pure_graph, GraphLevel.PURE, "not an ATen operator"),
        (write_in_a_pure_graph, GraphLevel.PURE, "writes an argument"),
        (value_without_a_spec, GraphLevel.PURE, "carries no spec"),
        (input_without_a_spec, GraphLevel.TORCH, "input without the spec of a tensor"),
        (input_without_a_spec, GraphLevel.PURE, "input without the spec of a tensor"),
        (no_output, GraphLevel.TORCH, "one output node, not 0"),
    ],
)
def test_each_rule_catches_its_fault(make: Callable[[], fx.Graph], level: GraphLevel, says: str) -> None:
    with pytest.raises(SpecError, match="SM021") as caught:
        check_graph(make(), level, after="some pass")
    assert says in str(caught.value)
    assert "after some pass" in str(caught.value)


def test_a_fault_shows_the_lines_round_it() -> None:
    with pytest.raises(SpecError) as caught:
        check_graph(write_in_a_pure_graph(), GraphLevel.PURE)
    marked = [line for line in str(caught.value).splitlines() if line.strip().startswith("-->")]
    assert len(marked) == 1
    assert "relu_" in marked[0]


def test_what_is_allowed_passes() -> None:
    check_graph(good_pure(), GraphLevel.PURE)
    for make in (method_in_a_pure_graph, torch_function_in_a_pure_graph, write_in_a_pure_graph, value_without_a_spec):
        check_graph(make(), GraphLevel.TORCH)
    graph, x = started()
    several = graph.call_function(aten.max.dim, (x, 1))
    set_spec(several, (SPEC, SPEC))
    graph.output((call(graph, operator.getitem, several, 0),))
    check_graph(graph, GraphLevel.PURE)


def test_reading_a_graph() -> None:
    graph = good_pure()
    assert [node.name for node in placeholders(graph)] == ["x"]
    assert output_node(graph).op == "output"
    assert [node.target for node in outputs(graph)] == [aten.relu.default]  # type: ignore[attr-defined]


def test_a_graph_as_text() -> None:
    assert format_graph(good_pure(), "tiny").splitlines() == [
        "tiny:",
        "  x: f32[2, 3] = input",
        "  add_tensor: f32[2, 3] = aten.add.Tensor(x, 1)",
        "  relu_default: f32[2, 3] = aten.relu.default(add_tensor)",
        "  return (relu_default)",
    ]


def test_a_module_made_of_a_graph_runs_with_its_constants() -> None:
    graph, x = started()
    constant = graph.get_attr("constant0")
    set_spec(constant, SPEC)
    graph.output((call(graph, aten.mul.Tensor, x, constant),))
    value = torch.randn(2, 3)
    module = Traced(graph, GraphLevel.PURE, {"constant0": value}).to_module()
    given = torch.randn(2, 3)
    assert torch.equal(module(given)[0], given * value)


def test_a_graph_that_owns_its_inputs_lets_go_of_its_inputs() -> None:
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    sine = graph.call_function(torch.sin, (x,))
    alive: list[bool] = []
    looked = graph.call_function(lambda value: (alive.extend(ref() is not None for ref in refs), value)[1], (sine,))
    graph.output((graph.call_function(torch.mul, (looked, y)), None))
    traced = Traced(graph, GraphLevel.TORCH)
    given = [torch.ones(2), torch.full((2,), 3.0)]
    refs = [weakref.ref(tensor) for tensor in given]
    product, nothing = traced.to_consuming()(given)
    torch.testing.assert_close(product, 3 * torch.ones(2).sin())
    assert (alive, given, nothing) == ([False, True], [], None)
    assert torch.equal(traced.to_module()(torch.zeros(2), torch.ones(2))[0], torch.zeros(2))  # unchanged otherwise
