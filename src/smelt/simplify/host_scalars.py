"""CPU tensors without dimensions that another device computes with are copied there first.

    mul = mul(x on cuda:0, rate on cpu)   →   own = clone(rate); moved = _to_copy(own, device=cuda:0, non_blocking=True)
                                              mul = mul(x, moved)
    add = add(p, a); add_1 = add(q, b)    →   rows = each of stack([a, b]) four times; moved = _to_copy(rows, …)
                                              one, other = unbind(moved); add = add(p, one[0]); add_1 = add(q, other[0])

PyTorch reads such a tensor on the host when it launches the operator, and passes the number along. A kernel of ours
computes on one device, so the number goes there by a copy, one for all its readers, and the operator can be fused. An
optimizer has two such numbers for each parameter: those that can be had before the first of them is read are copied
together, since a copy takes as long as a small kernel; in rows of 16 bytes, as kernels want their memory to begin. The
copy does not wait for the device: the driver takes the
number out of ordinary memory before the call returns. Out of page-locked memory, where an input may be, it is read
later, when the program may have written something else there; so of an input a clone is copied.
"""

import operator
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from smelt.base.fast_dataclass import dataclass
from smelt.base.fuel import Fuel
from smelt.device.host_library import on_host
from smelt.ir.graph import Traced
from smelt.ir.tensorspec import NodeSpec, TensorSpec, set_spec, spec_of, tensor_spec
from smelt.meta.devices import is_element_wise
from smelt.meta.effects import is_view, why_not_share
from smelt.ops.record import LibraryCall
from smelt.ops.registry import record_of

aten = torch.ops.aten

_ROW = 16  # bytes that memory of a kernel begins at a multiple of
_MANY = 4  # so many are copied together: that takes three calls, and a kernel


@dataclass(slots=True)
class _Wanted:
    """A scalar of the host, where it is read, by what, and how many library calls come before its first reader."""

    scalar: fx.Node
    device: torch.device
    calls: int
    readers: list[fx.Node]


def place_scalars(traced: Traced, fuel: Fuel) -> Traced:
    """Copy them. Burns no fuel: without it each such operator is a library call."""
    for together in _groups(_wanted(traced.graph)):
        if len(together) < _MANY:
            copies = [_moved(each.readers[0], each.scalar, each.device) for each in together]
        else:
            copies = _moved_together(together[0].readers[0], [each.scalar for each in together], together[0].device)
        for each, copy in zip(together, copies, strict=True):
            for reader in each.readers:
                reader.replace_input_with(each.scalar, copy)
    return traced


def _wanted(graph: fx.Graph) -> list[_Wanted]:
    """In the order of their first readers."""
    found: dict[tuple[fx.Node, torch.device], _Wanted] = {}
    calls = 0
    for node in graph.nodes:
        spec = spec_of(node)
        if not isinstance(spec, TensorSpec) or on_host(spec.device) or not is_element_wise(node.target):
            calls += isinstance(node.target, torch._ops.OpOverload) and _is_call(node.target)
            continue
        for operand in node.all_input_nodes:
            if _is_host_scalar(operand):
                known = found.setdefault((operand, spec.device), _Wanted(operand, spec.device, calls, []))
                known.readers.append(node)
    return list(found.values())


def _is_call(target: torch._ops.OpOverload) -> bool:
    return isinstance(record_of(target).lowering, LibraryCall)


def _groups(wanted: list[_Wanted]) -> list[list[_Wanted]]:
    """What is copied together: what the host computes from inputs alone, by device and dtype. An optimizer's count of
    steps is computed with it, and written: so nothing is computed before a library call that else comes after it, and
    may find no memory."""
    found: dict[object, list[_Wanted]] = {}
    free: dict[fx.Node, bool] = {}
    for each in wanted:
        alike = (tensor_spec(each.scalar).dtype, each.device, each.calls)
        found.setdefault(alike if _is_of_host(each.scalar, free) else each.scalar, []).append(each)
    return list(found.values())


def _is_host_scalar(node: fx.Node) -> bool:
    spec = spec_of(node)
    return isinstance(spec, TensorSpec) and on_host(spec.device) and not spec.shape


def _is_of_host(node: fx.Node, known: dict[fx.Node, bool]) -> bool:
    """Whether a scalar is computed on the host from scalars of the host, by nothing that must stay where it is."""
    waiting = [node]
    while waiting:
        each = waiting[-1]
        sources = [source for source in each.all_input_nodes if source not in known]
        if each.op != "call_function":
            spec = spec_of(each)
            known[each] = not isinstance(spec, TensorSpec) or on_host(spec.device)
        elif sources and each not in known:
            waiting += sources
            continue
        elif each not in known:
            plain = isinstance(each.target, torch._ops.OpOverload) and why_not_share(each) is None
            known[each] = plain and _is_host_scalar(each) and all(known[source] for source in each.all_input_nodes)
        waiting.pop()
    return known[node]


def _moved(user: fx.Node, scalar: fx.Node, device: torch.device) -> fx.Node:
    """The copy on a device, made before its first user."""
    spec = spec_of(scalar)
    assert isinstance(spec, TensorSpec)
    if not _is_computed(scalar):
        scalar = _insert(user, aten.clone.default, TensorSpec((), (), spec.dtype, spec.device), scalar)
    return _copy(user, scalar, TensorSpec((), (), spec.dtype, device))


def _moved_together(user: fx.Node, scalars: list[fx.Node], device: torch.device) -> list[fx.Node]:
    """The copies of several. What they are computed from comes before that user."""
    for node in _behind(user, scalars):
        user.prepend(node)
    spec, count = tensor_spec(scalars[0]), len(scalars)
    width = _ROW // spec.dtype.itemsize
    each = TensorSpec((count,), (1,), spec.dtype, spec.device)
    rows = TensorSpec((count, width), (width, 1), spec.dtype, spec.device)
    whole = _insert(user, aten.stack.default, each, list(scalars))
    whole = _insert(user, aten.unsqueeze.default, replace(each, shape=(count, 1), stride=(1, 1)), whole, 1)
    whole = _insert(user, aten.expand.default, replace(rows, stride=(1, 0)), whole, [count, width])
    whole = _insert(user, aten.clone.default, rows, whole, memory_format=torch.contiguous_format)
    moved = _copy(user, whole, replace(rows, device=device))
    parts = tuple(TensorSpec((width,), (1,), spec.dtype, device, offset=width * number) for number in range(count))
    split = _insert(user, aten.unbind.int, parts, moved)
    found = []
    for number, part in enumerate(parts):
        row = _insert(user, operator.getitem, part, split, number)
        found.append(_insert(user, aten.select.int, replace(part, shape=(), stride=()), row, 0, 0))
    return found


def _behind(user: fx.Node, scalars: list[fx.Node]) -> list[fx.Node]:
    """What scalars are computed from that comes after a node, in order."""
    seen: set[fx.Node] = set()
    waiting = list(scalars)
    while waiting:
        node = waiting.pop()
        if node not in seen and node > user:
            seen.add(node)
            waiting += node.all_input_nodes
    return sorted(seen)


def _copy(user: fx.Node, source: fx.Node, spec: TensorSpec) -> fx.Node:
    return _insert(user, aten._to_copy.default, spec, source, device=spec.device, non_blocking=True)


def _insert(user: fx.Node, target: Any, spec: NodeSpec, *args: Any, **kwargs: Any) -> fx.Node:
    """A call just before a node."""
    name = getattr(target, "overloadpacket", target).__name__
    with user.graph.inserting_before(user):
        made = user.graph.create_node("call_function", target, args, kwargs, name)
    made.meta.update(user.meta)
    set_spec(made, spec)
    return made


def _is_computed(node: fx.Node) -> bool:
    """Whether the graph made the memory that a node's value is in."""
    while is_view(node.target) and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node.op == "call_function"
