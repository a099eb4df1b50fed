"""Pads what a padded value is computed from, so that the value is written once, with its padding.

    pad(sub(slice(x, 1, 0, 50257), most), [0, 7], 0.0)        x has 50264 columns
    →  where(lt(arange(50264), 50257), sub(x, most), 0.0)

Padding reads other points than it writes. So it would be a kernel of its own, after one that writes the value without
padding. A slice of something that is as wide as the result is read whole; other operands in memory are padded as they
are read. On GPUs.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from smelt.base.rewrite_budget import RewriteBudget
from smelt.device.host_library import on_host
from smelt.ir.graph import Traced
from smelt.ir.tensorspec import TensorSpec, spec_of, tensor_spec
from smelt.meta.rules.strides import is_contiguous
from smelt.ops.record import Pointwise
from smelt.ops.registry import record_of, why_not_lower
from smelt.simplify.aliasing import fits, insert, insert_by_rule, spec_of_call
from smelt.simplify.dce import drop_dead
from smelt.simplify.few_elements import may_stay_inside
from smelt.symbolic.shapes import Shape

aten = torch.ops.aten

_REGROUPING = (aten.view.default, aten.unsqueeze.default)
_MAX_DEPTH = 24  # operators between the padding and what is in memory
Padding = tuple[tuple[int, int], ...]  # before and behind each dim


def widen_padded(traced: Traced, budget: RewriteBudget) -> Traced:
    drop_dead(traced, budget)  # what nobody reads is no reader either
    for node in list(traced.graph.nodes):
        if node.target is aten.constant_pad_nd.default and _is_computed_for(node) and budget.take(node):
            _Widened(node).run()
    return traced


def _is_computed_for(node: fx.Node) -> bool:
    """Whether padding a value on a GPU is all it is computed for."""
    source, spec, amounts = node.args[0], tensor_spec(node), node.args[1]
    if not isinstance(source, fx.Node) or spec.varies or on_host(spec.device):
        return False
    if not isinstance(amounts, Sequence) or any(type(each) is not int or each < 0 for each in amounts):
        return False
    padding = _padding_of(node)
    if not all(user is node or _sums_others(user, padding) for user in source.users):
        return False
    while source.target in _REGROUPING:
        source = source.args[0]
        if not isinstance(source, fx.Node) or len(source.users) > 1:
            return False
    return _is_computed(source) and is_contiguous(spec.shape, spec.stride)


def _padding_of(node: fx.Node) -> Padding:
    rank, amounts = len(tensor_spec(node).shape), list(node.args[1])  # type: ignore[arg-type]
    pairs = list(zip(amounts[::2], amounts[1::2], strict=True))[::-1]
    return ((0, 0),) * (rank - len(pairs)) + tuple(pairs)


def _sums_others(user: fx.Node, padding: Padding) -> bool:
    """Whether a user sums over dims without padding: the sum of the padded value has the same sums among others."""
    if user.target is not aten.sum.dim_IntList or user.kwargs or not isinstance(user.args[1], Sequence):
        return False
    return bool(user.args[1]) and not any(any(padding[int(str(dim))]) for dim in user.args[1])


def _is_computed(node: fx.Node) -> bool:
    """Whether a node is computed point by point, and whatever its operands' strides are."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    lowering = record_of(node.target).lowering
    if not isinstance(lowering, Pointwise) or not lowering.is_elementwise or why_not_lower(node) is not None:
        return False
    return all(isinstance(spec_of(each), TensorSpec) for each in (node, *node.all_input_nodes))


class _Widened:
    """The nodes that compute one padded value."""

    def __init__(self, node: fx.Node) -> None:
        self.node = node
        self.padding = _padding_of(node)
        self.inserted: list[fx.Node] = []
        self.widened: dict[tuple[fx.Node, Padding], fx.Node] = {}

    def run(self) -> None:
        source = self.node.args[0]
        assert isinstance(source, fx.Node)
        wide = self._wide(source, self.padding, 0)
        result = wide and self._padded(wide, tensor_spec(source).shape)
        if result is not None:
            spec, want = tensor_spec(result), tensor_spec(self.node)
            if (spec.shape, spec.stride, spec.dtype) == (want.shape, want.stride, want.dtype):
                self.node.replace_all_uses_with(result)
                for user in [user for user in source.users if user is not self.node and user not in self.inserted]:
                    self._sum(user, result)
                return
        for each in reversed(self.inserted):
            self.node.graph.erase_node(each)

    def _sum(self, user: fx.Node, wide: fx.Node) -> None:
        """The sums of the source as a part of those of the padded value."""
        source, summed = self.node.args[0], user.args[1]
        assert isinstance(source, fx.Node) and isinstance(summed, list | tuple)
        dims = [int(str(dim)) % len(self.padding) for dim in summed]
        part = insert_by_rule(user, aten.sum.dim_IntList, wide, user.args[1])
        for dim, (before, behind) in enumerate(self.padding):
            if before or behind:
                place = dim - sum(each < dim for each in dims)
                part = insert_by_rule(
                    user, aten.slice.Tensor, part, place, before, before + tensor_spec(source).shape[dim]
                )
        if fits(user, aten.view.default, (part, list(tensor_spec(user).shape))):
            user.replace_all_uses_with(insert_by_rule(user, aten.view.default, part, list(tensor_spec(user).shape)))

    def _call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node | None:
        if any(each is None for each in args):
            return None
        spec = spec_of_call(target, args, kwargs)
        if spec is None:
            return None
        self.inserted.append(insert(self.node, target, args, kwargs, spec))
        return self.inserted[-1]

    def _padded(self, wide: fx.Node, inner: Shape) -> fx.Node | None:
        """With the padding. A value that is rounded gets it before: it is computed where it is not rounded yet."""
        rounded: Any = wide
        while rounded.target is aten.view.default:
            rounded = rounded.args[0]
        exact = rounded.args[0] if rounded.target is aten._to_copy.default else None
        spec = tensor_spec(wide)
        if not isinstance(exact, fx.Node) or tensor_spec(exact).dtype is not torch.float32:
            return self._masked(wide, inner)
        if tensor_spec(exact).device != spec.device:
            return self._masked(wide, inner)
        if tensor_spec(exact).shape != spec.shape:
            exact = self._call(aten.view.default, exact, list(spec.shape))
        padded = None if exact is None else self._masked(exact, inner)
        return self._call(aten._to_copy.default, padded, dtype=spec.dtype)

    def _masked(self, wide: fx.Node, inner: Shape) -> fx.Node | None:
        """The padding where positions are not of the source."""
        spec, inside = tensor_spec(wide), None
        for dim, (before, behind) in enumerate(self.padding):
            if not before and not behind:
                continue
            number = self._call(aten.arange.default, spec.shape[dim], dtype=torch.int32, device=spec.device)
            shape = [spec.shape[dim] if place == dim else 1 for place in range(len(spec.shape))]
            number = self._call(aten.view.default, number, shape)
            if behind:
                inside = self._both(inside, self._call(aten.lt.Scalar, number, before + inner[dim]))
            if before:
                inside = self._both(inside, self._call(aten.ge.Scalar, number, before))
        value = self.node.args[2] if len(self.node.args) > 2 else self.node.kwargs.get("value") or 0
        filling = self._call(aten.full.default, [], value, dtype=spec.dtype, device=spec.device)
        return self._call(aten.where.self, inside, wide, filling)

    def _both(self, one: fx.Node | None, other: fx.Node | None) -> fx.Node | None:
        return other if one is None else self._call(aten.bitwise_and.Tensor, one, other)

    def _wide(self, node: fx.Node, padding: Padding, depth: int) -> fx.Node | None:
        """A value that has what `node` has, and anything in the padding."""
        if not any(map(any, padding)):
            return node
        if (node, padding) not in self.widened:
            wide = self._widened(node, padding, depth)
            if wide is None:
                return None
            self.widened[node, padding] = wide
        return self.widened[node, padding]

    def _widened(self, node: fx.Node, padding: Padding, depth: int) -> fx.Node | None:
        spec = tensor_spec(node)
        shape = [before + size + behind for size, (before, behind) in zip(spec.shape, padding, strict=True)]
        if node.target is aten.full.default:
            return self._call(aten.full.default, shape, *node.args[1:], **node.kwargs)
        if node.target is aten.arange.default and len(node.args) == 1 and not padding[0][0]:
            return self._call(aten.arange.default, shape[0], **node.kwargs)
        if node.target is aten.slice.Tensor:
            whole = self._sliced_from(node, padding)
            if whole is not None:
                return whole
        if node.target is aten.expand.default:
            return self._expanded(node, padding, shape, depth)
        if node.target in _REGROUPING:
            return self._viewed(node, padding, shape, depth)
        if depth < _MAX_DEPTH and _is_computed(node) and may_stay_inside(node, self.node):
            return self._computed(node, padding, depth)
        amounts = [each for pair in reversed(padding) for each in pair]
        return self._call(aten.constant_pad_nd.default, node, amounts, 0)

    def _computed(self, node: fx.Node, padding: Padding, depth: int) -> fx.Node | None:
        spec = tensor_spec(node)
        instead: dict[fx.Node, fx.Node] = {}
        for operand in node.all_input_nodes:
            own = tensor_spec(operand).shape
            first = len(spec.shape) - len(own)
            aligned = tuple(
                (0, 0) if size == 1 and spec.shape[first + dim] != 1 else padding[first + dim]
                for dim, size in enumerate(own)
            )
            wide = self._wide(operand, aligned, depth + 1)
            if wide is None:
                return None
            instead[operand] = wide
        args = fx.node.map_arg(node.args, instead.__getitem__)
        kwargs: Any = fx.node.map_arg(node.kwargs, instead.__getitem__)
        return self._call(node.target, *args, **kwargs)

    def _sliced_from(self, node: fx.Node, padding: Padding) -> fx.Node | None:
        """What a slice is a part of, if that has as much around it as is to be padded."""
        source, dim = node.args[0], node.args[1] if len(node.args) > 1 else 0
        start = node.args[2] if len(node.args) > 2 else 0
        step = node.args[4] if len(node.args) > 4 else 1
        if not isinstance(source, fx.Node) or not isinstance(dim, int) or step != 1 or node.kwargs:
            return None
        have, spec = tensor_spec(source).shape, tensor_spec(node)
        dim %= len(have)
        before, behind = padding[dim]
        if any(any(pair) for place, pair in enumerate(padding) if place != dim):
            return None
        fits = start == before and have[dim] == before + spec.shape[dim] + behind
        return source if fits else None

    def _expanded(self, node: fx.Node, padding: Padding, shape: list[Any], depth: int) -> fx.Node | None:
        source = node.args[0]
        assert isinstance(source, fx.Node)
        own, first = tensor_spec(source).shape, len(shape) - len(tensor_spec(source).shape)
        aligned = tuple((0, 0) if size == 1 else padding[first + dim] for dim, size in enumerate(own))
        return self._call(aten.expand.default, self._wide(source, aligned, depth + 1), shape)

    def _viewed(self, node: fx.Node, padding: Padding, shape: list[Any], depth: int) -> fx.Node | None:
        """Of a view that keeps the padded dim as it is: the last one, or the only one that is not one."""
        source = node.args[0]
        assert isinstance(source, fx.Node)
        own, padded = tensor_spec(source).shape, [dim for dim, pair in enumerate(padding) if any(pair)]
        if not own or len(padded) != 1:
            return None
        behind = shape[padded[0] + 1 :]
        if own[-1] != tensor_spec(node).shape[padded[0]] or any(size != 1 for size in behind):
            return None
        wide = self._wide(source, ((0, 0),) * (len(own) - 1) + (padding[padded[0]],), depth + 1)
        return self._call(aten.view.default, wide, shape)
