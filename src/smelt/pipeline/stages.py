"""The way a graph takes, as data: read the four tables below and you have the map.

    torch-level graph ── TRACE ──► pure graph, or a joint graph that is split into two ── PURE ──► the same, simpler
                      ── LOWER ──► kernel program ──► machine code ──► a callable

Every pass names the form it takes and the form it gives; with `check_specs` the rules of that form are run after it.
"""

import itertools
from collections.abc import Callable
from dataclasses import field
from enum import Enum
from functools import cache, partial
from typing import Any

import torch

from smelt import codegen, fuse
from smelt.autograd.joint import Joint, Pure, Source, replaying, trace_forward, trace_joint
from smelt.autograd.partial import for_the_loss
from smelt.autograd.partition import Halves, default, min_cut
from smelt.autograd.trace import CannotTrace, Decompositions
from smelt.base import events
from smelt.base.data import dataclass
from smelt.base.fuel import Fuel
from smelt.base.options import Options, config
from smelt.base.symbols import World
from smelt.base.symint import is_symbolic
from smelt.ir.ambient import Ambient
from smelt.ir.check import check_kernel, check_program
from smelt.ir.graph import Level, Traced, check_graph, placeholders
from smelt.ir.joint import Plan
from smelt.ir.peak import Peak, graph_peak, program_peak
from smelt.ir.program import Program
from smelt.ir.tensorspec import NumberSpec, TensorSpec, spec_of
from smelt.ir.text import format_program
from smelt.ops.decompositions import decompositions as decompositions_for
from smelt.pipeline import expected
from smelt.pipeline.backwards import Backwards, Lower
from smelt.pipeline.cached import CacheEntry
from smelt.pipeline.sized import Bind, SizedGraph, Trace, is_sized
from smelt.pipeline.symbolic import Bound, Generate, Tracing
from smelt.pipeline.warm import Built, Parts, bind, look_up, program_of, with_stored_backwards
from smelt.runtime.launch import Arenas, Executable
from smelt.runtime.scratch import scratch_of, scratch_of_step
from smelt.runtime.state import Flat
from smelt.simplify import PASSES, SimplifyPass, lay_images, share_heads, why_not_operands


class Form(Enum):
    """What a pass takes or gives."""

    TORCH = "torch-level graph"
    JOINT = "joint forward and backward, pure"
    HALVES = "forward and backward, pure"
    PURE = "pure graph"
    PROGRAM = "kernel program"
    EXECUTABLE = "callable"


@dataclass(frozen=True, slots=True)
class Context:
    """What passes are told besides their input."""

    options: Options
    name: str
    fuel: Fuel
    decompositions: Decompositions = field(default_factory=dict)
    consuming: bool = False  # whether inputs come in a list, to be let go after their last use
    planned: bool = True  # whether temporary values lie in an arena
    arenas: Arenas = field(default_factory=Arenas)  # memory that programs running in turn share

    @property
    def check_specs(self) -> bool:
        return self.options.check_specs or config.check_specs


@dataclass(frozen=True, slots=True)
class Pass:
    """One step of the way. `why` says why it stands where it does."""

    name: str
    takes: Form
    gives: Form
    run: Callable[[Any, Context], Any]
    why: str


def _trace_forward(traced: Traced, context: Context) -> Pure:
    return trace_forward(traced, context.decompositions)


def _trace_joint(traced: Traced, context: Context) -> Joint:
    return trace_joint(traced, context.decompositions)


def _lay_images(found: Pure | Joint, context: Context) -> Pure | Joint:
    # What is not decomposed is run operator by operator, as eager would.
    how = context.options.convolutions if context.decompositions else "library"
    lay_images(found.traced, context.fuel, how)
    return found


def _share_heads(found: Pure | Joint, context: Context) -> Pure | Joint:
    if context.decompositions:
        share_heads(found.traced, context.fuel)
    return found


def _split(joint: Joint, context: Context) -> Halves:
    budget = context.options.memory_budget
    if budget is not None:
        # What was decomposed will be fused; what was not is run operator by operator.
        measure = partial(_peaks_when_fused, options=context.options) if context.decompositions else None
        return min_cut(joint, memory_budget=budget, measure=measure)
    return min_cut(joint) if context.options.recompute else default(joint)


def _peaks_when_fused(halves: Halves, options: Options) -> tuple[Peak, ...]:
    """The memory two halves take as programs, with an arena and without. They are made for nothing else."""
    backward = None if halves.backward is None else for_the_loss(halves.backward, halves.plan)
    if _why_not_generate(halves.forward) or (backward is not None and _why_not_generate(backward)):
        return (graph_peak(halves.forward, backward, halves.plan, scratch_of),)

    def program_of(half: Traced) -> Program:
        context = Context(options, "trial", Fuel(options.fuel))
        for step in SIMPLIFY:
            half = step.run(half, context)
        return fuse.build_program(half, context.name, options, fuel=context.fuel)

    ahead, back = program_of(halves.forward), None if backward is None else program_of(backward)
    with_arena = program_peak(ahead, back, halves.plan, scratch_of_step)
    ahead, back = ahead.unplanned(), None if back is None else back.unplanned()
    return with_arena, program_peak(ahead, back, halves.plan, scratch_of_step)


def _simplifier(run: SimplifyPass) -> Callable[[Traced, Context], Traced]:
    return lambda traced, context: run(traced, context.fuel)


def _fuse(traced: Traced, context: Context) -> Program:
    program = fuse.build_program(traced, context.name, context.options, fuel=context.fuel)
    if not context.planned:
        program = program.unplanned()
    events.count("kernels", len(program.kernels))
    if events.wanted("kernels"):
        events.emit("kernels", lambda: format_program(program), program)
    return program


def _generate(program: Program, context: Context) -> Executable:
    built = codegen.compile_kernels(program.kernels, context.options)
    return bind(program, built, context.options, context.consuming, context.arenas)


# A graph whose gradients nobody needs.
TRACE_FORWARD = (
    Pass(
        "trace forward",
        Form.TORCH,
        Form.PURE,
        _trace_forward,
        "decompositions apply while recording: one walk, not two",
    ),
    Pass("lay images", Form.PURE, Form.PURE, _lay_images, "while convolutions are still to be seen as such"),
    Pass("share heads", Form.PURE, Form.PURE, _share_heads, "where it is done in training"),
)

# A graph that is trained through.
TRACE_JOINT = (
    Pass(
        "trace joint",
        Form.TORCH,
        Form.JOINT,
        _trace_joint,
        "the engine runs on ghosts, so every formula is eager's own",
    ),
    Pass("lay images", Form.JOINT, Form.JOINT, _lay_images, "before the split: what is saved lies as it is read"),
    Pass("share heads", Form.JOINT, Form.JOINT, _share_heads, "before the split: what is saved is what heads share"),
    Pass(
        "split",
        Form.JOINT,
        Form.HALVES,
        _split,
        "after decomposition: small pieces can be computed again, whole ones not",
    ),
)

# Either half, or the forward alone.
SIMPLIFY = tuple(Pass(name, Form.PURE, Form.PURE, _simplifier(run), why) for name, run, why in PASSES)

LOWER = (
    Pass("fuse", Form.PURE, Form.PROGRAM, _fuse, "last view of the graph as a whole: groups, buffers, memory"),
    Pass(
        "generate", Form.PROGRAM, Form.EXECUTABLE, _generate, "all kernels of a program in one module: fixed costs once"
    ),
)

_numbers = itertools.count()


def run_passes(value: Any, passes: tuple[Pass, ...], context: Context) -> Any:
    """Send a value through passes in order, checking each form on request."""
    for step in passes:
        context.fuel.stage = f"{context.name}: {step.name}"
        with events.timed(step.name, context.name):
            value = step.run(value, context)
        if context.check_specs:
            _check(value, step)
    return value


def _check(value: Any, step: Pass) -> None:
    if isinstance(value, Traced):
        check_graph(value.graph, value.level, after=step.name)
    elif isinstance(value, Pure | Joint):
        check_graph(value.traced.graph, Level.PURE, after=step.name)
    elif isinstance(value, Halves):
        for half in (value.forward, value.backward):
            if half is not None:
                check_graph(half.graph, Level.PURE, after=step.name)
    elif isinstance(value, Program):
        if any(buffer.spec.varies for buffer in value.buffers):
            return  # it is checked for each combination of sizes it is bound to
        check_program(value, after=step.name)
        for kernel in value.kernels:
            check_kernel(kernel, after=step.name)


def _lowering(options: Options, fuel: Fuel, arenas: Arenas) -> Lower:
    def lower(half: Traced, name: str, consuming: bool, planned: bool) -> Flat:
        context = Context(options, name, fuel, consuming=consuming, planned=planned, arenas=arenas)
        executable: Executable = run_passes(half, (*SIMPLIFY, *LOWER), context)
        return executable.run

    return lower


def compile_llvm(
    traced: Traced, options: Options, looked_up: tuple[CacheEntry | None, Parts | None] | None = None
) -> Flat:
    """The whole way, for one torch-level graph, unless an earlier process has gone it.

    `looked_up`: what the cache has of it, where somebody has looked; else it is asked, for each combination of sizes.
    """
    fuel, arenas = Fuel(options.fuel), Arenas()
    lower = _lowering(options, fuel, arenas)

    def bind_to_sizes(bound: Bound, half: Traced, name: str, consuming: bool, planned: bool) -> Flat:
        made = bound.program(half, name)
        if made is None:
            return lower(bound.graph(half), name, consuming, planned)
        if options.check_specs or config.check_specs:
            _check(made[0], LOWER[0])
        return bind(*made, options, consuming, arenas).run

    def generate(half: Traced, name: str) -> tuple[Program, Built]:
        program: Program = run_passes(half, (*SIMPLIFY, LOWER[0]), Context(options, name, fuel))
        return program, codegen.compile_kernels(program.kernels, options)

    def compile_static(traced: Traced, in_symbols: InSymbols = lambda: None) -> Flat:
        if (known := expected.take(traced, options)) is not None:
            return known.joined()
        entry, found = looked_up or look_up(traced, options, arenas)
        if found is not None:
            return found.joined()
        if (bound := in_symbols()) is not None:
            parts = _bound_parts(bound, lambda: traced, options, bind_to_sizes)
        else:
            parts = _compile_static(traced, options, lower, decompositions_for(options), _why_not_generate)
        expected.keep(traced, options, parts)
        if entry is None or parts.plan is None:
            return parts.joined()
        reason = parts.replay if isinstance(parts.replay, str) else None
        entry.write(*program_of(parts.forward), parts.plan, reason)
        return with_stored_backwards(parts, entry, options, arenas).joined()

    def bind_only(bound: Bound, traced: Callable[[], Traced]) -> Flat:
        # Nothing is compiled, so there is nothing to look up, nor to keep for another process.
        return _bound_parts(bound, traced, options, bind_to_sizes).joined()

    def trace(traced: Traced, world: World) -> Tracing:
        return _trace_in_symbols(traced, world, options, decompositions_for(options), _why_not_generate, generate)

    return _compile(traced, options, compile_static, bind_only, trace)


def beside_stored(
    traced: Traced, options: Options, plan: Plan, arenas: Arenas, name: str, ambient: Ambient
) -> Parts:
    """All but the forward of a graph that the cache has: what is needed where its stored parts do not reach."""
    source = Source.of_graph(traced)

    def trace() -> Halves | None:
        context = Context(options, "", Fuel(options.fuel), decompositions_for(options))
        again = _trace_static(traced, context, _why_not_generate)
        return again if isinstance(again, Halves) else None

    backwards = Backwards(trace, plan, _lowering(options, Fuel(options.fuel), arenas), options, name, ambient)
    eager, replay = source.eager(), replaying(source, plan)
    return Parts(eager, plan, eager, replay, backwards, backwards.graph, backwards.part)


def compile_aot_eager(traced: Traced, options: Options) -> Flat:
    """Through autograd, then run by PyTorch: whole operators, so that what comes out is eager's to the last bit."""

    def lower(half: Traced, name: str, consuming: bool, planned: bool) -> Flat:
        return half.to_consuming() if consuming else half.to_module().forward

    def bind_only(bound: Bound, traced: Callable[[], Traced]) -> Flat:
        return _bound_parts(bound, traced, options, lambda bound, half, *how: lower(bound.graph(half), *how)).joined()

    def compile_static(traced: Traced, in_symbols: InSymbols = lambda: None) -> Flat:
        if (bound := in_symbols()) is not None:
            return bind_only(bound, lambda: traced)
        return _compile_static(traced, options, lower, {}).joined()

    def trace(traced: Traced, world: World) -> Tracing:
        return _trace_in_symbols(traced, world, options, {})

    return _compile(traced, options, compile_static, bind_only, trace)


def _why_not_generate(traced: Traced) -> str | None:
    """Why no kernels can be made for a pure graph: numbers that are no operands, or the CPU's code cannot reach it."""
    numbers = why_not_operands(traced)
    if numbers is not None:
        return numbers
    for node in traced.graph.nodes:
        found = spec_of(node)
        for spec in found if isinstance(found, tuple) else (found,):
            if isinstance(spec, TensorSpec) and spec.device.type != "cpu":
                return f"{node.name} is on {spec.device.type}, and kernels are made for the CPU only"
    return None


InSymbols = Callable[[], Bound | None]


def _compile(
    traced: Traced, options: Options, compile_static: Callable[..., Flat], bind: Bind, trace: Trace
) -> Flat:
    if not is_sized(traced):
        return compile_static(traced)
    checks = options.check_specs or config.check_specs
    return SizedGraph(traced, compile_static, bind, trace, checks).__call__


def _trace_in_symbols(
    traced: Traced,
    world: World,
    options: Options,
    decompositions: Decompositions,
    why_not: Callable[[Traced], str | None] = lambda traced: None,
    generate: Generate | None = None,
) -> Tracing:
    """A graph whose inputs have symbols for sizes, as far as it is the same for all of them."""
    _refuse("a memory budget is kept for the sizes at hand" if options.memory_budget is not None else None)
    number = next(_numbers)
    context = Context(options, f"graph{number}", Fuel(options.fuel), decompositions)
    found = _made_pure(traced, context, why_not)
    return Tracing(number, world, found, tuple(world.facts), generate, checks=context.check_specs)


def _bound_parts(
    bound: Bound,
    traced: Callable[[], Traced],
    options: Options,
    lower: Callable[[Bound, Traced, str, bool, bool], Flat],
) -> Parts:
    """What was compiled in symbols, for the sizes that `traced`, which is made when it is needed, has."""
    number, found, plan = bound.tracing.number, bound.tracing.found, bound.plan()

    @cache
    def source() -> Source:
        return Source.of_graph(traced())

    def eager(*inputs: Any) -> tuple[Any, ...]:
        return source().eager()(*inputs)

    if isinstance(found, Pure):
        return Parts(lower(bound, found.traced, f"forward{number}", False, True), plan, eager)
    forward = lower(bound, found.forward, f"forward{number}", False, True)
    replay = found.replay if isinstance(found.replay, str) else lambda inputs: replaying(source(), plan)(inputs)
    if found.backward is None:
        return Parts(forward, plan, eager, replay)
    sized = partial(lower, bound)
    backwards = Backwards(bound.halves, found.plan, sized, options, f"backward{number}", Ambient.now(), found)
    return Parts(forward, plan, eager, replay, backwards, parts=backwards.part)


def _compile_static(
    traced: Traced,
    options: Options,
    lower: Lower,
    decompositions: Decompositions,
    why_not: Callable[[Traced], str | None] = lambda traced: None,
) -> Parts:
    number = next(_numbers)
    context = Context(options, f"graph{number}", Fuel(options.fuel), decompositions)
    if context.check_specs:
        check_graph(traced.graph, Level.TORCH, after="capture")
    found = _trace_static(traced, context, why_not)
    if found is None:
        return Parts(_run_by_pytorch(traced))
    if isinstance(found, Pure):
        return Parts(lower(found.traced, f"forward{number}", False, True), found.plan, found.eager)
    forward = lower(found.forward, f"forward{number}", False, found.planned)
    if found.backward is None:
        return Parts(forward, found.plan, found.eager, found.replay)

    def trace() -> Halves | None:
        again = _trace_static(traced, context, why_not)
        return again if isinstance(again, Halves) else None

    backwards = Backwards(trace, found.plan, lower, options, f"backward{number}", Ambient.now(), found)
    return Parts(forward, found.plan, found.eager, found.replay, backwards, backwards.graph, backwards.part)


def _trace_static(traced: Traced, context: Context, why_not: Callable[[Traced], str | None]) -> Pure | Halves | None:
    """The pure graph, or the two of a graph that is trained through; None if PyTorch is to run the graph itself."""
    try:
        return _made_pure(traced, context, why_not)
    except CannotTrace as refused:
        if _has_numbers(traced):
            raise  # told what they are, it may still work
        events.count("eager_graphs")
        events.emit("graph", f"{context.name} is run by PyTorch: {refused.reason}")
        return None


def _made_pure(traced: Traced, context: Context, why_not: Callable[[Traced], str | None]) -> Pure | Halves:
    if not _needs_gradients(traced):
        pure: Pure = run_passes(traced, TRACE_FORWARD, context)
        _refuse(_why_not_open(pure.traced) or why_not(pure.traced))
        return pure
    halves: Halves = run_passes(traced, TRACE_JOINT, context)
    _refuse(_why_not_open(halves.forward) or why_not(halves.forward))
    if halves.backward is not None:
        _refuse(why_not(halves.backward))
    return halves


def _has_numbers(traced: Traced) -> bool:
    return any(isinstance(spec_of(node), NumberSpec) for node in placeholders(traced.graph))


def _why_not_open(traced: Traced) -> str | None:
    """Why numbers among the inputs cannot stay open: they turned out to be sizes."""
    for node in traced.graph.nodes:
        found = spec_of(node)
        for spec in found if isinstance(found, tuple) else (found,):
            if isinstance(spec, TensorSpec) and any(map(is_symbolic, (*spec.shape, *spec.stride, spec.offset))):
                return f"the size of {node.name} depends on a number"
    return None


def _refuse(reason: str | None) -> None:
    if reason is not None:
        raise CannotTrace(reason)


def _needs_gradients(traced: Traced) -> bool:
    """Whether a backward may follow: grad mode is on where the graph begins, and something in it requires gradients."""
    specs = [spec_of(node) for node in placeholders(traced.graph)]
    if not any(isinstance(spec, TensorSpec) and spec.requires_grad for spec in specs):
        return False
    if torch.is_grad_enabled():
        return True
    switched_on = any(node.target is torch._C._set_grad_enabled and node.args == (True,) for node in traced.graph.nodes)
    if switched_on:
        raise CannotTrace("gradients are switched on inside a graph that begins without them")
    return False


def _run_by_pytorch(traced: Traced) -> Flat:
    forward = traced.plainly()

    def run(*inputs: Any) -> tuple[Any, ...]:
        result = forward(*inputs)
        return tuple(result) if isinstance(result, tuple | list) else (result,)

    return run
