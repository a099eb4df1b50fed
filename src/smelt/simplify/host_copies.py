"""Makes non-blocking copies to the host blocking where the program relies on their completion.

    here = _to_copy(x on cuda:0, device=cpu, non_blocking=True); add = add(here, 1)
    →  here = _to_copy(x, device=cpu); add = add(here, 1)

A non-blocking copy may still be running when the next operator runs. In eager PyTorch a program can rely on a later
synchronization, such as reading a number or another copy, although nothing connects the two. Kernels run in another
order than the program's operators. So a copy waits if the graph itself reads it, or if something after it in the graph
waits for the device. A copy that only leaves the graph stays non-blocking.
"""

from functools import cache

import torch
from torch import fx

from smelt.base.rewrite_budget import RewriteBudget
from smelt.device.host_library import on_host
from smelt.ir.graph import Traced
from smelt.ir.tensorspec import TensorSpec, spec_of
from smelt.meta.effects import is_view

aten = torch.ops.aten

_COPIES = frozenset({aten._to_copy.default, aten.copy.default})
_READS = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})


def await_copies(traced: Traced, budget: RewriteBudget) -> Traced:
    """Let them wait. Burns no rewrite budget: without it the program may be wrong."""
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
