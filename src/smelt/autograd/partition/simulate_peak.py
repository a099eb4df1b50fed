"""A backward simulated: how many bytes it holds at its peak, for a choice of what is saved.

    PeakSimulator(problem).peaks({relu_1, …}) → bytes, counted in two ways

Cheap values are assumed to be fused into their readers: memory is taken by what heavy operators return or read, by what
is read after a later heavy operator, and by gradients. What was not saved is recomputed where it is first needed, as
`partition` orders it, and freed after its last use, as saved values are. Fast enough to compare dozens of choices.
"""

from collections.abc import Collection, Iterable

from torch import fx

from smelt.autograd.joint.aliasing import view_root
from smelt.autograd.partition.costs import own_bytes
from smelt.autograd.partition.mincut import Problem, gradients_of
from smelt.autograd.partition.recompute import recomputable
from smelt.meta.memory_peak import END


def _heavy_depths(nodes: Iterable[fx.Node]) -> dict[fx.Node, int]:
    """How many heavy operators, one after the other, must have run before each value; fused values have equal depth.

    Of the backward's own values only: cheap ones of the forward are recomputed wherever they are read.
    """
    depths: dict[fx.Node, int] = {}
    for node in nodes:
        before = [depths[used] + (recomputable(used) is not None) for used in node.all_input_nodes if used in depths]
        depths[node] = max(before, default=0)
    return depths


class PeakSimulator:
    """The joint graph reduced to the values that take memory, each with those it is computed from."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.gradients = {view_root(node) for node in gradients_of(problem.joint)}
        nodes = [*problem.early, *(node for node in problem.joint.traced.graph.nodes if node in problem.late)]
        self.size = {node: own_bytes(node) for node in nodes}
        self.depth = _heavy_depths(node for node in nodes if node in problem.late)
        self.in_memory = {node for node in nodes if self.size[node] and self._takes_memory(node)}
        self.late = [node for node in nodes if node in problem.late and node in self.in_memory]

    def _takes_memory(self, node: fx.Node) -> bool:
        if node in self.gradients or recomputable(node) is not None:
            return True
        depth = self.depth.get(node, END)
        readers = [node]
        while readers:
            for user in readers.pop().users:
                if view_root(user) is not user:
                    readers.append(user)
                elif user.op == "call_function" and (self.depth.get(user, 0) > depth or recomputable(user) is not None):
                    return True
        return False

    def peaks(self, saved: Collection[fx.Node]) -> tuple[int, int]:
        """The peak of saved values and all that the backward allocates; and the peak of saved values and gradients plus
        the peak of the rest, which is what an arena for the rest comes to."""
        sources: dict[fx.Node, list[fx.Node]] = {}
        order: list[fx.Node] = []
        done: set[fx.Node] = set()
        for node in self.late:
            self._make(node, saved, sources, done, order)
        last: dict[fx.Node, int] = {}
        for step, node in enumerate(order):
            for source in sources[node]:
                last[source] = step
        lasting = {*saved, *self.gradients}
        now = [sum(self.size[node] for node in saved), 0]  # saved values and gradients, the rest
        most = [*now, sum(now)]
        for step, node in enumerate(order):
            now[node not in lasting] += self.size[node]
            most = [max(pair) for pair in zip(most, (*now, sum(now)), strict=True)]
            for source in {*sources[node], node}:
                if last.get(source, step) == step and source not in self.gradients:
                    now[source not in lasting] -= self.size[source]
        return most[2], most[0] + most[1]

    def _make(
        self,
        node: fx.Node,
        saved: Collection[fx.Node],
        sources: dict[fx.Node, list[fx.Node]],
        done: set[fx.Node],
        order: list[fx.Node],
    ) -> None:
        """Append a value to the order, after all that it needs."""
        pending = [node]
        while pending:
            top = pending[-1]
            if top in done:
                pending.pop()
                continue
            if top not in sources:
                sources[top] = self._read_by(top, saved)
                pending += [source for source in sources[top] if source not in done and source not in saved]
                continue
            pending.pop()
            done.add(top)
            order.append(top)

    def _read_by(self, node: fx.Node, saved: Collection[fx.Node]) -> list[fx.Node]:
        """The values in memory that a value is computed from, through those that are fused into it."""
        sources: dict[fx.Node, None] = {}
        seen: set[fx.Node] = set()
        pending = list(node.all_input_nodes)
        while pending:
            source = view_root(pending.pop())
            if source in seen or source not in self.size:
                continue
            seen.add(source)
            if source in self.in_memory or source in saved:
                sources[source] = None
            else:
                pending.extend(source.all_input_nodes)
        return list(sources)
