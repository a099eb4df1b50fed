"""Results that depend on other outputs: which on which, and where gradients of those outputs arrive.

    h = x.sin(); y = h.cos(); return h, y      →   y depends on output 0

In eager a gradient of `y` passes `h` on its way: hooks on `h` see it, `h.retain_grad()` keeps it, and
`torch.autograd.grad(y, h)` asks for it. A compiled graph is one node, and hides all that. The runtime detects whether
anyone observes such a gradient, and then runs the backward in parts (`partial_backward.cut_at_outputs`). For those the
joint graph marks where the gradient of each such output is complete:

    arrived: f32[4] = aten.alias.default(add)
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from smelt.autograd.joint.functional_tensors import functional, synced
from smelt.autograd.joint.functional_trace import CannotTrace, SharingRecorder
from smelt.base.fast_dataclass import dataclass
from smelt.ir.call_contract import FromInput, FromResult, Output, Phase, SameAsOutput, set_arrival, set_phase
from smelt.ir.tensorspec import set_spec, tensor_spec
from smelt.meta.autograd_graph import behind
from smelt.meta.fake_tensor import FakeTensor

OutputDeps = tuple[tuple[int, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class VisibleTensors:
    """Tensors that are visible after the graph ran: outputs, how they are made, and mutated inputs, with a tensor for
    those that are mutated with gradients."""

    outputs: Sequence[object]
    recipes: Sequence[Output]
    written: Mapping[int, torch.Tensor | None]

    def tensors(self) -> list[Any]:
        return [*self.outputs, *self.written.values()]

    def places(self) -> dict[tuple[Any, int], int]:
        """Positions in `tensors`, by autograd node and output number."""
        places_by_node: dict[tuple[Any, int], int] = {}
        for place, tensor in enumerate(self.tensors()):
            if isinstance(tensor, torch.Tensor) and tensor.grad_fn is not None and not self._is_given(place):
                places_by_node.setdefault((tensor.grad_fn, tensor.output_nr), place)
        return places_by_node

    def _is_given(self, place: int) -> bool:
        """Whether this is an unchanged input, or the same tensor as another output."""
        recipe = self.recipes[place] if place < len(self.recipes) else None
        return isinstance(recipe, SameAsOutput) or (
            isinstance(recipe, FromInput) and not recipe.alias and recipe.index not in self.written
        )

    def beneath(self, place: int, results: int) -> Sequence[int]:
        """The results, and new values after them, that must exist before the tensor at a position."""
        recipe = self.recipes[place] if place < len(self.recipes) else None
        if isinstance(recipe, FromResult):
            return (recipe.index,)
        if isinstance(recipe, FromInput) and recipe.index not in self.written:
            return ()
        return range(results, results + len(self.written))


def find_output_deps(seen: VisibleTensors, results: int, values: Mapping[int, torch.Tensor]) -> OutputDeps:
    """`JointPlan.output_deps`, for `values` that gradients arrive for, by their place among results and new values."""
    places = seen.places()
    if not places:
        return ()
    reached: dict[Any, int] = {}  # per node, the positions it reaches without passing another, a bit each
    for node in behind(value.grad_fn for value in values.values()):
        bits = 0
        for before, number in node.next_functions:
            place = places.get((before, number))
            bits |= reached.get(before, 0) if place is None else 1 << place
        reached[node] = bits
    deps = {position: _bits_of(reached.get(value.grad_fn, 0)) for position, value in values.items()}
    number_of = {position: number for number, position in enumerate(values)}
    ordered: list[tuple[int, tuple[int, ...]]] = []
    waiting = {position for position, places in deps.items() if places}
    while waiting:
        ready = [
            position
            for position in sorted(waiting)
            if not any(waiting.intersection(seen.beneath(place, results)) for place in deps[position])
        ]
        if not ready:
            raise CannotTrace("mutated inputs depend on each other")
        waiting.difference_update(ready)
        ordered += [(number_of[position], deps[position]) for position in ready]
    return tuple(ordered)


def _bits_of(bits: int) -> tuple[int, ...]:
    return tuple(place for place in range(bits.bit_length()) if bits >> place & 1)


def mark_arrivals(recorder: SharingRecorder, seen: VisibleTensors, output_deps: OutputDeps) -> None:
    """Record where gradients of outputs arrive that other results depend on."""
    tensors = seen.tensors()
    for place in sorted({place for _, deps in output_deps for place in deps}):
        tensors[place].register_hook(functools.partial(_mark, recorder, place))


def _mark(recorder: SharingRecorder, place: int, gradient: torch.Tensor | None) -> torch.Tensor | None:
    if gradient is None:
        return None
    arrived = synced(gradient).node
    assert isinstance(arrived, fx.Node)
    alias = torch.ops.aten.alias.default
    node = recorder.graph.create_node("call_function", alias, (arrived,), {}, name="arrived")
    set_spec(node, tensor_spec(arrived))
    set_phase(node, Phase.BACKWARD)
    set_arrival(node, place)
    return functional(FakeTensor(tensor_spec(arrived), node))
