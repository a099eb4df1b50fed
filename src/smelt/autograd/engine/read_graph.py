"""Autograd's graph as read before a backward: the key to compare, and the tensors to fetch.

    read((loss.grad_fn,))  →  GraphReading: nodes, the key of all that the engine's work depends on, the tensors it
    works on

Two graphs with equal keys make the engine do the same with the tensors they hold, so what was captured for one serves
the other. The key has the nodes, their edges and order, the layout of every gradient, all plain values that nodes saved
and the layout of every tensor they saved.
"""

from collections.abc import Sequence
from typing import Any

import torch

from smelt import _native
from smelt.base.fast_dataclass import dataclass
from smelt.base.torch_originals import BASE
from smelt.runtime.autograd.node_view import CompiledNodeView, split_call_of, view_of_node
from smelt.runtime.autograd.output_dependencies import DependentResult
from smelt.runtime.autograd.split_nodes import InputGroupNode, SplitCall
from smelt.torch_abi.node_kinds import NodeKind, kind_of
from smelt.torch_abi.node_layout import materializes

ACCUMULATE = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]

_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)


@dataclass(slots=True)
class GraphReading:
    """A graph of `nodes`, in the order in which they were visited, roots first."""

    nodes: list[Any]
    addresses: bytes
    key: tuple[Any, ...]
    tensors: list[torch.Tensor]  # saved by C++ nodes, in the order of the nodes
    compiled: list[tuple[int, CompiledNodeView]]  # compiled graphs, by node number
    dependent: list[int]  # nodes of results that depend on other outputs
    split: dict[int, int]  # nodes of a split compiled graph: the first of them

    def hooks(self, number: int) -> tuple[list[tuple[str, Any, int]], int]:
        """The hooks of a node: (kind, dict of functions or None if it is C++, index of the gradient); and
        for how many of its results the gradient is retained."""
        return _native.node_hooks(memoryview(self.addresses).cast("Q")[number])

    def whole(self, number: int, has_edge: Sequence[bool]) -> str | None:
        """Why a node is called instead of traced; None if it is traced."""
        kind = _kind(self.nodes[number])
        if kind is _PYTHON:
            return "it is written in Python"
        if kind.all_edges and not all(has_edge):
            return f"{kind.name} holds sizes of tensors without gradients, which cannot be read"
        return kind.whole


def saved_tensors(reading: GraphReading) -> list[range]:
    """Which of a reading's tensors each node has saved."""
    spans = []
    first = 0
    for node in reading.nodes:
        kind = _kind(node)
        count = 0
        for name in kind.tensors if kind.whole is None else ():
            saved = getattr(node, name)
            items = saved if isinstance(saved, tuple | list) else (saved,)
            count += sum(item is not None for item in items)
        spans.append(range(first, first + count))
        first += count
    return spans


class Unreadable(Exception):
    """PyTorch's engine must run this graph; the text says why."""


def read(roots: tuple[Any, ...]) -> GraphReading:
    """Read the graph behind some nodes."""
    try:
        return _read(roots)
    except RuntimeError as freed:  # freed or modified: the engine raises at the right moment
        raise Unreadable(str(freed)) from freed


def _read(roots: tuple[Any, ...]) -> GraphReading:
    reading = _native.read_graph(roots, _reading_plans, _plan_reading, _exact_key, layout, _number)
    if isinstance(reading, str):
        raise Unreadable(reading)
    nodes, structure, values, addresses, hooked, tensors, special = reading
    compiled: list[tuple[int, CompiledNodeView]] = []
    dependent: list[int] = []
    split: dict[int, int] = {}
    if hooked:
        values += [_hooks_key(address) for address in memoryview(addresses).cast("Q")]
    for number in special:
        node = nodes[number]
        kind = _kind(node)
        if kind is _LEAF:
            if not node.variable.requires_grad:
                raise Unreadable("a leaf no longer requires grad")
            hooks = _native.leaf_hooks(node.variable)
            values.append(tuple((kind, functions is None, _functions_key(functions)) for kind, functions, _ in hooks))
        elif kind is _PYTHON:
            part = view_of_node(node)
            if part is not None:
                values.append(part.key)
                if part.split_call is None or _is_new(part.split_call, number, compiled, split):
                    compiled.append((number, part))
                if part.split_call is not None:
                    values.append((split[number], node.numbers))
            elif (split_call := split_call_of(node)) is not None:
                if type(node)._forward_cls is not InputGroupNode or _is_new(split_call, number, compiled, split):
                    raise Unreadable("saved-tensor hooks packed what a compiled graph saved")
                values.append((InputGroupNode, split[number], node.indices))
            elif type(node)._forward_cls is DependentResult:
                if node.about[2].is_observed():
                    raise Unreadable("a gradient between two outputs of a compiled graph is observed")
                values.append(DependentResult)
                dependent.append(number)
            else:
                values.append((type(node), node.needs_input_grad, materializes(node)))
    values.append(structure)
    return GraphReading(nodes, addresses, tuple(values), tensors, compiled, dependent, split)


def _is_new(
    split_call: SplitCall, number: int, compiled: Sequence[tuple[int, CompiledNodeView]], split: dict[int, int]
) -> bool:
    """Whether a node is the first of those of a split compiled graph; records the first in `split`."""
    split[number] = next((first for first, part in compiled if part.split_call is split_call), number)
    return split[number] == number


_LEAF, _PYTHON = NodeKind("a leaf"), NodeKind("written in Python")
_kinds: dict[type, NodeKind] = {}
# Per node class, how C reads it: see `_native.read_graph`.
_reading_plans: dict[type, tuple[Any, ...]] = {}


def _plan_reading(node: Any) -> tuple[Any, ...]:
    cls = type(node)
    kind = _kinds[cls] = _LEAF if cls is ACCUMULATE else kind_of(node)
    if kind is _LEAF:
        return 0, (), (), None
    if kind.whole is not None:
        return 2, (), (), None
    return 1, kind.plain, kind.tensors, kind.raw


def _kind(node: Any) -> NodeKind:
    return _kinds.get(type(node), _PYTHON)  # Python classes come and go, and are not cached


def _hooks_key(address: int) -> tuple[Any, ...]:
    hooks, retained = _native.node_hooks(address)
    return retained, *((kind, functions is None, _functions_key(functions), index) for kind, functions, index in hooks)


def _functions_key(functions: Any) -> int:
    """The number of hooks."""
    for function in (functions or {}).values():
        if getattr(function, "__module__", None) == "torch.autograd.graph":
            raise Unreadable("register_multi_grad_hook asks the engine which gradients will be computed")
    return len(functions or ())


def _exact_key(value: Any) -> Any:
    """A key that is equal for equal values of one type: 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    if isinstance(value, tuple | list):
        return (type(value), *map(_exact_key, value)) if any(type(item) is not int for item in value) else tuple(value)
    if isinstance(value, torch.Tensor):
        raise Unreadable("a tensor is saved where a number was expected")
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        raise Unreadable("sizes are symbolic")
    return (type(value), value.hex() if isinstance(value, float) else value)


def layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    """All that code compiled for a tensor relies on."""
    if type(tensor) not in _PLAIN_TENSORS:
        raise Unreadable(f"the graph has a tensor of class {type(tensor).__name__}")
    if tensor.layout is not torch.strided or tensor.is_neg() or tensor.is_conj():
        raise Unreadable("the graph has a tensor that is sparse, or lazily conjugated or negated")
    number = None if tensor.dim() else _number(tensor)
    return (tensor.shape, tensor.stride(), tensor.dtype, tensor.device, number)


def _number(tensor: torch.Tensor) -> Any:
    """The value of a wrapped Python number, which PyTorch passes to operators as a number."""
    return _exact_key(BASE.item(tensor)) if tensor.is_cpu and is_number(tensor) else None


def is_number(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a wrapped Python number: in type promotion it yields to any tensor of its category."""
    smaller = _SMALLER.get(tensor.dtype)
    if smaller is None:
        return tensor.dtype is torch.bool  # promotion does not tell
    return torch.result_type(tensor, smaller) is smaller.dtype


_SMALLER = {
    torch.float64: torch.zeros((), dtype=torch.float32, device="cpu"),
    torch.int64: torch.zeros((), dtype=torch.int32, device="cpu"),
    torch.complex128: torch.zeros((), dtype=torch.complex64, device="cpu"),
}
