"""What to save, as a minimum cut of the joint graph: each value is saved, recomputed, or not needed at all.

    saved      is paid by the byte                    the cut goes through the value's own edge
    recomputed is paid by the work it takes           the cut goes between the source and the value
    not needed costs nothing                          the value stays on the source's side

With zero work for cheap operators and infinite work for the others, the cut saves the fewest bytes (`fewest_bytes`);
other prices (`cheapest`) serve a memory budget.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache, cached_property

from torch import fx

from smelt.autograd.joint.aliasing import is_view, view_root
from smelt.autograd.joint.trace_joint import Joint
from smelt.autograd.partition.costs import bytes_of
from smelt.autograd.partition.maxflow import INFINITE, Network
from smelt.autograd.partition.recompute import LIBRARY, recomputable
from smelt.base.fast_dataclass import dataclass
from smelt.ir.call_contract import Phase, RecomputePolicy, phase_of, recompute_policy_of
from smelt.ir.graph import outputs, placeholders
from smelt.ir.tensorspec import NumberSpec, TensorSpec, spec_of
from smelt.symbolic.symsize import hint

# Prices per byte leave room for a rank: at equal bytes, inputs and results (which live anyway) go before other values.
PER_BYTE = 8
_WRITTEN_SHARE = 8  # in eighths: a 64th of its bytes more for what is computed from one result of the library
_SMALL_SHARE = 16  # beside such a result: of its bytes at most
_MAX_STEPS = 32  # from it
_PER_COPIED_BYTE = 1  # more for what a copy is saved of: the copy takes time

Price = Callable[[fx.Node], int]


@dataclass(frozen=True)
class Problem:
    """A joint graph as the cut sees it.

    `early` are the values that gradients need and that do not depend on them, in order; `late` is all that does.
    `free` are inputs that outlive the step whatever is saved.
    """

    joint: Joint
    early: tuple[fx.Node, ...]
    late: frozenset[fx.Node]
    free: frozenset[fx.Node]

    @classmethod
    def of(cls, joint: Joint, parameters: Collection[int] = ()) -> "Problem":
        late = depending_on(tangents_of(joint))
        needed = needed_for(gradients_of(joint), stop=lambda node: False)
        nodes = joint.traced.graph.nodes
        early = tuple(node for node in nodes if node in needed and node not in late and node.op != "output")
        inputs = placeholders(joint.traced.graph)
        return cls(joint, early, frozenset(late), frozenset(inputs[index] for index in parameters))

    @cached_property
    def read(self) -> frozenset[fx.Node]:
        """Early values that the backward itself reads, or returns as gradients."""
        read = {node for node in self.early if any(user in self.late for user in node.users)}
        return frozenset(read | {node for node in gradients_of(self.joint) if node not in self.late})

    @cached_property
    def live_anyway(self) -> frozenset[object]:
        """Inputs and results: they are alive anyway, or likely so."""
        graph = self.joint.traced.graph
        return frozenset([*placeholders(graph), *outputs(graph)[: self.joint.plan.results]])

    def price(self, node: fx.Node) -> int:
        """The price of saving `node`, in eighths of a byte. Views are not saved: they would keep all of their base.

        What the program checkpoints is not saved either.
        """
        if node in self.free:
            return 1
        if recompute_policy_of(node) is RecomputePolicy.RECOMPUTE and recomputable(node) is None:
            return INFINITE
        spec = spec_of(node)
        if not isinstance(spec, TensorSpec) or node.op == "get_attr" or is_view(node):
            return INFINITE
        if node in self.may_be_mutated:
            return hint(spec.nbytes) * (PER_BYTE + _PER_COPIED_BYTE) + 1
        if node in self.live_anyway:
            return hint(spec.nbytes) * PER_BYTE + 1
        nbytes = hint(spec.nbytes)
        return nbytes * PER_BYTE + 2 + (nbytes // _WRITTEN_SHARE if self._is_of_one(node) else 0)

    @cached_property
    def may_be_mutated(self) -> frozenset[fx.Node]:
        """Inputs and results that eager does not save: the program may mutate them before the backward runs, so copies
        are saved."""
        plan, graph = self.joint.plan, self.joint.traced.graph
        inputs, values = placeholders(graph)[: plan.inputs], outputs(graph)[: plan.results]
        held = {*inputs, *(view_root(value) for value in values if isinstance(value, fx.Node))}
        return frozenset(held.difference(saved_by_eager(self.joint), self.free))

    def fewest_bytes(self) -> list[fx.Node]:
        """The fewest bytes from which cheap operators compute all that the backward reads."""
        return self.cheapest(self.price, lambda node: 0 if self._why_not_recompute(node) is None else INFINITE)

    def _is_of_one(self, node: fx.Node) -> bool:
        """Whether a value is computed from one result of the library and small ones. That result is in memory anyway,
        while the value would be written for the backward, unless the library reads it."""
        why_not, size = self._why_not_recompute, self._bytes_of
        if node.op == "placeholder" or why_not(node) is not None or _is_for_library(node):
            return False
        least, large = size(node) // _SMALL_SHARE, set[fx.Node]()
        seen, pending = {node}, [node]
        while pending and len(seen) <= _MAX_STEPS and len(large) <= 1:
            for source in pending.pop().all_input_nodes:
                if source in seen:
                    continue
                seen.add(source)
                if size(source) <= least or source.op == "get_attr":
                    continue
                if why_not(source) is None:
                    pending.append(source)
                else:
                    large.add(source)
        return not pending and len(large) == 1 and all(recomputable(each) == LIBRARY for each in large)

    # What is asked of one value again and again, by all that is computed from it.

    @cached_property
    def _why_not_recompute(self) -> Callable[[fx.Node], str | None]:
        return cache(why_not_recompute)

    @cached_property
    def _bytes_of(self) -> Price:
        return cache(bytes_of)

    def cheapest(self, price: Price, work: Price) -> list[fx.Node]:
        """What to save so that the price of what is saved plus the work of what is recomputed is least.

        Each value is an edge whose capacity is its price. The source is connected to it with the work of recomputing it
        as capacity. What the backward reads is connected to the sink.
        """
        network = Network()
        ends = {node: (network.vertex(), network.vertex()) for node in self.early}
        for node, (start, end) in ends.items():
            network.edge(start, end, price(node))
            effort = work(node)
            if effort:
                network.edge(network.source, start, effort)
            if node in self.read:
                network.edge(end, network.sink, INFINITE)
            for user in node.users:
                if user in ends:
                    network.edge(end, ends[user][0], INFINITE)
        source_side = network.cut()
        return [node for node, (start, end) in ends.items() if start in source_side and end not in source_side]


def _is_for_library(node: fx.Node) -> bool:
    """Whether an operator of the forward that is not fused reads a value, as it is or a view of it."""
    users = [user for user in node.users if user.op == "call_function" and phase_of(user) is Phase.FORWARD]
    return any(_is_for_library(user) if is_view(user) else recomputable(user) == LIBRARY for user in users)


def why_not_recompute(node: fx.Node) -> str | None:
    """None if the backward may recompute an early value for next to nothing, or computes it anyway."""
    return recomputable(node) if phase_of(node) is Phase.FORWARD else None


def saved_by_eager(joint: Joint) -> list[fx.Node]:
    """Every early value that the backward's own formulas read.

    What the backward's formulas recompute in eager is recomputed; views cost nothing.
    """
    graph, late = joint.traced.graph, depending_on(tangents_of(joint))
    own = {
        node
        for node in graph.nodes
        if node in late
        or phase_of(node) is not Phase.FORWARD
        or is_view(node)
        or isinstance(spec_of(node), NumberSpec)
        or (recompute_policy_of(node) is RecomputePolicy.RECOMPUTE and recomputable(node) is None)
    }
    needed = needed_for(gradients_of(joint), stop=lambda node: node not in own)
    return [node for node in graph.nodes if node in needed and node not in own and node.op != "get_attr"]


def tangents_of(joint: Joint) -> list[fx.Node]:
    return placeholders(joint.traced.graph)[joint.plan.inputs :]


def gradients_of(joint: Joint) -> list[fx.Node]:
    returned = outputs(joint.traced.graph)[joint.plan.forward_outputs :]
    return [node for node in returned if isinstance(node, fx.Node)]


def depending_on(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    """The given nodes and everything computed from them."""
    dependents = set(nodes)
    pending = list(nodes)
    while pending:
        for user in pending.pop().users:
            if user not in dependents and user.op != "output":
                dependents.add(user)
                pending.append(user)
    return dependents


def needed_for(wanted: Iterable[fx.Node], stop: Callable[[fx.Node], bool]) -> set[fx.Node]:
    """`wanted` and all they depend on; nodes for which `stop` holds are in it, their inputs are not."""
    needed: set[fx.Node] = set()
    pending = list(wanted)
    while pending:
        node = pending.pop()
        if node not in needed:
            needed.add(node)
            if not stop(node):
                pending.extend(node.all_input_nodes)
    return needed
