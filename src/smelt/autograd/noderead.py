"""Autograd's graph as it lies before a backward: what to compare, and what to fetch.

    read((loss.grad_fn,))  →  Reading: nodes, the key of all that the engine's work depends on, the tensors it works on

Two graphs with equal keys make the engine do the same with the tensors they hold, so what was captured for one serves
the other. The key has the nodes, their edges and order, the layout of every gradient, all plain values that nodes saved
and the layout of every tensor they saved.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from smelt import _native
from smelt.autograd.nodekinds import Kind, kind_of
from smelt.autograd.nodelayout import materializes
from smelt.runtime.wrap import Joined, joined_of

ACCUMULATE = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]

_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)


@dataclass(slots=True)
class Reading:
    """A graph of `nodes`, in the order in which they were met, roots first."""

    nodes: list[Any]
    addresses: bytes
    key: tuple[Any, ...]
    tensors: list[torch.Tensor]  # what C++ nodes saved, in the order of the nodes
    joined: list[tuple[int, Joined]]  # compiled graphs, by the number of their node
    calls: bool  # whether hooks or nodes written in Python take part

    def hooks(self, number: int) -> tuple[list[tuple[str, Any, int]], int]:
        """The hooks of a node: (kind, dict of functions or None if C++ has put it there, index of the gradient); and
        for how many of its results the gradient is retained."""
        return _native.node_hooks(memoryview(self.addresses).cast("Q")[number])

    def whole(self, number: int, has_edge: Sequence[bool]) -> str | None:
        """Why a node is called instead of being captured; None if it is captured."""
        kind = _kinds[type(self.nodes[number])]
        if kind is _PYTHON:
            return "it is written in Python"
        if kind.all_edges and not all(has_edge):
            return f"{kind.name} holds sizes of tensors that no gradient flows to, which cannot be seen"
        return kind.whole


def saved_tensors(reading: Reading) -> list[range]:
    """Which of a reading's tensors each node has saved."""
    spans = []
    first = 0
    for node in reading.nodes:
        own: list[torch.Tensor] = []
        kind = _kinds.get(type(node))
        if kind is not None and kind.whole is None and kind.tensors:
            _read_tensors(node, kind, [], own)
        spans.append(range(first, first + len(own)))
        first += len(own)
    return spans


class Unreadable(Exception):
    """This graph is left to the engine; the text says why."""


def read(roots: tuple[Any, ...]) -> Reading:
    """Read the graph behind some nodes."""
    try:
        return _read(roots)
    except RuntimeError as gone:  # freed, or changed since it was saved: the engine says so at the right moment
        raise Unreadable(str(gone)) from gone


def _read(roots: tuple[Any, ...]) -> Reading:
    found = _native.walk_graph(roots)
    if isinstance(found, str):
        raise Unreadable(found)
    nodes, structure, addresses, hooked = found
    key: list[Any] = [structure]
    tensors: list[torch.Tensor] = []
    joined: list[tuple[int, Joined]] = []
    calls = bool(hooked)
    for number, node in enumerate(nodes):
        cls = type(node)
        if cls is ACCUMULATE:
            leaf = node.variable
            if leaf._backward_hooks or leaf._post_accumulate_grad_hooks:
                key.append((tuple(leaf._backward_hooks or ()), tuple(leaf._post_accumulate_grad_hooks or ())))
                calls = True
            key.append((type(leaf), leaf.stride()))
            continue
        kind = _kinds.get(cls)
        if kind is None:
            kind = _kinds[cls] = _PYTHON if issubclass(cls, torch._C._FunctionBase) else kind_of(node)
        if kind is _PYTHON:
            part = joined_of(node)
            if part is None:
                key.append((cls, node.needs_input_grad, materializes(node)))
                calls = True
            else:
                key.append(part.key)
                joined.append((number, part))
            continue
        if kind.whole is not None:
            calls = True
            continue
        if kind.raw is not None:
            _refuse_packed(node, kind)
        for name in kind.plain:
            value = getattr(node, name)
            key.append(value if type(value) in _EXACT else _exactly(value))
        if kind.tensors:
            _read_tensors(node, kind, key, tensors)
    return Reading(nodes, addresses, tuple(key), tensors, joined, calls)


_PYTHON = Kind("written in Python")
_kinds: dict[type, Kind] = {}

# Equal values of these types are the same to any formula; of others see `_exactly`.
_EXACT = frozenset({type(None), str})


def _exactly(value: Any) -> Any:
    """Equal exactly when two values mean the same: 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    if isinstance(value, tuple | list):
        return (type(value), *map(_exactly, value)) if any(type(item) is not int for item in value) else tuple(value)
    if isinstance(value, torch.Tensor):
        raise Unreadable("a tensor is saved where a number was expected")
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        raise Unreadable("sizes are symbolic")
    return (type(value), value.hex() if isinstance(value, float) else value)


def _refuse_packed(node: Any, kind: Kind) -> None:
    raw = getattr(node, kind.raw)  # type: ignore[arg-type]
    first = raw[0] if isinstance(raw, tuple | list) and raw else raw
    if getattr(first, "unpack_hook", None) is not None:
        raise Unreadable("saved tensors were packed by hooks, as by torch.utils.checkpoint")


def _read_tensors(node: Any, kind: Kind, key: list[Any], tensors: list[torch.Tensor]) -> None:
    first = len(tensors)
    for name in kind.tensors:
        saved = getattr(node, name)
        if isinstance(saved, torch.Tensor):
            key.append(layout(saved))
            tensors.append(saved)
        elif saved is None:
            key.append(None)
        else:
            key.append(tuple(None if item is None else layout(item) for item in saved))
            tensors.extend(item for item in saved if item is not None)
    if len(tensors) - first > 1:  # which of them are one: the tracer tells them apart by where they lie
        places = [tensor.data_ptr() for tensor in tensors[first:]]
        key.append(tuple(map(places.index, places)))


def layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    """All that code compiled for a tensor relies on."""
    if type(tensor) not in _PLAIN_TENSORS:
        raise Unreadable(f"a {type(tensor).__name__} takes part")
    if tensor.layout is not torch.strided or tensor.is_neg() or tensor.is_conj():
        raise Unreadable("a tensor takes part that is sparse, or lazily conjugated or negated")
    return (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
