"""Results that are computed from other outputs: which from which, and where gradients of those outputs arrive.

    h = x.sin(); y = h.cos(); return h, y      →   y leans on output 0

In eager a gradient of `y` passes `h` on its way: hooks on `h` see it, `h.retain_grad()` keeps it, and
`torch.autograd.grad(y, h)` asks for it. A compiled graph is one node, in which all that happens unseen; who looks there
all the same is told by the runtime, which then needs the backward in parts (`partial.stopped`). For those the joint
graph marks where the gradient of each such output is complete:

    arrived: f32[4] = aten.alias.default(add)
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from smelt.autograd.joint.functional_trace import CannotTrace, SharingRecorder, functional, settled
from smelt.base.fast_dataclass import dataclass
from smelt.ir.call_contract import FromInput, FromResult, Output, Phase, SameAsOutput, set_arrival, set_phase
from smelt.ir.tensorspec import set_spec, tensor_spec
from smelt.meta.autograd_graph import behind
from smelt.meta.ghost import GhostTensor

Leaning = tuple[tuple[int, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a graph leaves to be seen: outputs, how they are made, and inputs that it writes, those with their new past
    that gradients flow through."""

    outputs: Sequence[object]
    recipes: Sequence[Output]
    written: Mapping[int, torch.Tensor | None]

    def tensors(self) -> list[Any]:
        return [*self.outputs, *self.written.values()]

    def places(self) -> dict[tuple[Any, int], int]:
        """The places of `tensors`, by where their gradients arrive in autograd's graph."""
        found: dict[tuple[Any, int], int] = {}
        for place, tensor in enumerate(self.tensors()):
            if isinstance(tensor, torch.Tensor) and tensor.grad_fn is not None and not self._is_given(place):
                found.setdefault((tensor.grad_fn, tensor.output_nr), place)
        return found

    def _is_given(self, place: int) -> bool:
        """Whether this is an input as it came in, or what another output is."""
        recipe = self.recipes[place] if place < len(self.recipes) else None
        return isinstance(recipe, SameAsOutput) or (
            isinstance(recipe, FromInput) and not recipe.alias and recipe.index not in self.written
        )

    def beneath(self, place: int, results: int) -> Sequence[int]:
        """The results, and new values behind them, that must be there before what is seen at a place."""
        recipe = self.recipes[place] if place < len(self.recipes) else None
        if isinstance(recipe, FromResult):
            return (recipe.index,)
        if isinstance(recipe, FromInput) and recipe.index not in self.written:
            return ()
        return range(results, results + len(self.written))


def find_leaning(seen: Seen, results: int, values: Mapping[int, torch.Tensor]) -> Leaning:
    """`JointPlan.output_deps`, for `values` that gradients arrive for, by their place among results and new values."""
    places = seen.places()
    if not places:
        return ()
    found: dict[Any, int] = {}  # per node, places that it leads to by no other, a bit each
    for node in behind(value.grad_fn for value in values.values()):
        bits = 0
        for before, number in node.next_functions:
            place = places.get((before, number))
            bits |= found.get(before, 0) if place is None else 1 << place
        found[node] = bits
    leans = {position: _bits_of(found.get(value.grad_fn, 0)) for position, value in values.items()}
    number_of = {position: number for number, position in enumerate(values)}
    ordered: list[tuple[int, tuple[int, ...]]] = []
    waiting = {position for position, places in leans.items() if places}
    while waiting:
        ready = [
            position
            for position in sorted(waiting)
            if not any(waiting.intersection(seen.beneath(place, results)) for place in leans[position])
        ]
        if not ready:
            raise CannotTrace("inputs are written with what is computed from others that are written")
        waiting.difference_update(ready)
        ordered += [(number_of[position], leans[position]) for position in ready]
    return tuple(ordered)


def _bits_of(bits: int) -> tuple[int, ...]:
    return tuple(place for place in range(bits.bit_length()) if bits >> place & 1)


def mark_arrivals(recorder: SharingRecorder, seen: Seen, leaning: Leaning) -> None:
    """Have the engine write down where the gradients of outputs arrive that others lean on."""
    tensors = seen.tensors()
    for place in sorted({place for _, leans in leaning for place in leans}):
        tensors[place].register_hook(functools.partial(_mark, recorder, place))


def _mark(recorder: SharingRecorder, place: int, gradient: torch.Tensor | None) -> torch.Tensor | None:
    if gradient is None:
        return None
    arrived = settled(gradient).node
    assert isinstance(arrived, fx.Node)
    alias = torch.ops.aten.alias.default
    node = recorder.graph.create_node("call_function", alias, (arrived,), {}, name="arrived")
    set_spec(node, tensor_spec(arrived))
    set_phase(node, Phase.BACKWARD)
    set_arrival(node, place)
    return functional(GhostTensor(tensor_spec(arrived), node))
