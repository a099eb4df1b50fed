"""The form in which exploring builds a machine: states with parameters, and edges that hand them arguments.

A value is made once: it is an argument of the call, a tensor of the program, a parameter of a state, or an output of a
graph. Which values share a register is decided when all states are known (`explore.registers`).

    loop(x, n):   y = graph(x)    if c: loop(y, n) else done(y)
"""

from typing import Any

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.capture.model.state import LiveFrame
from smelt.device.host_library import HOST
from smelt.ir.artifact.machine import Check, Literal, Raise, RegisterKind
from smelt.ir.artifact.tree import Tree
from smelt.ir.graph import Traced
from smelt.ir.nodes.ambient import Ambient
from smelt.ir.tensorspec import TensorSpec


@dataclass(slots=True, eq=False)
class SsaValue:
    """A tensor, or a number as one. A parameter of a state, or an output of a graph, is LOCAL."""

    kind: RegisterKind
    name: str
    dtype: torch.dtype
    sizes: tuple[int | None, ...]
    device: torch.device = HOST
    tensor: torch.Tensor | None = None
    is_given: bool = False  # whether it is a number that the caller chooses


@dataclass(slots=True, eq=False)
class Node:
    """A state: where the program stands (`frames`, of stand-ins), what it is given, and what it does. `values` are the
    parameters by the ids of what stands for them."""

    name: str
    frames: list[LiveFrame]
    ambient: Ambient
    parameters: list[SsaValue]
    values: dict[int, SsaValue]
    steps: "list[Step]"
    tentative: bool = False  # whether only numbers lead here that the program may never have
    error: Exception | None = None  # why it cannot be exported


@dataclass(slots=True, eq=False)
class Edge:
    """Going on in a state; an argument for each of its parameters."""

    target: Node
    arguments: list[SsaValue]


@dataclass(slots=True, eq=False)
class Ends:
    """The call returns `tree` of these: a value as a tensor (with its spec, if this step made it), as a number, or a
    literal."""

    leaves: list[tuple[str, SsaValue, TensorSpec | None] | Literal]
    tree: Tree


@dataclass(slots=True, eq=False)
class Goes:
    """Going on: by one edge, or by two, of which the first is taken where `condition` is true."""

    edges: list[Edge]
    condition: SsaValue | None = None


@dataclass(slots=True, eq=False)
class Step:
    """What a state does where the checks hold. `symbols`: names in the graph, with the value whose size (or, without
    a dimension, whose number) each is."""

    traced: Traced | None
    inputs: list[SsaValue]
    outputs: list[SsaValue]
    next: Ends | Goes | Raise
    symbols: list[tuple[str, SsaValue, int | None]]
    checks: list[Check]
    written: list[SsaValue]
    extra: bool = False  # for a number that the program may never have

    def reads(self) -> list[SsaValue]:
        """What is read on the way to where it goes on, and there."""
        values: list[Any] = [*self.inputs, *[value for _, value, _ in self.symbols]]
        if isinstance(self.next, Goes):
            values += [self.next.condition] if self.next.condition is not None else []
            values += [value for edge in self.next.edges for value in edge.arguments]
        if isinstance(self.next, Ends):
            values += [leaf[1] for leaf in self.next.leaves if not isinstance(leaf, Literal)]
        return values
