"""How many bytes a training step takes at its peak, computed from its two graphs or its two programs.

    forward     what it has made so far and still needs            ┐
    between     its results, and what it saved                     ├─ the most of these is the peak
    backward    both, and what it has made so far and still needs  ┘

Counted is all that the step allocates: temporary values, results, saved values, gradients, those that come in too, and
what library calls take for themselves while they run, if somebody can tell (`scratch`). Not counted is what the caller
brought (inputs, parameters).
Results are taken to be held by the caller until the backward is over; saved values go as soon as it has read them.
Gradients are taken to come for the results that the backward has an input for. If that is all of several, and some are
scalar (a loss), they come for those alone: for the others zeros are made, which go when they are read.
"""

import operator
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field
from typing import Any, cast

import torch
from torch import fx

from smelt.base.fast_dataclass import dataclass
from smelt.ir.call_contract import JointPlan
from smelt.ir.graph import Traced, outputs, placeholders
from smelt.ir.program import Library, Place, Program, operands_in, touched
from smelt.ir.tensorspec import TensorSpec, spec_of
from smelt.meta.effects import is_view

Key = Hashable  # stands for one block of memory
END = sys.maxsize - 1

# The bytes a library call takes for itself: of an operator and its arguments, specs for tensors; of a program's step.
CallScratch = Callable[[object, Sequence[Any], Mapping[str, Any]], int]
StepScratch = Callable[[Program, Library], int]


@dataclass(frozen=True, slots=True)
class Peak:
    """Bytes at the peak of each half; `saved` is what the step made and keeps for the backward alone."""

    forward: int
    backward: int
    saved: int

    @property
    def step(self) -> int:
        return max(self.forward, self.backward)


@dataclass(slots=True)
class MemoryUsage:
    """Who needs how much memory when, in one half: blocks that come alive at one step and are let go after another."""

    sizes: dict[Key, int] = field(default_factory=dict)
    first: dict[Key, int] = field(default_factory=dict)
    last: dict[Key, int] = field(default_factory=dict)
    returned: list[Key | None] = field(default_factory=list)  # None: nothing that this half made
    scratch: dict[int, int] = field(default_factory=dict)  # taken during a step alone

    def make(self, key: Key, size: int, step: int) -> None:
        if key not in self.sizes:
            self.sizes[key], self.first[key], self.last[key] = size, step, step

    def hold(self, key: Key, size: int) -> Key:
        """An input that is let go when it has been read for the last time, or never if nothing reads it."""
        self.make(key, size, 0)
        self.last[key] = END
        return key

    def use(self, key: Key | None, step: int) -> None:
        if key in self.sizes:
            self.last[key] = step

    def peak(self) -> int:
        """The most that is alive at one step; what is returned is so to the end."""
        kept = set(self.returned)
        changes: dict[int, int] = {}
        for key, size in self.sizes.items():
            changes[self.first[key]] = changes.get(self.first[key], 0) + size
            if key not in kept:
                changes[self.last[key] + 1] = changes.get(self.last[key] + 1, 0) - size
        now = most = 0
        for step in sorted({*changes, *self.scratch}):
            now += changes.get(step, 0)
            most = max(most, now + self.scratch.get(step, 0))
        return most

    def bytes_of(self, keys: list[Key | None]) -> int:
        return sum(self.sizes[key] for key in {key for key in keys if key in self.sizes})


def graph_peak(forward: Traced, backward: Traced | None, plan: JointPlan, scratch: CallScratch | None = None) -> Peak:
    """The peak of graphs that PyTorch runs operator by operator, letting go of values after their last use."""
    ahead = graph_usage(forward.graph, (), scratch)
    sizes = handed_over(ahead, plan, len(placeholders(backward.graph)) if backward is not None else 0)
    return _peak(ahead, None if backward is None else graph_usage(backward.graph, sizes, scratch), sizes, plan)


def program_peak(
    forward: Program, backward: Program | None, plan: JointPlan, scratch: StepScratch | None = None
) -> Peak:
    """The peak of planned programs, their arena included, which both share and which is kept from step to step."""
    arena = max(int(forward.arena_bytes), int(backward.arena_bytes) if backward is not None else 0)
    ahead = program_usage(forward, (), scratch)
    sizes = handed_over(ahead, plan, len(backward.inputs) if backward is not None else 0)
    return _peak(ahead, None if backward is None else program_usage(backward, sizes, scratch), sizes, plan, arena)


def handed_over(forward: MemoryUsage, plan: JointPlan, inputs: int) -> list[int]:
    """How much memory each of the backward's `inputs` is the last to hold: a saved value's own, or zeros for a result.
    """
    results = set(forward.returned[: plan.results])
    sizes: list[int] = []
    for saved, key in zip(plan.saved, forward.returned[plan.forward_outputs :], strict=True):
        ours = saved.source is None and key in forward.sizes and key not in results
        sizes.append(forward.sizes[key] if ours else 0)
        results.add(key)  # the same memory counts once
    loss = any(not spec.shape for spec in plan.tangents)
    zeros = [int(spec.nbytes) if loss and spec.shape else 0 for spec in plan.tangents]
    return [*sizes, *(zeros if inputs == len(sizes) + len(zeros) else [0] * (inputs - len(sizes)))]


def _peak(
    forward: MemoryUsage, backward: MemoryUsage | None, input_bytes: list[int], plan: JointPlan, always: int = 0
) -> Peak:
    results = forward.bytes_of(forward.returned[: plan.results])
    scalars = [spec for spec in plan.tangents if not spec.shape]
    held = sum(int(spec.nbytes) for spec in scalars or plan.tangents)
    later = always + results + held + (backward.peak() if backward is not None else 0)
    return Peak(always + forward.peak(), later, sum(input_bytes[: len(plan.saved)]))


def graph_usage(graph: fx.Graph, input_bytes: Sequence[int] = (), scratch: CallScratch | None = None) -> MemoryUsage:
    """A block per value that is no view; a view uses the block of its base. `input_bytes`: of inputs, which are freed
    when they have been read."""
    usage = MemoryUsage()
    key_of: dict[fx.Node, Key | None] = {}
    inputs = iter(input_bytes)
    for step, node in enumerate(graph.nodes):
        for used in node.all_input_nodes:
            usage.use(key_of[used], step)
        if node.op == "placeholder":
            key_of[node] = usage.hold(node, next(inputs, 0))
        elif node.op != "call_function":
            key_of[node] = None
        elif is_view(node.target) or node.target in (operator.getitem, torch.ops.aten._unsafe_view.default):
            key_of[node] = _shown(node, key_of)
        else:
            key_of[node] = _made(node, usage, step)
            if scratch is not None:
                args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), cast(Any, spec_of))
                usage.scratch[step] = scratch(node.target, args, kwargs)
    usage.returned = [key_of[node] if isinstance(node, fx.Node) else None for node in outputs(graph)]
    return usage


def _shown(node: fx.Node, key_of: dict[fx.Node, Key | None]) -> Key | None:
    source = node.args[0]
    if not isinstance(source, fx.Node):
        return None  # of a number
    parts = isinstance(spec_of(source), tuple) and not is_view(source.target)
    return (source, node.args[1]) if parts else key_of[source]


def _made(node: fx.Node, usage: MemoryUsage, step: int) -> Key | None:
    spec = spec_of(node)
    if isinstance(spec, TensorSpec):
        usage.make(node, int(spec.nbytes), step)
    elif isinstance(spec, tuple):
        for position, part in enumerate(spec):
            if isinstance(part, TensorSpec):
                usage.make((node, position), int(part.nbytes), step)
    return node


def program_usage(program: Program, input_bytes: Sequence[int] = (), scratch: StepScratch | None = None) -> MemoryUsage:
    """A block per buffer that is allocated at each call; the arena is not in it. `input_bytes` as in `graph_usage`."""
    usage = MemoryUsage()
    for name, size in zip(program.inputs, input_bytes, strict=False):
        usage.hold(name, size)
    sizes = {
        buffer.name: int(buffer.spec.nbytes)
        for buffer in program.buffers
        if buffer.place in (Place.FRESH, Place.LIBRARY)
    }
    for number, step in enumerate(program.steps):
        for name in touched(step):
            if name in sizes:
                usage.make(name, sizes[name], number)
            usage.use(name, number)
        if scratch is not None and isinstance(step, Library):
            usage.scratch[number] = scratch(program, step)
    for output in program.outputs:
        buffers = [operand.buffer for operand in operands_in((output,))]
        usage.returned.append(buffers[0] if buffers else None)
    return usage
