"""Runs passes: their context, the checks between them, and the function that each pass calls.

`stages.py` has the tables of passes; `compile.py` sends graphs through them.
"""

from collections.abc import Callable
from dataclasses import field
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from smelt import codegen, fuse
from smelt.autograd.joint.functional_trace import Decompositions
from smelt.autograd.joint.trace_joint import Joint, Pure, trace_forward, trace_joint
from smelt.base import events
from smelt.base.fast_dataclass import dataclass
from smelt.base.options import Options, config
from smelt.base.rewrite_budget import RewriteBudget
from smelt.device import devices, target_of
from smelt.ir.check_kernel import check_program
from smelt.ir.graph import GraphLevel, Traced, check_graph
from smelt.ir.program import Program
from smelt.ir.tensorspec import tensor_specs
from smelt.ir.text import format_program
from smelt.pipeline.parts import bind
from smelt.runtime.program.arenas import Arenas
from smelt.runtime.program.launch import Executable
from smelt.simplify import (
    PASSES,
    SimplifyPass,
    align_products,
    keep_masks,
    lay_images,
    share_heads,
    split_biases,
    why_not_operands,
)

if TYPE_CHECKING:
    from smelt.autograd.partition.partition import ForwardBackward
    from smelt.meta.memory_peak import Peak


class Form(Enum):
    """What a pass takes or gives."""

    TORCH = "torch-level graph"
    JOINT = "joint functional graph"
    HALVES = "forward and backward, functional graphs"
    PURE = "functional graph"
    PROGRAM = "kernel program"
    EXECUTABLE = "callable"


@dataclass(frozen=True, slots=True)
class PassContext:
    """Arguments of a pass besides its input."""

    options: Options
    name: str
    budget: RewriteBudget
    decompositions: Decompositions = field(default_factory=dict)
    consuming: bool = False  # whether inputs come in a list, to be freed after their last use
    planned: bool = True  # whether temporary values are placed in an arena
    arenas: Arenas = field(default_factory=Arenas)  # memory shared by programs that never run simultaneously

    @property
    def check_specs(self) -> bool:
        return self.options.check_specs or config.check_specs


@dataclass(frozen=True, slots=True)
class Pass:
    """One step of the way. `why` says why it stands where it does."""

    name: str
    takes: Form
    gives: Form
    run: Callable[[Any, PassContext], Any]
    why: str


def run_trace_forward(traced: Traced, context: PassContext) -> Pure:
    return trace_forward(traced, context.decompositions)


def run_trace_joint(traced: Traced, context: PassContext) -> Joint:
    return trace_joint(traced, context.decompositions)


def run_lay_images(graph: Pure | Joint, context: PassContext) -> Pure | Joint:
    # What is not decomposed is run operator by operator, as eager would.
    # Kernels of our own take images as they are.
    own = context.options.convolutions == "auto" and context.options.products == "own"
    how = context.options.convolutions if context.decompositions and not own else "library"
    lay_images(graph.traced, context.budget, how)
    return graph


def run_split_biases(graph: Pure | Joint, context: PassContext) -> Pure | Joint:
    if context.decompositions:
        split_biases(graph.traced, context.budget)
    return graph


def run_share_heads(graph: Pure | Joint, context: PassContext) -> Pure | Joint:
    if context.decompositions:
        share_heads(graph.traced, context.budget)
    return graph


def run_align_products(graph: Pure | Joint, context: PassContext) -> Pure | Joint:
    if context.decompositions:
        align_products(graph.traced, context.budget)
    return graph


def run_draw_in_kernels(graph: Pure | Joint, context: PassContext) -> Pure | Joint:
    dropout = torch.ops.aten.native_dropout.default
    if context.decompositions and any(node.target is dropout for node in graph.traced.graph.nodes):
        # Most graphs have none, and these define operators.
        from smelt.runtime.cuda.dropout_check import blocks_for
        from smelt.simplify.philox_masks import draw_in_kernels

        draw_in_kernels(graph.traced, context.budget, partial(blocks_for, target=context.options.target))
    return graph


def run_keep_masks(graph: Pure | Joint, context: PassContext) -> Pure | Joint:
    if context.decompositions:
        keep_masks(graph.traced, context.budget)
    return graph


def run_split(joint: Joint, context: PassContext) -> "ForwardBackward":
    from smelt.autograd.partition.partition import default, min_cut  # many graphs have no backward

    budget = context.options.memory_budget
    if budget is not None:
        # What was decomposed will be fused; what was not is run operator by operator.
        measure = partial(_peaks_when_fused, options=context.options) if context.decompositions else None
        return min_cut(joint, memory_budget=budget, measure=measure)
    return min_cut(joint) if context.options.recompute else default(joint)


def _peaks_when_fused(halves: "ForwardBackward", options: Options) -> "tuple[Peak, ...]":
    """The memory two halves take as programs, with an arena and without. They are made for nothing else."""
    from smelt.autograd.joint.partial_backward import for_the_loss
    from smelt.meta.memory_peak import graph_peak, program_peak
    from smelt.runtime.program.library_workspace import scratch_of, scratch_of_step

    backward = None if halves.backward is None else for_the_loss(halves.backward, halves.plan)
    if any(half is not None and why_not_generate(half, options.target) for half in (halves.forward, backward)):
        return (graph_peak(halves.forward, backward, halves.plan, scratch_of),)

    def program_of(half: Traced) -> Program:
        context = PassContext(options, "trial", RewriteBudget(options.max_rewrites))
        for _, simplify, _ in PASSES:
            half = simplify(half, context.budget)
        return fuse.build_program(half, context.name, options, budget=context.budget)

    ahead, back = program_of(halves.forward), None if backward is None else program_of(backward)
    with_arena = program_peak(ahead, back, halves.plan, scratch_of_step)
    ahead, back = ahead.unplanned(), None if back is None else back.unplanned()
    return with_arena, program_peak(ahead, back, halves.plan, scratch_of_step)


def simplifier(run: SimplifyPass) -> Callable[[Traced, PassContext], Traced]:
    return lambda traced, context: run(traced, context.budget)


def run_fuse(traced: Traced, context: PassContext) -> Program:
    program = fuse.build_program(traced, context.name, context.options, budget=context.budget)
    if not context.planned:
        program = program.unplanned()
    events.count("kernels", len(program.kernels))
    if events.wanted("kernels"):
        events.emit("kernels", lambda: format_program(program), program)
    return program


def run_generate(program: Program, context: PassContext) -> Executable:
    built = codegen.compile_kernels(program.kernels, context.options, context.budget, context.name)
    return bind(program, built, context.options, context.consuming, context.arenas)


def run_passes(value: Any, passes: tuple[Pass, ...], context: PassContext) -> Any:
    """Send a value through passes in order, checking each form on request."""
    for step in passes:
        context.budget.stage = f"{context.name}: {step.name}"
        with events.timed(step.name, context.name):
            value = step.run(value, context)
        if context.check_specs:
            check_form(value, step)
    return value


def check_form(value: Any, step: Pass) -> None:
    from smelt.autograd.partition.partition import ForwardBackward

    if isinstance(value, Traced):
        check_graph(value.graph, value.level, after=step.name)
    elif isinstance(value, Pure | Joint):
        check_graph(value.traced.graph, GraphLevel.PURE, after=step.name)
    elif isinstance(value, ForwardBackward):
        for half in (value.forward, value.backward):
            if half is not None:
                check_graph(half.graph, GraphLevel.PURE, after=step.name)
    elif isinstance(value, Program):
        if any(buffer.spec.varies for buffer in value.buffers):
            return  # it is checked for each combination of sizes it is bound to
        check_program(value, after=step.name)


def why_not_generate(traced: Traced, wanted: str = "") -> str | None:
    """Why no kernels can be made for a pure graph: numbers that are no operands, or a device without a target.
    `wanted`: what the option `target` says."""
    numbers = why_not_operands(traced)
    if numbers is not None:
        return numbers
    for node in traced.graph.nodes:
        for spec in tensor_specs(node):
            if target_of(spec.device, wanted) is None:
                return f"{node.name} is on {spec.device.type}, and kernels are made for {', '.join(devices())} only"
    return None
