"""Results that are computed from other outputs: which from which, and where gradients of those outputs arrive.

    h = x.sin(); y = h.cos(); return h, y      →   y leans on output 0

In eager a gradient of `y` passes `h` on its way: hooks on `h` see it, `h.retain_grad()` keeps it, and
`torch.autograd.grad(y, h)` asks for it. A compiled graph is one node, in which all that happens unseen; who looks there
all the same is told by the runtime, which then needs the backward in parts (`partial.stopped`). For those the joint
graph marks where the gradient of each such output is complete:

    arrived: f32[4] = aten.alias.default(add)
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import fx

from smelt.autograd.trace import CannotTrace, SharingRecorder, functional, settled
from smelt.ir.ghost import GhostTensor
from smelt.ir.history import behind
from smelt.ir.joint import FromInput, FromResult, Output, Phase, set_arrival, set_phase
from smelt.ir.tensorspec import set_spec, tensor_spec

Leaning = tuple[tuple[int, tuple[int, ...]], ...]


def find_leaning(
    outputs: Sequence[object],
    recipes: Sequence[Output],
    written: Iterable[int],
    values: Sequence[torch.Tensor],
    tangent_of: Callable[[int], int | None],
) -> Leaning:
    """`Plan.leaning`, for `values` that gradients arrive for.

    Outputs are known by how they are made (`recipes`); `tangent_of` tells which of the values a result is. What shows
    the memory of `written` inputs is left out.
    """
    at: dict[tuple[Any, int], int] = {}  # outputs, by the place in autograd's graph where their gradient arrives
    lost = set(written)
    for position, (output, recipe) in enumerate(zip(outputs, recipes, strict=True)):
        if not isinstance(output, torch.Tensor) or output.grad_fn is None:
            continue
        of_input = isinstance(recipe, FromInput) and recipe.alias and recipe.index not in lost
        if of_input or isinstance(recipe, FromResult):
            at.setdefault((output.grad_fn, output.output_nr), position)
    if not at:
        return ()
    found: dict[Any, int] = {}  # per node, outputs that it leads to by no other output, a bit each
    for node in behind(value.grad_fn for value in values):
        bits = 0
        for before, place in node.next_functions:
            position_before = at.get((before, place))
            bits |= found.get(before, 0) if position_before is None else 1 << position_before
        found[node] = bits
    pending = {number: _places(found.get(value.grad_fn, 0)) for number, value in enumerate(values)}
    return _in_order({number: leans for number, leans in pending.items() if leans}, recipes, tangent_of)


def _places(bits: int) -> tuple[int, ...]:
    return tuple(place for place in range(bits.bit_length()) if bits >> place & 1)


def _in_order(
    leaning: dict[int, tuple[int, ...]], recipes: Sequence[Output], tangent_of: Callable[[int], int | None]
) -> Leaning:
    """Each behind those that what it leans on is made of."""
    ordered: list[tuple[int, tuple[int, ...]]] = []
    waiting = dict(leaning)
    while waiting:
        ready = [
            number
            for number, leans in waiting.items()
            if all(_beneath(recipes[place], tangent_of) not in waiting for place in leans)
        ]
        if not ready:
            raise CannotTrace("outputs are computed from each other in a circle")
        ordered += [(number, waiting.pop(number)) for number in ready]
    return tuple(ordered)


def _beneath(recipe: Output, tangent_of: Callable[[int], int | None]) -> int | None:
    return tangent_of(recipe.index) if isinstance(recipe, FromResult) else None


def mark_arrivals(recorder: SharingRecorder, outputs: Sequence[Any], leaning: Leaning) -> None:
    """Have the engine write down where the gradients of outputs arrive that others lean on."""
    for place in sorted({place for _, leans in leaning for place in leans}):
        outputs[place].register_hook(functools.partial(_mark, recorder, place))


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
