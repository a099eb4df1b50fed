"""A graph out of the disk cache as a callable, with none of the stages loaded.

    torch-level graph ── CacheEntry.read ──► programs, plan, machine code ── bind, join ──► a callable
                      └─ nothing there ────► None: the caller sends the graph through the stages

The stages are a third of what smelt loads. What still needs them for a graph that was found (falling back to eager,
recomputing results for double backward, a backward that was never compiled) is made by `make_rest`, which callers pass
in and which loads the stages when it is called.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from smelt.base import events
from smelt.base.options import Options
from smelt.ir.call_contract import JointPlan
from smelt.ir.graph import Traced
from smelt.ir.nodes.ambient import Ambient
from smelt.pipeline.cache.entries import CacheEntry
from smelt.pipeline.parts import CompiledParts, executable_of
from smelt.runtime.autograd.differentiable import Flat
from smelt.runtime.program.arenas import Arenas

# Makes all but the forward of a graph that the cache has: of graph, options, plan, arenas, a name, the ambient state.
MakeRest = Callable[[Traced, Options, JointPlan, Arenas, str, Ambient], CompiledParts]


def look_up(
    traced: Traced, options: Options, arenas: Arenas, make_rest: MakeRest
) -> tuple[CacheEntry | None, CompiledParts | None]:
    """A graph's place in the cache, if it has one, and what is there."""
    # Whoever collects events wants to see every stage, so they all run.
    entry = None if events.collecting() else CacheEntry.of(traced, options)
    return entry, None if entry is None else _load(entry, lambda: traced, options, arenas, make_rest)


def load_stored(text: str, traced: Callable[[], Traced], options: Options, make_rest: MakeRest) -> Flat | None:
    """What the cache has of a graph whose part of the key is known; the graph is made when something asks for it."""
    entry = CacheEntry.of_text(text, options)
    parts = None if entry is None else _load(entry, traced, options, Arenas(), make_rest)
    return None if parts is None else parts.joined()


def _load(
    entry: CacheEntry, traced: Callable[[], Traced], options: Options, arenas: Arenas, make_rest: MakeRest
) -> CompiledParts | None:
    """What the cache has of a graph, bound to the graph it would have come from.

    The graphs that were traced from it are not stored: if a backward was never compiled, they are traced anew, and are
    the same.
    """
    stored = entry.read(options, arenas)
    if stored is None:
        return None
    plan, ambient, number = stored.plan, Ambient.now(), stored.forward.name.removeprefix("forward")
    events.count("saved_bytes", plan.saved_bytes)

    @functools.cache
    def rest() -> Any:
        return make_rest(traced(), options, plan, arenas, f"backward{number}", ambient)

    parts = CompiledParts(
        stored.forward.run,
        plan,
        eager=lambda *inputs: rest().eager(*inputs),
        replay=stored.why_not_replay or (lambda inputs: rest().replay(inputs)),
        backwards=(lambda arrived: rest().backwards(arrived)) if plan.tangents else None,
        graphs=lambda arrived: rest().graphs(arrived),
        parts=lambda arrived, source: rest().parts(arrived, source),
    )
    return with_stored_backwards(parts, replace(entry, first=False), options, arenas)


def with_stored_backwards(parts: CompiledParts, entry: CacheEntry, options: Options, arenas: Arenas) -> CompiledParts:
    """The same, with backwards looked up in the cache before they are made, and put there after."""
    make = parts.backwards
    if make is None:
        return parts

    def backward(arrived: int) -> Flat | None:
        stored = entry.read_backward(arrived, options, arenas)
        if stored is not None:
            return stored.run
        compiled = make(arrived)
        if compiled is not None and "executable" in compiled.__dict__:  # else PyTorch runs it
            entry.write_backward(arrived, executable_of(compiled))
        return compiled

    return replace(parts, backwards=backward)
