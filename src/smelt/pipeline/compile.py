"""Compiles one torch-level graph: sends it through the stages to kernels, or to eager operators behind autograd.

Traced ── trace, split ──► ATen graphs ── simplify, fuse, generate ──► CompiledParts ── joined ──► a callable
"""

import itertools
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch

from smelt import codegen
from smelt.autograd.joint.functional_trace import CannotTrace, Decompositions
from smelt.autograd.joint.trace_joint import Pure, TraceSource, replaying
from smelt.base import events
from smelt.base.errors import LibraryError
from smelt.base.options import Options, config
from smelt.base.rewrite_budget import RewriteBudget
from smelt.device import device_of
from smelt.ir.call_contract import JointPlan
from smelt.ir.graph import GraphLevel, Traced, check_graph, placeholders, returning_tuple
from smelt.ir.kernel import AnyKernel
from smelt.ir.nodes.ambient import Ambient
from smelt.ir.program import Program
from smelt.ir.tensorspec import NumberSpec, TensorSpec, spec_of, tensor_specs
from smelt.ops.decompositions import decompositions as decompositions_for
from smelt.pipeline.cache import pending_reuse
from smelt.pipeline.cache.entries import CacheEntry
from smelt.pipeline.cache.warm_start import look_up, with_stored_backwards
from smelt.pipeline.parts import Built, CompiledParts, bind, executable_of, launcher_for
from smelt.pipeline.passes import PassContext, check_form, run_passes, why_not_generate
from smelt.pipeline.sizes.open_graph import is_sized
from smelt.pipeline.stages import LOWER, SIMPLIFY, TRACE_FORWARD, TRACE_JOINT
from smelt.runtime.autograd.differentiable import Flat
from smelt.runtime.program.arenas import Arenas
from smelt.runtime.program.flatten import BuiltKernel
from smelt.runtime.program.launch import Executable
from smelt.symbolic.expressions import ShapeEnv
from smelt.symbolic.symnode import is_symbolic

if TYPE_CHECKING:
    from smelt.autograd.partition.partition import ForwardBackward
    from smelt.pipeline.backward.lazy_backwards import Backwards
    from smelt.pipeline.sizes.dispatch import ForAllSizes
    from smelt.pipeline.sizes.runner_sizes import Reading
    from smelt.pipeline.sizes.template import Bound, Tracing

_numbers = itertools.count()


class Compilation:
    """Carries a torch-level graph through the stages, for each combination of its sizes.

    `looked_up`: the graph's entry in the cache and the parts stored there, if the caller has looked; else each
    combination of sizes is looked up. `join`: joins parts to their caller.
    """

    def __init__(
        self,
        options: Options,
        looked_up: tuple[CacheEntry | None, CompiledParts | None] | None = None,
        join: Callable[[CompiledParts], Flat] = CompiledParts.joined,
        arenas: Arenas | None = None,
    ) -> None:
        self.options, self.looked_up, self.join = options, looked_up, join
        self.budget, self.arenas = RewriteBudget(options.max_rewrites), arenas or Arenas()
        self.check_specs = options.check_specs or config.check_specs
        self._why_eager: set[str] = set()

    def compile(self, traced: Traced) -> Flat:
        if not is_sized(traced):
            return self.compile_static(traced)
        from smelt.pipeline.sizes.dispatch import SizedGraph  # most graphs have static sizes

        return SizedGraph(traced, self).__call__

    def compile_static(self, traced: Traced, in_symbols: "Callable[[], Bound | None]" = lambda: None) -> Flat:
        if (parts := pending_reuse.take(traced, self.options)) is not None:
            return self.join(parts)
        entry, stored = self.looked_up or look_up(traced, self.options, self.arenas, beside_stored)
        if stored is not None:
            return self.join(stored)
        parts = self._parts(traced, in_symbols())
        pending_reuse.keep(traced, self.options, parts)
        if entry is not None and parts.plan is not None:
            reason = parts.replay if isinstance(parts.replay, str) else None
            entry.write(executable_of(parts.forward), parts.plan, reason)
            parts = with_stored_backwards(parts, entry, self.options, self.arenas)
        return self.join(parts)

    def bind(self, bound: "Bound", traced: Callable[[], Traced]) -> Flat:
        """Bind what was compiled in symbols. Compiles nothing, so it neither reads nor writes the cache."""
        return self.join(self._bound_parts(bound, traced, fills_tables=device_of(self.options.target) is None))

    def bind_all(self, bound: "Bound", readings: "Sequence[Reading]", eager: Flat) -> "ForAllSizes | None":
        """The same for more sizes than these, where only numbers depend on them: nothing that the caller sees does."""
        from smelt.pipeline.sizes.dispatch import ForAllSizes

        graphs, plan = bound.tracing.graphs, bound.tracing.graphs.plan
        if (
            not isinstance(graphs, Pure)
            or bound.tracing.plan_filling is not None
            or device_of(self.options.target) is not None
        ):
            return None
        name, options = f"forward{bound.tracing.number}", self.options
        bound_table = bound.run_all(graphs.traced, name, readings, _launcher, options.threads, self.arenas)
        if bound_table is None:
            return None
        table, executable = bound_table
        return ForAllSizes(table, executable.run.fits, self.join(CompiledParts(executable.run, plan, eager)))

    def trace(self, traced: Traced, shape_env: ShapeEnv) -> "Tracing":
        """Trace a graph whose inputs have symbols for sizes."""
        from smelt.pipeline.sizes.template import Tracing

        _refuse("a memory budget is kept for the sizes at hand" if self.options.memory_budget is not None else None)
        number = next(_numbers)
        graphs = self._functional(traced, f"graph{number}")
        return Tracing(number, shape_env, graphs, tuple(shape_env.guards), self.generate, checks=self.check_specs)

    def decompositions(self) -> Decompositions:
        return decompositions_for(self.options)

    def why_not(self, half: Traced) -> str | None:
        """Why a graph cannot be lowered."""
        return why_not_generate(half, self.options.target)

    def lower(self, half: Traced, name: str, consuming: bool, planned: bool) -> Flat:
        context = PassContext(self.options, name, self.budget, consuming=consuming, planned=planned, arenas=self.arenas)
        executable: Executable = run_passes(half, (*SIMPLIFY, *LOWER), context)
        return executable.run

    def lower_bound(
        self, bound: "Bound", fills_tables: bool, half: Traced, name: str, consuming: bool, planned: bool
    ) -> Flat:
        """The same for a graph in symbols, bound to sizes. `fills_tables`: without flattening, where that is possible;
        what is written to the disk cache has a program."""
        if fills_tables:
            executable = bound.run(half, name, _launcher, consuming, self.options.threads, self.arenas)
            if executable is not None:
                return executable.run  # type: ignore[no-any-return]
        program_and_kernels = bound.program(half, name)
        if program_and_kernels is None:
            return self.lower(bound.graph(half), name, consuming, planned)
        if self.check_specs:
            check_form(program_and_kernels[0], LOWER[0])
        return bind(*program_and_kernels, self.options, consuming, self.arenas).run

    def generate(self, half: Traced, name: str) -> tuple[Program, Built]:
        program: Program = run_passes(half, (*SIMPLIFY, LOWER[0]), PassContext(self.options, name, self.budget))
        return program, codegen.compile_kernels(program.kernels, self.options, self.budget, name)

    def backwards(
        self, traced: Traced, plan: JointPlan, name: str, ambient: Ambient, halves: "ForwardBackward | None" = None
    ) -> "Backwards":
        from smelt.pipeline.backward.lazy_backwards import Backwards  # many graphs have no backward

        def retrace() -> "ForwardBackward | None":
            retraced = self._functional_or_eager(traced, name)
            return None if isinstance(retraced, Pure) else retraced

        return Backwards(retrace, plan, self.lower, self.options, name, ambient, halves)

    def _parts(self, traced: Traced, bound: "Bound | None") -> CompiledParts:
        if bound is not None:
            return self._bound_parts(bound, lambda: traced)
        number = next(_numbers)
        if self.check_specs:
            check_graph(traced.graph, GraphLevel.TORCH, after="capture")
        graphs = self._functional_or_eager(traced, f"graph{number}")
        if graphs is None:
            return CompiledParts(returning_tuple(traced.plainly()))
        if isinstance(graphs, Pure):
            return CompiledParts(self.lower(graphs.traced, f"forward{number}", False, True), graphs.plan, graphs.eager)
        forward = self.lower(graphs.forward, f"forward{number}", False, graphs.planned)
        if graphs.backward is None:
            return CompiledParts(forward, graphs.plan, graphs.eager, graphs.replay)
        backwards = self.backwards(traced, graphs.plan, f"backward{number}", Ambient.now(), graphs)
        return CompiledParts(
            forward, graphs.plan, graphs.eager, graphs.replay, backwards, backwards.graph, backwards.part
        )

    def _bound_parts(self, bound: "Bound", traced: Callable[[], Traced], fills_tables: bool = False) -> CompiledParts:
        """The parts compiled in symbols, bound to sizes. `traced` makes the graph with these sizes, if needed."""
        from smelt.pipeline.backward.lazy_backwards import Backwards

        number, graphs, plan = bound.tracing.number, bound.tracing.graphs, bound.plan()

        @cache
        def source() -> TraceSource:
            return TraceSource.of_graph(traced())

        def eager(*inputs: Any) -> tuple[Any, ...]:
            return source().eager()(*inputs)

        lower = partial(self.lower_bound, bound, fills_tables)
        if isinstance(graphs, Pure):
            return CompiledParts(lower(graphs.traced, f"forward{number}", False, True), plan, eager)
        forward = lower(graphs.forward, f"forward{number}", False, True)
        replay = graphs.replay if isinstance(graphs.replay, str) else lambda inputs: replaying(source(), plan)(inputs)
        if graphs.backward is None:
            return CompiledParts(forward, plan, eager, replay)
        name = f"backward{number}"
        backwards = Backwards(bound.halves, graphs.plan, lower, self.options, name, Ambient.now(), graphs)

        def graph(arrived: int) -> Traced | None:
            in_symbols = backwards.graph(arrived)
            return None if in_symbols is None else bound.graph(in_symbols)

        return CompiledParts(forward, plan, eager, replay, backwards, graph, backwards.part, has_static_shapes=False)

    def _functional_or_eager(self, traced: Traced, name: str) -> "Pure | ForwardBackward | None":
        """The functional graph, or forward and backward; None if the graph falls back to eager."""
        try:
            return self._functional(traced, name)
        except CannotTrace as refused:
            if _has_numbers(traced):
                raise  # with their values known, it may still work
            if self.options.library == "none":
                raise LibraryError(name, {"all of it": f"falls back to eager: {refused.reason}"}) from refused
            if not self.options.fallback:
                raise
            if refused.reason not in self._why_eager:  # else it was said for other sizes
                self._why_eager.add(refused.reason)
                events.fell_back("a graph", refused.reason)
            return None

    def _functional(self, traced: Traced, name: str) -> "Pure | ForwardBackward":
        context = PassContext(self.options, name, RewriteBudget(self.options.max_rewrites), self.decompositions())
        if not _needs_gradients(traced):
            pure: Pure = run_passes(traced, TRACE_FORWARD, context)
            _refuse(_why_not_open(pure.traced) or self.why_not(pure.traced))
            return pure
        halves: ForwardBackward = run_passes(traced, TRACE_JOINT, context)
        _refuse(_why_not_open(halves.forward) or self.why_not(halves.forward))
        if halves.backward is not None:
            _refuse(self.why_not(halves.backward))
        return halves


class EagerCompilation(Compilation):
    """Through autograd, then run by eager PyTorch, operator by operator: results are bitwise equal to eager's."""

    def compile_static(self, traced: Traced, in_symbols: "Callable[[], Bound | None]" = lambda: None) -> Flat:
        return self.join(self._parts(traced, in_symbols()))

    def decompositions(self) -> Decompositions:
        return {}

    def why_not(self, half: Traced) -> str | None:
        return None

    def lower(self, half: Traced, name: str, consuming: bool, planned: bool) -> Flat:
        return half.to_consuming() if consuming else half.to_module().forward

    def lower_bound(
        self, bound: "Bound", fills_tables: bool, half: Traced, name: str, consuming: bool, planned: bool
    ) -> Flat:
        return self.lower(bound.graph(half), name, consuming, planned)


def beside_stored(
    traced: Traced, options: Options, plan: JointPlan, arenas: Arenas, name: str, ambient: Ambient
) -> CompiledParts:
    """All parts but the forward of a cached graph, for what the cache does not have: eager, replay, new backwards."""
    source = TraceSource.of_graph(traced)
    backwards = Compilation(options, arenas=arenas).backwards(traced, plan, name, ambient)
    eager, replay = source.eager(), replaying(source, plan)
    return CompiledParts(eager, plan, eager, replay, backwards, backwards.graph, backwards.part)


def _launcher(code: codegen.CompiledKernel, kernel: Callable[[], AnyKernel]) -> BuiltKernel:
    return launcher_for(code.kernel.target, code, kernel)


def _has_numbers(traced: Traced) -> bool:
    return any(isinstance(spec_of(node), NumberSpec) for node in placeholders(traced.graph))


def _why_not_open(traced: Traced) -> str | None:
    """Why numbers among the inputs cannot stay dynamic: they are sizes."""
    for node in traced.graph.nodes:
        if any(is_symbolic(x) for spec in tensor_specs(node) for x in (*spec.shape, *spec.stride, spec.offset)):
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
