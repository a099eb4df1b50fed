"""The contract between a pure graph and the call it stands for: which results become which outputs, what is mutated,
what is saved, where gradients go.

A pure graph neither writes nor aliases; the function it came from may do both. A `JointPlan` says, in plain data that
an artifact can store, what the runtime does round the compiled graph so that the effects are those of eager:

    def f(x, buffer):                pure forward(x, buffer) -> (add, mul, saved...)
        buffer.add_(1)               JointPlan(outputs=(FromResult(0), FromInput(0, (view,))), results=1,
        return x * 2, x.view(-1)               mutated_inputs=(1,), ...)

The flat results of a forward are, in order: `results` values, one new value per entry of `mutated_inputs`, then what
is saved.
"""

from collections.abc import Callable
from dataclasses import field
from enum import Enum
from typing import Any

import torch
from torch import fx

from smelt.base.fast_dataclass import dataclass
from smelt.ir.tensorspec import TensorSpec
from smelt.symbolic.symsize import hint

_PHASE = "smelt_phase"
_RECOMPUTE_POLICY = "smelt_recompute_policy"
_ARRIVAL = "smelt_arrival"


class Phase(Enum):
    """When a node of the joint graph was recorded: as the forward ran, as the backward did, or in both."""

    FORWARD = "forward"
    BACKWARD = "backward"
    BOTH = "both"  # the backward asked again for what the forward had computed; the two are one node


def phase_of(node: fx.Node) -> Phase:
    phase: Phase = node.meta.get(_PHASE, Phase.FORWARD)
    return phase


def set_phase(node: fx.Node, phase: Phase) -> None:
    node.meta[_PHASE] = phase


class RecomputePolicy(Enum):
    """What the program asked for a value that the backward needs, by `torch.utils.checkpoint`."""

    RECOMPUTE = "recomputed"
    SAVED = "saved"


def recompute_policy_of(node: fx.Node) -> RecomputePolicy | None:
    return node.meta.get(_RECOMPUTE_POLICY)


def set_recompute_policy(node: fx.Node, policy: RecomputePolicy | None) -> None:
    node.meta[_RECOMPUTE_POLICY] = policy


def arrival_of(node: fx.Node) -> int | None:
    """The output whose gradient, all of it, a node of the backward passes on; None for other nodes."""
    return node.meta.get(_ARRIVAL)


def set_arrival(node: fx.Node, output: int) -> None:
    node.meta[_ARRIVAL] = output


@dataclass(frozen=True, slots=True)
class ViewStep:
    """One view operator to apply again; `item` picks one of several results (`split`, `unbind`)."""

    op: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()
    item: int | None = None

    def apply(self, tensor: torch.Tensor) -> Any:
        result = self.op(tensor, *self.args, **dict(self.kwargs))
        return result if self.item is None else result[self.item]


@dataclass(frozen=True, slots=True)
class AsStrided:
    """A view described by its layout alone; `offset` counts elements from the tensor's own first one."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def apply(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.as_strided(self.shape, self.stride, tensor.storage_offset() + self.offset)


Steps = tuple[ViewStep | AsStrided, ...]


@dataclass(frozen=True, slots=True)
class FromInput:
    """The output is input number `index`, or an alias of it made by `steps`."""

    index: int
    steps: Steps = ()
    alias: bool = False  # a new tensor object on the same memory, not that very object
    detached: bool = False  # no gradient flows through the alias
    creation_meta: str = "DEFAULT"  # PyTorch's word for how a view came about; some it lets nobody write
    through: int | None = None  # the output that it is a view of and `steps` start from, if it is one


@dataclass(frozen=True, slots=True)
class FromResult:
    """The output is result number `index` of the forward, or an alias of it made by `steps`."""

    index: int
    steps: Steps = ()
    alias: bool = False
    detached: bool = False
    creation_meta: str = "DEFAULT"
    through: int | None = None


@dataclass(frozen=True, slots=True)
class SameAsOutput:
    """The output is the object that output number `index` is."""

    index: int


@dataclass(frozen=True, slots=True)
class Plain:
    """The output is no tensor: a number, a string, None."""

    value: object


Output = FromInput | FromResult | SameAsOutput | Plain


@dataclass(frozen=True, slots=True)
class Saved:
    """A value kept from forward to backward; `source` is the input it is, or None for one the forward computes."""

    name: str
    spec: TensorSpec
    source: int | None
    why: str = field(compare=False)  # for people: it has sizes of the example


@dataclass(frozen=True, slots=True)
class JointPlan:
    """How compiled graphs are joined to their caller and to PyTorch's autograd."""

    inputs: int
    outputs: tuple[Output, ...]
    results: int
    result_views: tuple[tuple[int, bool], ...] = ()  # per result: an output that is it or, if true, a view of it
    must_own_memory: tuple[int, ...] = ()  # results that own their memory in eager and share it in the graph
    mutated_inputs: tuple[int, ...] = ()  # inputs that get a new value, in the order of the forward's new values
    version_bumps: tuple[int, ...] = ()  # how often eager writes each of them: its version counts that
    mutated_with_grad: tuple[int, ...] = ()  # those of them whose new value gradients flow through
    kept_old_values: tuple[int, ...] = ()  # those of them whose old value is kept, because what comes out depends on it
    copied_saved_inputs: tuple[int, ...] = ()  # saved inputs that eager does not keep: copied, unless they are leaves
    needed: tuple[int, ...] = ()  # inputs that gradients depend on by their value
    random: tuple[str, ...] = ()  # the devices on which the forward draws random numbers
    # Results, and behind them new values, that gradients arrive for, in the order of the tangents.
    differentiable: tuple[int, ...] = ()
    tangents: tuple[TensorSpec, ...] = ()  # the layout the backward was traced with, per differentiable result
    gradients: tuple[int, ...] = ()  # the input that each result of the backward is the gradient of
    # Which tangents each gradient depends on, a bit each; empty if there is but one tangent.
    grad_depends_on: tuple[int, ...] = ()
    # Which tangents, a bit each, a backward from each may not be followed by: what eager saved for both is freed then.
    frees_saved_of: tuple[int, ...] = ()
    # What gradients arrive for that is computed from other outputs: which tangent, and those outputs, by position, with
    # written inputs behind them. Each stands behind those that its outputs are made of.
    output_deps: tuple[tuple[int, tuple[int, ...]], ...] = ()
    # The order in which autograd is handed the inputs, if not their own: so that it gives leaves their gradients, and
    # calls hooks on them, in the order in which it does so in eager.
    autograd_input_order: tuple[int, ...] = ()
    saved: tuple[Saved, ...] = ()  # what the forward keeps for the backward, in the order both graphs have it

    @property
    def new_values(self) -> tuple[tuple[int, int], ...]:
        """Of a graph without tangents: the positions of new values among the results, and of what they are written
        to. What is written differentiably is left to autograd."""
        places = enumerate(self.mutated_inputs, self.results)
        return () if self.tangents else tuple(pair for pair in places if pair[1] not in self.mutated_with_grad)

    @property
    def watched(self) -> tuple[int, ...]:
        """Outputs, and behind them written inputs, that something is computed from which gradients arrive for: those
        that `output_deps` names, and outputs that those are views of."""
        watched_places = {place for _, places in self.output_deps for place in places}
        for place in list(watched_places):
            while place < len(self.outputs) and isinstance(output := self.outputs[place], FromResult | FromInput):
                watched_places.add(place)
                if output.through is None:
                    whole = FromResult(output.index) if isinstance(output, FromResult) and output.alias else None
                    watched_places.update([self.outputs.index(whole)] if whole in self.outputs else [])
                    break
                place = output.through
        return tuple(sorted(watched_places))

    @property
    def showing_written(self) -> frozenset[int]:
        """Outputs that show the memory of written inputs, and behind the outputs those inputs themselves."""
        outputs = [
            place
            for place, output in enumerate(self.outputs)
            if isinstance(output, FromInput) and output.index in self.mutated_inputs
        ]
        return frozenset([*outputs, *range(len(self.outputs), len(self.outputs) + len(self.mutated_inputs))])

    def tangent_of(self, output: int) -> int | None:
        """The number of the tangent that is the gradient of an output itself, not of what it is a view of."""
        behind = output - len(self.outputs)
        kind = self.outputs[output] if behind < 0 else FromInput(self.mutated_inputs[behind])
        if not isinstance(kind, FromResult | FromInput) or kind.alias:
            return None
        if isinstance(kind, FromInput) and kind.index not in self.mutated_inputs:
            return None
        place = kind.index if isinstance(kind, FromResult) else self.results + self.mutated_inputs.index(kind.index)
        return self.differentiable.index(place) if place in self.differentiable else None

    @property
    def forward_outputs(self) -> int:
        """How many values the forward returns before those it saves."""
        return self.results + len(self.mutated_inputs)

    @property
    def lost(self) -> tuple[int, ...]:
        """Written inputs whose old value nobody has afterwards."""
        return tuple(index for index in self.mutated_inputs if index not in self.kept_old_values)

    @property
    def saved_bytes(self) -> int:
        return sum(hint(saved.spec.nbytes) for saved in self.saved)


# Computes what is differentiable again from the inputs, which it may write: for derivatives of higher order.
Replay = Callable[[list[torch.Tensor]], list[torch.Tensor]]
