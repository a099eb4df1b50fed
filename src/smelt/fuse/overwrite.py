"""Inputs that scatters change where they lie: nobody reads the old values any more, nor can anything fail afterwards.

    new = index_copy(cache, 2, at, keys); y = attention(q, new, v); return y, new      new is to be written to cache
    →  index_copy writes into `cache`, attention reads it there, and nothing is handed back

If something fails nothing must have been written. So whatever may raise, such as for an index out of range in a later
layer, is found out before the first such scatter: what the indices are computed from comes first.
"""

import operator
from collections.abc import Iterator

import torch
from torch import fx

from smelt.base.data import dataclass
from smelt.fuse.inplace import may_fail
from smelt.ir.effects import is_view, why_not_share
from smelt.ir.graph import Traced, outputs, placeholders
from smelt.ir.tensorspec import TensorSpec, spec_of, tensor_spec
from smelt.ops.promote import widened
from smelt.ops.record import Demand, LibraryCall, Lookup, Scatter, ScatterCall
from smelt.ops.registry import record_of, why_not_lower


@dataclass(frozen=True, slots=True)
class Overwriting:
    """`order`: the nodes as they are to be lowered. Before the node `turn`, `demands` are to be checked, each with the
    node that makes it and inputs that stand for its other tensors. `homes`: scatters, and the inputs they change."""

    order: tuple[fx.Node, ...]
    homes: dict[fx.Node, fx.Node]
    turn: fx.Node | None = None
    demands: tuple[tuple[fx.Node, Demand, dict[fx.Node, fx.Node]], ...] = ()


def overwriting(traced: Traced, live: set[fx.Node]) -> Overwriting:
    """Which inputs are changed where they lie, and what that asks for."""
    nodes = tuple(traced.graph.nodes)
    found = dict(_candidates(traced, live)) if traced.writes else {}
    if not found:
        return Overwriting(nodes, {})
    return _Turn(nodes, live).run(found)


def _candidates(traced: Traced, live: set[fx.Node]) -> Iterator[tuple[fx.Node, fx.Node]]:
    """The first scatter of those that make an input's new value of its old one, and the input."""
    inputs, returned = placeholders(traced.graph), outputs(traced.graph)
    for place, number in traced.writes:
        given, node = inputs[number], returned[place]
        if not isinstance(node, fx.Node) or returned.count(node) != 1 or _shows(node, returned):
            continue
        while (base := _changed(node, tensor_spec(given))) is not None and base is not given:
            if list(base.users) != [node]:
                break
            node = base
        if base is given and [user for user in given.users if user in live] == [node]:
            yield node, given


def _shows(node: fx.Node, returned: list[object]) -> bool:
    """Whether a view of a value is handed out."""
    views = [user for user in node.users if is_view(user.target)]
    return any(view in returned or _shows(view, returned) for view in views)


def _changed(node: fx.Node, spec: TensorSpec) -> fx.Node | None:
    """What a scatter changes, if its result lies as what is described."""
    if not isinstance(node.target, torch._ops.OpOverload) or spec.varies:
        return None
    lowering = record_of(node.target).lowering
    if not isinstance(lowering, Scatter) or why_not_lower(node) is not None:
        return None
    call, made = lowering.read(node), tensor_spec(node)
    alike = (made.shape, made.stride, made.dtype) == (spec.shape, spec.stride, spec.dtype)
    if not isinstance(call, ScatterCall) or not alike or (call.wide and widened(spec.dtype) is not spec.dtype):
        return None
    return call.base


class _Turn:
    """The scatters of one graph. `others` are inputs that may stand for tensors that only a check is given."""

    def __init__(self, nodes: tuple[fx.Node, ...], live: set[fx.Node]) -> None:
        self.nodes, self.live = nodes, live
        self.position = {node: number for number, node in enumerate(nodes)}
        self.others: dict[object, fx.Node] = {}
        for node in nodes:
            spec = spec_of(node)
            if node.op == "placeholder" and isinstance(spec, TensorSpec) and (spec.varies or spec.numel):
                self.others.setdefault((spec.dtype, spec.device), node)

    def run(self, found: dict[fx.Node, fx.Node]) -> Overwriting:
        homes = {node: given for node, given in found.items() if self._is_last_to_fail(node)}
        if not homes:
            return Overwriting(self.nodes, {})
        turn = min(homes, key=lambda node: self.position[node])
        late = self.nodes[self.position[turn] :]
        checks = [(node, demand) for node in late for demand in self._demands(node)]
        early = {node for _, demand in checks for node in self._before(demand.index, turn)}
        order = [*self.nodes[: self.position[turn]], *(node for node in late if node in early)]
        order += [node for node in late if node not in early]
        demands = tuple((node, demand, self._instead(node, demand) or {}) for node, demand in checks)
        return Overwriting(tuple(order), homes, turn, demands)

    def _is_last_to_fail(self, scatter: fx.Node) -> bool:
        """Whether whatever may fail can come before a scatter."""
        below = {scatter}
        for node in self.nodes[self.position[scatter] :]:
            if node.op != "call_function" or node not in self.live:
                continue
            if not below.isdisjoint(node.all_input_nodes):
                below.add(node)
            if self._calls_what_may_fail(node):
                return False
            for demand in self._demands(node):
                needed = self._before(demand.index, scatter)
                if any(each in below or not _is_free(each) for each in needed):
                    return False
                if self._instead(node, demand) is None:
                    return False
        return True

    def _calls_what_may_fail(self, node: fx.Node) -> bool:
        if node.target is operator.getitem or why_not_lower(node) is None or self._only_raises(node):
            return False
        lowering = record_of(node.target).lowering
        out = lowering.out if isinstance(lowering, LibraryCall) else None
        assert isinstance(node.target, torch._ops.OpOverload)
        return may_fail(out or node.target)

    def _only_raises(self, node: fx.Node) -> bool:
        return record_of(node.target).demands is not None and not any(user in self.live for user in node.users)

    def _demands(self, node: fx.Node) -> tuple[Demand, ...]:
        """What a call raises for, which kernels find out."""
        if node.op != "call_function" or node not in self.live or node.target is operator.getitem:
            return ()
        record = record_of(node.target)
        if record.demands is not None and self._only_raises(node):
            return record.demands(node)
        if not isinstance(record.lowering, Lookup | Scatter) or why_not_lower(node) is not None:
            return ()
        return getattr(record.lowering.read(node), "demands", ())

    def _before(self, index: fx.Node, scatter: fx.Node) -> set[fx.Node]:
        """What an index is made of that the graph has at a scatter or behind it."""
        found: set[fx.Node] = set()
        waiting = [index]
        while waiting:
            node = waiting.pop()
            if self.position[node] >= self.position[scatter] and node not in found:
                found.add(node)
                waiting += node.all_input_nodes
        return found

    def _instead(self, node: fx.Node, demand: Demand) -> dict[fx.Node, fx.Node] | None:
        """Inputs of the same dtypes in the place of what a call is given besides the index; None if there are none."""
        others = [each for each in node.all_input_nodes if each.op != "placeholder" and each is not demand.index]
        specs = [tensor_spec(each) for each in others]
        found = [self.others.get((spec.dtype, spec.device)) for spec in specs]
        pairs = zip(others, found, strict=True)
        return None if None in found else {each: other for each, other in pairs if other is not None}


def _is_free(node: fx.Node) -> bool:
    """Whether a node may come earlier: it is computed by kernels, and does nothing else."""
    if node.op != "call_function" or node.target is operator.getitem:
        return True
    lowering = record_of(node.target).lowering
    return not isinstance(lowering, LibraryCall | Scatter) and why_not_share(node) is why_not_lower(node) is None
