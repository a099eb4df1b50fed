"""Updates inputs in place, where nothing reads the old values later and nothing can fail afterwards.

    new = index_copy(cache, 2, at, keys); y = attention(q, new, v); return y, new      new is to be written to cache
    →  index_copy writes into `cache`, attention reads it there, and nothing is returned for it

    part = select(cache, 1, 3); new = select_scatter(cache, copy(part, keys), 1, 3)    `cache[:, 3] = keys`
    →  `keys` are written to that part of `cache`

If something fails, nothing may have been written. So every check that may raise, such as for an index out of range in
a later layer, runs before the first such write, and the indices are computed before it.
"""

import operator
from collections.abc import Iterator
from dataclasses import field
from typing import Any

import torch
from torch import fx

from smelt.base.fast_dataclass import dataclass
from smelt.fuse.buffer_reuse import may_fail
from smelt.fuse.target_choice import TargetChoice
from smelt.ir.graph import Traced, outputs, placeholders
from smelt.ir.tensorspec import TensorSpec, spec_of, tensor_spec
from smelt.meta.effects import is_view, why_not_share
from smelt.ops.promote import KERNEL_DTYPES, widened
from smelt.ops.record import Demand, LibraryCall, Lookup, OperandLayout, Scatter, ScatterCall, View
from smelt.ops.registry import record_of
from smelt.symbolic.shapes import product

aten = torch.ops.aten

# What replaces a part of a tensor, and the view that the part is.
_PARTS: dict[object, torch._ops.OpOverload] = {
    aten.slice_scatter.default: aten.slice.Tensor,
    aten.select_scatter.default: aten.select.int,
    aten.diagonal_scatter.default: aten.diagonal.default,
}


@dataclass(frozen=True, slots=True)
class InplaceUpdate:
    """A tensor that replaces a part of another."""

    base: fx.Node
    layout: OperandLayout  # where the part lies in the memory of the base
    source: fx.Node  # spread over the part where it is smaller
    between: frozenset[fx.Node]  # what the graph makes of the base on the way, which nobody else reads


@dataclass(frozen=True, slots=True)
class Overwriting:
    """`order`: the nodes in the order of lowering. Before the node `first_write`, `demands` are checked, each with its
    node and inputs that replace its other tensors. `homes`: nodes that write to inputs, directly or after others that
    do; `puts`: those of them that are no scatters."""

    order: tuple[fx.Node, ...]
    homes: frozenset[fx.Node] = frozenset()
    puts: dict[fx.Node, InplaceUpdate] = field(default_factory=dict)
    first_write: fx.Node | None = None
    demands: tuple[tuple[fx.Node, Demand, dict[fx.Node, fx.Node]], ...] = ()


@dataclass(frozen=True, slots=True)
class _Chain:
    """Writes that turn an input's old value into its new one, first to last."""

    nodes: tuple[fx.Node, ...]
    puts: dict[fx.Node, InplaceUpdate]


def overwriting(traced: Traced, live: set[fx.Node], targets: TargetChoice) -> Overwriting:
    """Which inputs are updated in place, and what that requires."""
    nodes = tuple(traced.graph.nodes)
    chains = list(_chains(traced, live, targets)) if traced.writes else []
    while chains:
        puts = {node: put for chain in chains for node, put in chain.puts.items()}
        between = {node for put in puts.values() for node in put.between}
        writes = _WriteOrder(tuple(node for node in nodes if node not in between), live, puts, targets)
        allowed = [chain for chain in chains if writes.is_last_to_fail(chain.nodes[0])]
        if len(allowed) == len(chains):
            return writes.run(chains)
        chains = allowed
    return Overwriting(nodes)


def _chains(traced: Traced, live: set[fx.Node], targets: TargetChoice) -> Iterator[_Chain]:
    inputs, returned = placeholders(traced.graph), outputs(traced.graph)
    for place, number in traced.writes:
        written, node = inputs[number], returned[place]
        if not isinstance(node, fx.Node) or returned.count(node) != 1 or _shows(node, returned):
            continue
        if "scatter" in targets.limits_of(tensor_spec(written).device).unsupported:
            continue
        nodes: list[fx.Node] = []
        puts: dict[fx.Node, InplaceUpdate] = {}
        while node is not written:
            put = _put(node)
            base = _changed(node, targets) if put is None else put.base
            reads = {node} if put is None else {node, *put.between}
            if base is None or not _lies_as(node, written) or any(user in live - reads for user in base.users):
                break
            if put is not None:
                puts[node] = put
            nodes.insert(0, node)
            node = base
        if nodes and node is written:
            yield _Chain(tuple(nodes), puts)


def _shows(node: fx.Node, returned: list[object]) -> bool:
    """Whether a view of a value is returned."""
    views = [user for user in node.users if is_view(user.target)]
    return any(view in returned or _shows(view, returned) for view in views)


def _lies_as(node: fx.Node, written: fx.Node) -> bool:
    """Whether a new value has the layout of its destination."""
    value, spec = tensor_spec(node), tensor_spec(written)
    alike = (value.shape, value.stride, value.dtype, value.device) == (spec.shape, spec.stride, spec.dtype, spec.device)
    return alike


def _changed(node: fx.Node, targets: TargetChoice) -> fx.Node | None:
    """The tensor that a scatter changes."""
    lowering = record_of(node.target).lowering if isinstance(node.target, torch._ops.OpOverload) else None
    if not isinstance(lowering, Scatter) or targets.why_not_lower(node) is not None:
        return None
    call, dtype = lowering.read(node), tensor_spec(node).dtype
    if not isinstance(call, ScatterCall) or (call.wide and widened(dtype) is not dtype):
        return None
    return call.base


def _put(node: fx.Node) -> InplaceUpdate | None:
    """The replacement of a part of a tensor. Parts of parts are parts, and a copy into a part is the copied value."""
    if node.target not in _PARTS:
        return None
    base, part = node.args[0], node
    assert isinstance(base, fx.Node)
    layout: OperandLayout | None = _whole(base)
    between: set[fx.Node] = set()
    copied = False
    while not copied and (part.target in _PARTS or part.target is aten.copy.default):
        seen, views = _seen(part.args[0], base)
        inner, copied = part.args[1], part.target is aten.copy.default
        if layout is None or seen != layout or not isinstance(inner, fx.Node):
            return None
        between.update((part, *views))
        if not copied:
            layout = _moved(layout, _PARTS[part.target], part.args[2:], part.kwargs)
        part = inner
    between.discard(node)
    if part in between:
        return None  # it is put where it is
    if layout is None or any(user not in between and user is not node for each in between for user in each.users):
        return None
    specs = [tensor_spec(each) for each in (base, part)]
    known = all(spec.dtype in KERNEL_DTYPES and spec.device == specs[0].device for spec in specs)
    return InplaceUpdate(base, layout, part, frozenset(between)) if known and product(layout.shape) != 0 else None


def _whole(node: fx.Node) -> OperandLayout:
    spec = tensor_spec(node)
    return OperandLayout(spec.shape, spec.stride)


def _seen(value: object, base: fx.Node) -> tuple[OperandLayout | None, list[fx.Node]]:
    """The layout of a view in its base, and the views on the way; None if it is no view of it."""
    views: list[fx.Node] = []
    while value is not base:
        if not isinstance(value, fx.Node) or not is_view(value.target) or value.target is aten.as_strided.default:
            return None, []
        views.insert(0, value)
        value = value.args[0]
    layout: OperandLayout | None = _whole(base)
    for view in views:
        layout = None if layout is None else _moved(layout, view.target, view.args[1:], view.kwargs)
    return layout, views


def _moved(layout: OperandLayout, view: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OperandLayout | None:
    lowering = record_of(view).lowering
    return lowering.move(layout, *args, **kwargs) if isinstance(lowering, View) else None


class _WriteOrder:
    """The order of the writes of one graph. `others`: inputs that may replace tensors that only a check reads."""

    def __init__(
        self,
        nodes: tuple[fx.Node, ...],
        live: set[fx.Node],
        puts: dict[fx.Node, InplaceUpdate],
        targets: TargetChoice,
    ) -> None:
        self.nodes, self.live, self.puts, self.targets = nodes, live, puts, targets
        self.position = {node: number for number, node in enumerate(nodes)}
        self.others: dict[object, fx.Node] = {}
        for node in nodes:
            spec = spec_of(node)
            if node.op == "placeholder" and isinstance(spec, TensorSpec) and (spec.varies or spec.numel):
                self.others.setdefault((spec.dtype, spec.device), node)

    def run(self, chains: list[_Chain]) -> Overwriting:
        homes = frozenset(node for chain in chains for node in chain.nodes)
        first = min(homes, key=lambda node: self.position[node])
        late = self.nodes[self.position[first] :]
        checks = [(node, demand) for node in late for demand in self._demands(node)]
        checked = {node for _, demand in checks for node in self._before(demand.index, first)}
        order = [*self.nodes[: self.position[first]], *(node for node in late if node in checked)]
        order += [node for node in late if node not in checked]
        demands = tuple((node, demand, self._instead(node, demand) or {}) for node, demand in checks)
        return Overwriting(tuple(order), homes, self.puts, first, demands)

    def is_last_to_fail(self, write: fx.Node) -> bool:
        """Whether everything that may fail can come before a write."""
        below = {write}
        for node in self.nodes[self.position[write] :]:
            if node.op != "call_function" or node not in self.live:
                continue
            if not below.isdisjoint(node.all_input_nodes):
                below.add(node)
            if self._calls_what_may_fail(node):
                return False
            for demand in self._demands(node):
                needed = self._before(demand.index, write)
                if any(each in below or not _is_free(each, self.targets) for each in needed):
                    return False
                if self._instead(node, demand) is None:
                    return False
        return True

    def _calls_what_may_fail(self, node: fx.Node) -> bool:
        if node.target is operator.getitem or node in self.puts or self._only_raises(node):
            return False
        if self.targets.why_not_lower(node) is None:
            return False
        lowering = record_of(node.target).lowering
        out = lowering.out if isinstance(lowering, LibraryCall) else None
        assert isinstance(node.target, torch._ops.OpOverload)
        return may_fail(out or node.target)

    def _only_raises(self, node: fx.Node) -> bool:
        return record_of(node.target).demands is not None and not any(user in self.live for user in node.users)

    def _demands(self, node: fx.Node) -> tuple[Demand, ...]:
        """The conditions under which a call raises and that kernels check."""
        if node.op != "call_function" or node not in self.live or node.target is operator.getitem:
            return ()
        record = record_of(node.target)
        if record.demands is not None and self._only_raises(node):
            return record.demands(node)
        if not isinstance(record.lowering, Lookup | Scatter) or self.targets.why_not_lower(node) is not None:
            return ()
        return getattr(record.lowering.read(node), "demands", ())

    def _before(self, index: fx.Node, scatter: fx.Node) -> set[fx.Node]:
        """The nodes that an index depends on and that the graph has at or behind a scatter. Nodes merged into a write
        of a part have no position: they are looked through."""
        seen: set[fx.Node] = set()
        waiting = [index]
        while waiting:
            node = waiting.pop()
            if node not in seen and self.position.get(node, self.position[scatter]) >= self.position[scatter]:
                seen.add(node)
                waiting += node.all_input_nodes
        return seen & self.position.keys()

    def _instead(self, node: fx.Node, demand: Demand) -> dict[fx.Node, fx.Node] | None:
        """Inputs of the same dtypes that replace a call's arguments other than the index; None if there are none."""
        others = [each for each in node.all_input_nodes if each.op != "placeholder" and each is not demand.index]
        specs = [tensor_spec(each) for each in others]
        stand_ins = [self.others.get((spec.dtype, spec.device)) for spec in specs]
        pairs = zip(others, stand_ins, strict=True)
        return None if None in stand_ins else {each: other for each, other in pairs if other is not None}


def _is_free(node: fx.Node, targets: TargetChoice) -> bool:
    """Whether a node may move up: kernels compute it, and it has no side effects."""
    if node.op != "call_function" or node.target is operator.getitem:
        return True
    lowering = record_of(node.target).lowering
    by_kernels = not isinstance(lowering, LibraryCall | Scatter) and targets.why_not_lower(node) is None
    return by_kernels and why_not_share(node) is None
