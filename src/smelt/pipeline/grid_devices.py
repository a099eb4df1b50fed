"""Programs of artifacts for GPUs: traced as on the host, then placed on the device as a whole.

    graph of tensors on cpu or cuda:0 ── on_host_alone ──► all on cpu ── trace ──► pure graph ── on_grid ──► on cuda:0

What is traced is the same for every target, and nothing chooses an operator because of the device that a model happens
to be on. Numbers that the host has stay there: kernels are given them when they are launched.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from smelt.autograd.joint.functional_trace import CannotTrace
from smelt.device import find
from smelt.device.host_library import HOST, on_host
from smelt.ir.graph import Traced, copied_graph
from smelt.ir.substitute_sizes import resized
from smelt.ir.tensorspec import set_spec, spec_of

GRID_DEVICE = torch.device("cuda", 0)


def has_grids(target: str) -> bool:
    """Whether kernels for a target, by its name, are grids of another device than the host."""
    return bool(target) and find(target).warp_size > 1


def on_host_alone(traced: Traced) -> Traced:
    """A torch-level graph whose tensors are all on the host, wherever they were."""
    if not any(_is_elsewhere(spec_of(node)) or _names_cuda(node) for node in traced.graph.nodes):
        return traced
    graph = copied_graph(traced.graph)
    for node in list(graph.nodes):
        set_spec(node, _moved(spec_of(node)))
        node.args, node.kwargs = _moved(node.args), _moved(node.kwargs)
        if node.op == "call_method" and node.target == "cuda":
            node.target, node.args, node.kwargs = "to", (node.args[0], HOST), {}
        elif node.op == "call_method" and node.target == "to":
            node.args = tuple(HOST if _is_name(each) else each for each in node.args)
        if _is_name(node.kwargs.get("device")):
            node.kwargs = node.kwargs | {"device": HOST}
        if _names_cuda(node):
            raise CannotTrace(f"{node.format_node()} asks for a GPU by its name")
    constants = {name: tensor.to(HOST) for name, tensor in traced.constants.items()}
    return replace(traced, graph=graph, constants=constants)


def on_grid(pure: Traced, numbers: Collection[int]) -> Traced:
    """A pure graph on the device, but for those of its inputs that are `numbers` of the host."""
    place = 0
    for node in pure.graph.nodes:
        if node.op == "placeholder":
            place += 1
            if place - 1 in numbers:
                continue
        set_spec(node, resized(spec_of(node), lambda _: GRID_DEVICE, _is_host))
        node.args = resized(node.args, lambda _: GRID_DEVICE, _is_host)
        node.kwargs = resized(node.kwargs, lambda _: GRID_DEVICE, _is_host)
    return pure


def _is_host(value: Any) -> bool:
    return isinstance(value, torch.device) and on_host(value)


def _is_gpu(value: Any) -> bool:
    return isinstance(value, torch.device) and value.type == "cuda"


def _moved(value: Any) -> Any:
    return resized(value, lambda _: HOST, _is_gpu)


def _is_elsewhere(spec: Any) -> bool:
    is_elsewhere = False

    def see(device: Any) -> Any:
        nonlocal is_elsewhere
        is_elsewhere = True
        return device

    resized(spec, see, _is_gpu)
    return is_elsewhere


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value.partition(":")[0] == "cuda"


def _names_cuda(node: fx.Node) -> bool:
    """Whether a call is given a GPU, as a device or by its name."""
    flat = [*node.args, *node.kwargs.values()]
    moves = node.op == "call_method" and node.target == "cuda"
    return moves or any(_is_name(each) or _is_gpu(each) for each in flat)
