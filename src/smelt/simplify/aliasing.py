"""Tracks which memory leaves the graph, and replaces nodes without changing that.

    y = clone(x); return y      x is an input: returning it instead of `y` would expose the caller's memory
"""

import operator
from typing import Any

from torch import fx

from smelt.ir.graph import output_node
from smelt.ir.substitute_sizes import resized
from smelt.ir.tensorspec import NodeSpec, TensorSpec, UnplacedSpec, set_spec, spec_of, tensor_spec
from smelt.meta.devices import result_device
from smelt.meta.effects import is_view
from smelt.meta.fake_tensor import FakeTensor
from smelt.meta.rules import describe
from smelt.symbolic.symsize import from_symbolic, is_symbolic_size, same_sizes, to_symbolic


class AliasedMemory:
    """Which nodes share memory with a result of the graph. Ask before making one value stand for another."""

    def __init__(self, graph: fx.Graph) -> None:
        self._leaving: set[fx.Node] = set()
        for node in output_node(graph).all_input_nodes:
            self._leave(node)

    def _leave(self, node: fx.Node) -> None:
        self._leaving.update(_chain(node))

    def leaves(self, node: fx.Node) -> bool:
        """Whether a node is a result of the graph, or a result shares its memory."""
        return node in self._leaving

    def may_share(self, old: fx.Node, new: fx.Node) -> bool:
        """Whether users of `old`, a memory of its own, may be given `new` instead; if so, it is noted."""
        if old not in self._leaving:
            return True
        owner = _chain(new)[-1]
        if owner.op in ("placeholder", "get_attr") or owner in self._leaving:
            return False
        self._leave(new)
        return True

    def took_over(self, old: fx.Node, new: fx.Node) -> None:
        """`new` stands for `old` and shares its memory with the same nodes as before."""
        if old in self._leaving:
            self._leave(new)


def _chain(node: fx.Node) -> list[fx.Node]:
    """The node and what it is a view of, down to the node that owns the memory."""
    chain = [node]
    while (is_view(node.target) or node.target is operator.getitem) and isinstance(node.args[0], fx.Node):
        node = node.args[0]
        chain.append(node)
    return chain


def same_layout(old: fx.Node, new: fx.Node) -> bool:
    """Whether both return one tensor with equal shape, strides, offset, dtype and device."""
    first, second = spec_of(old), spec_of(new)
    if not isinstance(first, TensorSpec) or not isinstance(second, TensorSpec):
        return False
    return _alike(first, second) and first.device == second.device


def _alike(first: TensorSpec, second: TensorSpec) -> bool:
    """Whether two tensors are laid out alike, whatever their sizes are."""
    return (
        first.dtype is second.dtype
        and same_sizes(first.shape, second.shape)
        and same_sizes((*first.stride, first.offset), (*second.stride, second.offset))
    )


def spec_of_call(target: object, args: tuple[object, ...], kwargs: dict[str, object]) -> TensorSpec | None:
    """What a call that is not in the graph would return, where a rule can tell."""
    fake_args = tuple(_fake_tensors(value) for value in args)
    named = {name: _fake_tensors(value) for name, value in kwargs.items()}
    try:
        device = result_device(target, fake_args, named)
        result = describe(target, fake_args, named, device)
    except (RuntimeError, IndexError):  # a call that PyTorch would refuse
        return None
    if not isinstance(result, UnplacedSpec):
        return None
    spec = result.on(device)
    return resized(spec, from_symbolic, is_symbolic_size) if spec.varies else spec


def _fake_tensors(value: object) -> object:
    if isinstance(value, fx.Node):
        spec = tensor_spec(value)
        return FakeTensor(resized(spec, to_symbolic) if spec.varies else spec)
    if isinstance(value, tuple | list):
        return type(value)(_fake_tensors(item) for item in value)
    return to_symbolic(value)


def fits(node: fx.Node, target: object, args: tuple[object, ...], kwargs: dict[str, object] | None = None) -> bool:
    """Whether the call would return exactly what `node` does, as far as rules say."""
    spec = spec_of(node)
    if not isinstance(spec, TensorSpec):
        return False
    result = spec_of_call(target, args, kwargs or {})
    return result is not None and _alike(result, spec) and result.device == spec.device


def insert(
    node: fx.Node, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, spec: NodeSpec = None
) -> fx.Node:
    """A new call just before `node`, with the metadata of `node`, its spec included unless `spec` is given."""
    name = getattr(target, "overloadpacket", target).__name__
    with node.graph.inserting_before(node):
        call = node.graph.create_node("call_function", target, args, kwargs or {}, name)
    call.meta.update(node.meta)
    set_spec(call, spec_of(node) if spec is None else spec)
    return call


def insert_by_rule(node: fx.Node, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """A new call just before `node`, with the spec that the rules give for it."""
    spec = spec_of_call(target, args, kwargs)
    assert spec is not None, f"{target} has no rule"
    return insert(node, target, args, kwargs, spec)
