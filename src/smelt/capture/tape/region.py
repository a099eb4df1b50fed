"""A node that runs a graph of its own, such as a checkpoint: the tensors that are used outside become its results."""

import operator
from dataclasses import field
from typing import Any

from torch import fx

from smelt.base.fast_dataclass import dataclass
from smelt.ir.tensorspec import set_spec, spec_of, tensor_spec


@dataclass(slots=True, eq=False)
class Region:
    """A node that runs a graph of its own, whose results are named one by one."""

    owner: Any  # the tape whose graph the node is in
    node: fx.Node
    graph: fx.Graph
    results: list[fx.Node] = field(default_factory=list)
    last: fx.Node | None = None

    def result(self, inner: fx.Node) -> fx.Node:
        """A new node of the outer graph for one that the region computes."""
        with self.owner.graph.inserting_after(self.last or self.node):
            self.last = self.owner.graph.call_function(operator.getitem, (self.node, len(self.results)))
        set_spec(self.last, spec_of(inner))
        self.results.append(inner)
        return self.last

    def close(self) -> None:
        self.graph.output(tuple(self.results))
        set_spec(self.node, tuple(tensor_spec(node) for node in self.results))
