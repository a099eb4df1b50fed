"""Graphs of tensors on a GPU, as on the host; and pure graphs placed on a device."""

import pytest
import torch
from torch import fx

from smelt.autograd.joint.functional_trace import CannotTrace
from smelt.ir.graph import GraphLevel, Traced
from smelt.ir.tensorspec import TensorSpec, set_spec, spec_of
from smelt.pipeline.grid_devices import GRID_DEVICE, has_grids, on_grid, on_host_alone

HOST = torch.device("cpu")


def traced(*more: object, device: torch.device = GRID_DEVICE, level: GraphLevel = GraphLevel.TORCH) -> Traced:
    """x on a device, arange there, and what `more` says of x."""
    graph, spec = fx.Graph(), TensorSpec((4,), (1,), torch.float32, device)
    x = graph.placeholder("x")
    made = graph.call_function(torch.arange, (4,), {"device": device})
    last = graph.call_method(str(more[0]), (x, *more[1:])) if more else x
    for node in (x, made, last):
        set_spec(node, spec)
    graph.output((made, last))
    return Traced(graph, level)


def devices(found: Traced) -> set[str]:
    specs = [spec_of(node) for node in found.graph.nodes]
    given = [value for node in found.graph.nodes for value in (*node.args, *node.kwargs.values())]
    held = [each.device for each in specs if isinstance(each, TensorSpec)]
    return {str(each) for each in (*held, *given) if isinstance(each, torch.device)}


def test_what_is_on_the_host_stays_as_it_is() -> None:
    graph = traced(device=HOST)
    assert on_host_alone(graph) is graph


@pytest.mark.parametrize("more", [(), ("cuda",), ("to", "cuda:0"), ("to", GRID_DEVICE), ("to", "cuda", torch.float64)])
def test_a_graph_on_a_gpu_as_on_the_host(more: tuple[object, ...]) -> None:
    given = traced(*more)
    found = on_host_alone(given)
    assert devices(found) == {"cpu"} and devices(given) == {"cuda:0"}
    assert not any("cuda" in map(str, (node.target, *node.args)) for node in found.graph.nodes)


def test_a_name_that_means_something_else_is_refused() -> None:
    with pytest.raises(CannotTrace, match="by its name"):
        on_host_alone(traced("autocast", "cuda"))


def test_a_graph_is_placed_on_a_device_but_for_numbers() -> None:
    assert devices(on_grid(traced(device=HOST, level=GraphLevel.PURE), ())) == {"cuda:0"}
    assert devices(on_grid(traced(device=HOST, level=GraphLevel.PURE), (0,))) == {"cuda:0", "cpu"}
    assert has_grids("sm_90") and not has_grids("aarch64") and not has_grids("")
