"""Copies to the host that do not wait for the device: the program that waits for one finds it done.

    here = _to_copy(x on cuda:0, device=cpu, non_blocking=True); add = add(here, 1)
    →  here = _to_copy(x, device=cpu); add = add(here, 1)

Such a copy may be under way when the operator that comes next runs. In eager PyTorch a program can rely on what waits
in between, a number that is read or another copy, though nothing says that the two belong together. Kernels run in
another order than the program's operators. So a copy that the graph reads itself, or after which something in the graph
waits for the device, is one that waits; what only leaves the graph stays as the program has it.
"""

from functools import cache

import torch
from torch import fx

from smelt.base.fuel import Fuel
from smelt.device.host_library import on_host
from smelt.ir.graph import Traced
from smelt.ir.tensorspec import TensorSpec, spec_of
from smelt.meta.effects import is_view

aten = torch.ops.aten

_COPIES = frozenset({aten._to_copy.default, aten.copy.default})
_READS = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})


def await_copies(traced: Traced, fuel: Fuel) -> Traced:
    """Let them wait. Burns no fuel: without it the program may be wrong."""
    if not any(_is_asynchronous(node) for node in traced.graph.nodes):
        return traced
    waits_later = False
    for node in reversed(traced.graph.nodes):
        if not _is_to_host(node):
            waits_later = waits_later or _waits(node.target)
            continue
        waits_later = waits_later or not _is_asynchronous(node) or _is_read(node)
        if waits_later and _is_asynchronous(node):
            _wait(node)
    return traced


def _is_to_host(node: fx.Node) -> bool:
    spec = spec_of(node)
    if node.target not in _COPIES or not isinstance(spec, TensorSpec) or not on_host(spec.device):
        return False
    operands = map(spec_of, node.all_input_nodes)
    return any(isinstance(each, TensorSpec) and not on_host(each.device) for each in operands)


def _is_asynchronous(node: fx.Node) -> bool:
    if node.target is aten.copy.default and node.args[2:] == (True,):
        return True
    return node.target in _COPIES and bool(node.kwargs.get("non_blocking"))


@cache  # reading an operator's tags is slow
def _waits(target: object) -> bool:
    """Whether an operator comes back when the device has done all that came before: the host needs its values."""
    return isinstance(target, torch._ops.OpOverload) and not _READS.isdisjoint(target.tags)


def _is_read(node: fx.Node) -> bool:
    return any(user.op != "output" and (not is_view(user.target) or _is_read(user)) for user in node.users)


def _wait(node: fx.Node) -> None:
    node.kwargs = {name: value for name, value in node.kwargs.items() if name != "non_blocking"}
    if node.target is aten.copy.default:
        node.args = node.args[:2]
