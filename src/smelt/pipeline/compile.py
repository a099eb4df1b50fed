"""One torch-level graph through the stages, to kernels of our own or to eager operators behind autograd.

Traced ── trace, split ──► pure graphs ── simplify, fuse, generate ──► Parts ── joined ──► a callable
"""

import itertools
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch

from smelt import codegen
from smelt.autograd.joint.functional_trace import CannotTrace, Decompositions
from smelt.autograd.joint.trace_joint import Pure, TraceSource, replaying
from smelt.autograd.partition.partition import Halves
from smelt.base import events
from smelt.base.errors import LibraryError
from smelt.base.fuel import Fuel
from smelt.base.options import Options, config
from smelt.ir.call_contract import JointPlan
from smelt.ir.graph import GraphLevel, Traced, check_graph, placeholders
from smelt.ir.nodes.ambient import Ambient
from smelt.ir.program import Program
from smelt.ir.tensorspec import NumberSpec, TensorSpec, spec_of
from smelt.ops.decompositions import decompositions as decompositions_for
from smelt.pipeline.backward.lazy_backwards import Backwards, Lower
from smelt.pipeline.cache import pending_reuse
from smelt.pipeline.cache.entries import CacheEntry
from smelt.pipeline.cache.warm_start import look_up, with_stored_backwards
from smelt.pipeline.parts import Built, Parts, bind, executable_of
from smelt.pipeline.passes import PassContext, check_form, run_passes, why_not_generate
from smelt.pipeline.sizes.dispatch import Bind, SizedGraph, Trace
from smelt.pipeline.sizes.open_graph import is_sized
from smelt.pipeline.sizes.template import Bound, Generate, Tracing
from smelt.pipeline.stages import LOWER, SIMPLIFY, TRACE_FORWARD, TRACE_JOINT
from smelt.runtime.autograd.differentiable import Flat
from smelt.runtime.program.arenas import Arenas
from smelt.runtime.program.launch import Executable
from smelt.symbolic.expressions import ShapeEnv
from smelt.symbolic.symnode import is_symbolic

_numbers = itertools.count()


def _lowering(options: Options, fuel: Fuel, arenas: Arenas) -> Lower:
    def lower(half: Traced, name: str, consuming: bool, planned: bool) -> Flat:
        context = PassContext(options, name, fuel, consuming=consuming, planned=planned, arenas=arenas)
        executable: Executable = run_passes(half, (*SIMPLIFY, *LOWER), context)
        return executable.run

    return lower


def compile_llvm(
    traced: Traced,
    options: Options,
    looked_up: tuple[CacheEntry | None, Parts | None] | None = None,
    joined: Callable[[Parts], Flat] = Parts.joined,
) -> Flat:
    """The whole way, for one torch-level graph, unless an earlier process has gone it.

    `looked_up`: what the cache has of it, where somebody has looked; else it is asked, for each combination of sizes.
    `joined`: what joins parts to their caller.
    """
    fuel, arenas = Fuel(options.fuel), Arenas()
    lower = _lowering(options, fuel, arenas)
    why_not = partial(why_not_generate, wanted=options.target)

    def bind_to_sizes(bound: Bound, half: Traced, name: str, consuming: bool, planned: bool) -> Flat:
        made = bound.program(half, name)
        if made is None:
            return lower(bound.graph(half), name, consuming, planned)
        if options.check_specs or config.check_specs:
            check_form(made[0], LOWER[0])
        return bind(*made, options, consuming, arenas).run

    def generate(half: Traced, name: str) -> tuple[Program, Built]:
        program: Program = run_passes(half, (*SIMPLIFY, LOWER[0]), PassContext(options, name, fuel))
        return program, codegen.compile_kernels(program.kernels, options, fuel, name)

    def compile_static(traced: Traced, in_symbols: InSymbols = lambda: None) -> Flat:
        if (known := pending_reuse.take(traced, options)) is not None:
            return joined(known)
        entry, found = looked_up or look_up(traced, options, arenas, beside_stored)
        if found is not None:
            return joined(found)
        if (bound := in_symbols()) is not None:
            parts = _bound_parts(bound, lambda: traced, options, bind_to_sizes)
        else:
            parts = _compile_static(traced, options, lower, decompositions_for(options), why_not)
        pending_reuse.keep(traced, options, parts)
        if entry is None or parts.plan is None:
            return joined(parts)
        reason = parts.replay if isinstance(parts.replay, str) else None
        entry.write(executable_of(parts.forward), parts.plan, reason)
        return joined(with_stored_backwards(parts, entry, options, arenas))

    def bind_only(bound: Bound, traced: Callable[[], Traced]) -> Flat:
        # Nothing is compiled, so there is nothing to look up, nor to keep for another process.
        return joined(_bound_parts(bound, traced, options, bind_to_sizes))

    def trace(traced: Traced, shape_env: ShapeEnv) -> Tracing:
        return _trace_in_symbols(traced, shape_env, options, decompositions_for(options), why_not, generate)

    return _compile(traced, options, compile_static, bind_only, trace)


def beside_stored(
    traced: Traced, options: Options, plan: JointPlan, arenas: Arenas, name: str, ambient: Ambient
) -> Parts:
    """All but the forward of a graph that the cache has: what is needed where its stored parts do not reach."""
    source = TraceSource.of_graph(traced)

    def trace() -> Halves | None:
        context = PassContext(options, "", Fuel(options.fuel), decompositions_for(options))
        retraced = _trace_static(traced, context, partial(why_not_generate, wanted=options.target))
        return retraced if isinstance(retraced, Halves) else None

    backwards = Backwards(trace, plan, _lowering(options, Fuel(options.fuel), arenas), options, name, ambient)
    eager, replay = source.eager(), replaying(source, plan)
    return Parts(eager, plan, eager, replay, backwards, backwards.graph, backwards.part)


def compile_aot_eager(traced: Traced, options: Options) -> Flat:
    """Through autograd, then run by eager PyTorch, operator by operator: results are bitwise equal to eager's."""

    def lower(half: Traced, name: str, consuming: bool, planned: bool) -> Flat:
        return half.to_consuming() if consuming else half.to_module().forward

    def bind_only(bound: Bound, traced: Callable[[], Traced]) -> Flat:
        return _bound_parts(bound, traced, options, lambda bound, half, *how: lower(bound.graph(half), *how)).joined()

    def compile_static(traced: Traced, in_symbols: InSymbols = lambda: None) -> Flat:
        if (bound := in_symbols()) is not None:
            return bind_only(bound, lambda: traced)
        return _compile_static(traced, options, lower, {}).joined()

    def trace(traced: Traced, shape_env: ShapeEnv) -> Tracing:
        return _trace_in_symbols(traced, shape_env, options, {})

    return _compile(traced, options, compile_static, bind_only, trace)


InSymbols = Callable[[], Bound | None]


def _compile(traced: Traced, options: Options, compile_static: Callable[..., Flat], bind: Bind, trace: Trace) -> Flat:
    if not is_sized(traced):
        return compile_static(traced)
    checks = options.check_specs or config.check_specs
    return SizedGraph(traced, compile_static, bind, trace, checks).__call__


def _trace_in_symbols(
    traced: Traced,
    shape_env: ShapeEnv,
    options: Options,
    decompositions: Decompositions,
    why_not: Callable[[Traced], str | None] = lambda traced: None,
    generate: Generate | None = None,
) -> Tracing:
    """A graph whose inputs have symbols for sizes, as far as it is the same for all of them."""
    _refuse("a memory budget is kept for the sizes at hand" if options.memory_budget is not None else None)
    number = next(_numbers)
    context = PassContext(options, f"graph{number}", Fuel(options.fuel), decompositions)
    found = _made_pure(traced, context, why_not)
    return Tracing(number, shape_env, found, tuple(shape_env.guards), generate, checks=context.check_specs)


def _bound_parts(
    bound: Bound,
    traced: Callable[[], Traced],
    options: Options,
    lower: Callable[[Bound, Traced, str, bool, bool], Flat],
) -> Parts:
    """What was compiled in symbols, for the sizes that `traced`, which is made when it is needed, has."""
    number, found, plan = bound.tracing.number, bound.tracing.found, bound.plan()

    @cache
    def source() -> TraceSource:
        return TraceSource.of_graph(traced())

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

    def graph(arrived: int) -> Traced | None:
        in_symbols = backwards.graph(arrived)
        return None if in_symbols is None else bound.graph(in_symbols)

    return Parts(forward, plan, eager, replay, backwards, graph, backwards.part, has_static_shapes=False)


def _compile_static(
    traced: Traced,
    options: Options,
    lower: Lower,
    decompositions: Decompositions,
    why_not: Callable[[Traced], str | None] = lambda traced: None,
) -> Parts:
    number = next(_numbers)
    context = PassContext(options, f"graph{number}", Fuel(options.fuel), decompositions)
    if context.check_specs:
        check_graph(traced.graph, GraphLevel.TORCH, after="capture")
    found = _trace_static(traced, context, why_not)
    if found is None:
        return Parts(_eager_graph(traced))
    if isinstance(found, Pure):
        return Parts(lower(found.traced, f"forward{number}", False, True), found.plan, found.eager)
    forward = lower(found.forward, f"forward{number}", False, found.planned)
    if found.backward is None:
        return Parts(forward, found.plan, found.eager, found.replay)

    def trace() -> Halves | None:
        retraced = _trace_static(traced, context, why_not)
        return retraced if isinstance(retraced, Halves) else None

    backwards = Backwards(trace, found.plan, lower, options, f"backward{number}", Ambient.now(), found)
    return Parts(forward, found.plan, found.eager, found.replay, backwards, backwards.graph, backwards.part)


def _trace_static(
    traced: Traced, context: PassContext, why_not: Callable[[Traced], str | None]
) -> Pure | Halves | None:
    """The pure graph, or the two of a graph that is trained through; None if the graph falls back to eager."""
    try:
        return _made_pure(traced, context, why_not)
    except CannotTrace as refused:
        if _has_numbers(traced):
            raise  # with their values known, it may still work
        if context.options.library == "none":
            raise LibraryError(context.name, {"all of it": f"falls back to eager: {refused.reason}"}) from refused
        if not context.options.fallback:
            raise
        events.fell_back("a graph", refused.reason)
        return None


def _made_pure(traced: Traced, context: PassContext, why_not: Callable[[Traced], str | None]) -> Pure | Halves:
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


def _eager_graph(traced: Traced) -> Flat:
    forward = traced.plainly()

    def run(*inputs: Any) -> tuple[Any, ...]:
        result = forward(*inputs)
        return tuple(result) if isinstance(result, tuple | list) else (result,)

    return run
