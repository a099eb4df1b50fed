"""A graph out of the disk cache as a callable, with none of the stages loaded.

    torch-level graph ── CacheEntry.read ──► programs, plan, machine code ── bind, join ──► a callable
                      └─ nothing there ────► pipeline.stages

The stages are a third of what smelt loads. What they are good for behind a graph that was found (running it eagerly
where its code cannot, computing results again for a second derivative, a backward that no process has needed yet) loads
them when it is asked for.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from smelt.base import events
from smelt.base.data import dataclass
from smelt.base.options import Options
from smelt.ir.ambient import Ambient
from smelt.ir.graph import Traced, placeholders
from smelt.ir.joint import Plan, Replay
from smelt.ir.program import Program
from smelt.ir.tensorspec import TensorSpec, spec_of
from smelt.pipeline.cached import CacheEntry, Code, Half
from smelt.runtime.launch import Arenas, Executable, launcher
from smelt.runtime.state import Flat, GraphOfBackward, MakeBackward, MakePart
from smelt.runtime.wrap import join

if TYPE_CHECKING:
    from smelt.codegen import CompiledKernel

Built = Mapping[str, "CompiledKernel"]


@dataclass(frozen=True, slots=True)
class Parts:
    """What a graph became, before it is joined to its caller. Without a plan PyTorch runs it, as `forward`."""

    forward: Flat
    plan: Plan | None = None
    eager: Flat | None = None
    replay: Replay | str = ""
    backwards: MakeBackward | None = None
    graphs: GraphOfBackward | None = None
    parts: MakePart | None = None

    def joined(self) -> Flat:
        if self.plan is None:
            return self.forward
        backwards = self.backwards
        if backwards is not None and events.collecting():
            backwards = _one_at_once(backwards, self.plan)
        return join(
            self.forward,
            backwards,
            self.plan,
            replay=self.replay,
            eager=self.eager,
            consuming=True,
            graphs=self.graphs,
            parts=self.parts,
        )


def _one_at_once(backwards: MakeBackward, plan: Plan) -> MakeBackward:
    """For whoever collects what is compiled, and may never run a backward: the one of the losses, if there are any."""
    everything = (1 << len(plan.tangents)) - 1
    losses = sum(1 << number for number, spec in enumerate(plan.tangents) if not spec.shape)
    likely = losses or everything
    made = backwards(likely)
    if made is None and likely != everything:
        likely, made = everything, backwards(everything)
    return lambda arrived: made if arrived == likely else backwards(arrived)


def compile_llvm(traced: Traced, options: Options) -> Flat:
    """One torch-level graph, as an earlier process has left it or through the stages."""
    if options.tune:
        from smelt.pipeline.tuning import tuned

        options = tuned(traced, options, compile_llvm)
    looked_up = look_up(traced, options, Arenas()) if _is_fixed(traced) else None
    if looked_up is not None and looked_up[1] is not None:
        return looked_up[1].joined()
    from smelt.pipeline.stages import compile_llvm as compile_by_stages

    return compile_by_stages(traced, options, looked_up)


def _is_fixed(traced: Traced) -> bool:
    specs = [spec_of(node) for node in placeholders(traced.graph)]
    return all(isinstance(spec, TensorSpec) and not spec.varies for spec in specs)


def look_up(traced: Traced, options: Options, arenas: Arenas) -> "tuple[CacheEntry | None, Parts | None]":
    """A graph's place in the cache, if it has one, and what is there."""
    # Whoever collects events wants to see every stage, so it is gone through.
    entry = None if events.collecting() else CacheEntry.of(traced, options)
    return entry, None if entry is None else _load(entry, lambda: traced, options, arenas)


def recall(text: str, traced: Callable[[], Traced], options: Options) -> Flat | None:
    """What the cache has of a graph whose part of the key is known; the graph is made when something asks for it."""
    entry = CacheEntry.of_text(text, options)
    found = None if entry is None else _load(entry, traced, options, Arenas())
    return None if found is None else found.joined()


def _load(entry: CacheEntry, traced: Callable[[], Traced], options: Options, arenas: Arenas) -> Parts | None:
    """What the cache has of a graph, bound to the graph it would have come from.

    The graphs that were made of it are not stored: if a backward was never compiled, they are made again, and are the
    same.
    """
    found = entry.read(options)
    if found is None:
        return None
    plan, ambient, number = found.plan, Ambient.now(), found.forward.program.name.removeprefix("forward")
    events.count("saved_bytes", plan.saved_bytes)

    @functools.cache
    def rest() -> Any:
        from smelt.pipeline.stages import beside_stored

        return beside_stored(traced(), options, plan, arenas, f"backward{number}", ambient)

    parts = Parts(
        _bound(found.forward, options, False, arenas),
        plan,
        eager=lambda *inputs: rest().eager(*inputs),
        replay=found.why_not_again or (lambda inputs: rest().replay(inputs)),
        backwards=(lambda arrived: rest().backwards(arrived)) if plan.tangents else None,
        graphs=lambda arrived: rest().graphs(arrived),
        parts=lambda arrived, source: rest().parts(arrived, source),
    )
    return with_stored_backwards(parts, replace(entry, first=False), options, arenas)


def with_stored_backwards(parts: Parts, entry: CacheEntry, options: Options, arenas: Arenas) -> Parts:
    """The same, with backwards looked up in the cache before they are made, and put there after."""
    make = parts.backwards
    if make is None:
        return parts

    def backward(arrived: int) -> Flat | None:
        found = entry.read_backward(arrived, options)
        if found is not None:
            return _bound(found, options, True, arenas)
        made = make(arrived)
        if made is not None and "executable" in made.__dict__:  # else PyTorch runs it
            entry.write_backward(arrived, *program_of(made))
        return made

    return replace(parts, backwards=backward)


def program_of(run: Flat) -> tuple[Program, Built]:
    """What a callable that `bind` made runs."""
    executable = run.__dict__["executable"]
    assert isinstance(executable, Executable)
    return executable.program, executable.keep_alive


def bind(
    program: Program, kernels: Built | Mapping[str, Code], options: Options, consuming: bool, arenas: Arenas
) -> Executable:
    """A program and the code of its kernels as something to run."""
    launchers = {
        name: launcher(kernel.address, kernel.buffers, kernel.fixed_workspace, kernel.per_thread_workspace)
        for name, kernel in kernels.items()
    }
    return Executable(program, launchers, options.threads, kernels, consuming=consuming, arenas=arenas)


def _bound(half: Half, options: Options, consuming: bool, arenas: Arenas) -> Flat:
    events.count("kernels", len(half.program.kernels))
    run: Callable[..., Any] = bind(half.program, half.kernels, options, consuming, arenas).run
    return run
