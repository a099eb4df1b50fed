"""Captures that outlive the process: what a function became is kept beside its code, and tried before it is captured.

    guards, recipe, graph  ── keep ──►  file, under the function's code and what it was called with
    file + a state         ── load ──►  LoadedCapture, if every guard holds of the state; else it is captured anew

Guards are all that a capture relied on, so where they hold, another capture would give the same. They hold objects of
the process: `object_names` says how another process finds them. What a guard cannot ask for is taken care of here: code
is known by its digest, files that classes and functions come from by size and time, and by the key
(`PersistentCompiler.environment`) smelt, PyTorch, Python, processor, options and settings. A capture that looked at
something else (`GuardTree.why_not_persist`: addresses, whether there is a GPU), and one whose parts cannot be
serialized, is not kept, and `SMELT_LOGS=cache` says why. What is kept is the plain case: a function from its start to
its end, one graph, static shapes.
"""

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch

from smelt.base import events
from smelt.base.errors import is_fault
from smelt.base.fast_dataclass import dataclass
from smelt.base.options import config
from smelt.capture.guards.dynamic_sizes import History
from smelt.capture.guards.tree import GuardTree
from smelt.capture.model.marks import DYNAMIC
from smelt.capture.model.state import LiveFrame
from smelt.capture.persist.deserialize import CaptureLoader, LoadedCapture, verify_roundtrip
from smelt.capture.persist.object_names import NotPersistable, digest, forget_classes
from smelt.capture.persist.serialize import SerializedCapture, record_of, refuse
from smelt.capture.replay.plan import EntryState, Plan, Return
from smelt.capture.replay.rollback import WritePolicy
from smelt.ir.graph import PersistentCompiler, Traced
from smelt.ir.json_values import decode
from smelt.runtime.cache import CacheFile, CacheStore, open_store

_WATCHED = ("graph", "guards", "joint", "forward", "backward", "fusion", "kernels", "loops", "llvm", "asm")
Keep = Callable[[Any, Plan, EntryState, "tuple[Traced, WritePolicy] | None", GuardTree], None]
"""What a capture is handed to: its guards, its plan, the way back, its graph and the care for it, and what else it
relied on."""


@dataclass(frozen=True, slots=True)
class CaptureStore:
    """Where the captures of one compiled function are kept. `options` is how they are made."""

    compiler: PersistentCompiler
    options: tuple[Any, ...]

    def load(self, frame: LiveFrame, history: History) -> LoadedCapture | None:
        """What an earlier process made of this very state, if it did."""
        place = self._place(frame)
        if place is None or events.collecting() or config.check_specs or any(map(events.wanted, _WATCHED)):
            return None  # whoever watches wants to see every stage
        store, key = place
        stored = store.get(key)
        if stored is None:
            return None
        try:
            with events.timed("load"):
                record = stored.values["capture"]
                loaded = CaptureLoader(record, frame).load(self.compiler)
                if loaded is not None:
                    history.restore(decode(record["history"], refuse))
        except NotPersistable as reason:
            events.emit("cache", f"a capture of {frame.info.code.co_qualname} is not used: {reason}")
            return None
        except Exception as reason:  # whatever it is, capturing is the answer
            events.emit("cache", f"{store.path(key).name} is not used: {type(reason).__name__}: {reason}")
            store.drop(key)
            return None
        finally:
            forget_classes()
        return loaded

    def saver(self, frame: LiveFrame, history: History) -> Keep | None:
        """What keeps a capture of a state for later processes; None if none is kept."""
        place = self._place(frame)
        if place is None:
            return None

        def keep(
            roots: Any,
            plan: Plan,
            entry_state: EntryState,
            compiled: tuple[Traced, WritePolicy] | None,
            tree: GuardTree,
        ) -> None:
            assert isinstance(plan, Return) and compiled is not None
            traced, write_policy = compiled
            self._keep(place, frame, SerializedCapture(roots, plan, entry_state, history, write_policy, tree), traced)

        return keep

    def _keep(
        self, place: tuple[CacheStore, str], frame: LiveFrame, capture: SerializedCapture, traced: Traced
    ) -> None:
        name = frame.info.code.co_qualname
        try:
            with events.timed("keep"):
                form = self.compiler.serialize(traced)
                if form is None:
                    raise NotPersistable("its graph cannot be serialized")
                record = record_of(capture, form)
                verify_roundtrip(capture, json.loads(json.dumps(record)), frame)
        except NotPersistable as reason:
            events.emit("cache", f"a capture of {name} is not kept: {reason}")
            return
        except Exception as reason:  # it is a good capture of this process all the same
            if config.check_specs and is_fault(reason):
                raise
            events.emit("cache", f"a capture of {name} is not kept: {type(reason).__name__}: {reason}")
            return
        finally:
            forget_classes()
        store, key = place
        store.put(key, CacheFile({"capture": record}))

    def _place(self, frame: LiveFrame) -> tuple[CacheStore, str] | None:
        store = open_store()
        environment = None if store is None else self.compiler.environment()
        if store is None or environment is None:
            return None
        function = frame.function
        settings = [f"{name}={getattr(config, name)!r}" for name in ("compiled_autograd", "cache_size_limit")]
        lines = ["capture", environment, " ".join(settings), repr(self.options)]
        code = function.__code__
        place = code.co_filename if os.path.isfile(code.co_filename) else ""  # a cell of a notebook has one of its own
        lines += [f"{function.__module__}.{function.__qualname__} {digest(code)} {place}"]
        try:
            return store, "\n".join([*lines, *map(_summary, frame.slots)])
        except (NotPersistable, ValueError, RecursionError):  # a number of too many digits, say
            return None


def _summary(real: Any, depth: int = 2) -> str:
    """What a slot holds at first sight, running no code of the program's: enough to tell most calls apart, guards do
    the rest."""
    kind = type(real)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        if real.__dict__.get(DYNAMIC):
            raise NotPersistable("it is marked dynamic")
        return f"{kind.__name__} {real.dtype} {tuple(real.shape)} {real.requires_grad}"
    if issubclass(kind, torch.nn.Module):
        held = [f"{tuple(each.shape)} {each.dtype}" for each in _parameters(real)]
        return f"{kind.__qualname__} {real.__dict__.get('training')!r:.5} {' '.join(held)}"
    if kind in (bool, int, float, str, type(None)):
        return repr(real)
    if kind in (tuple, list) and depth:
        return f"{kind.__name__}({', '.join(_summary(item, depth - 1) for item in real)})"
    if kind is dict and depth:
        items = [f"{key!r}: {_summary(item, depth - 1)}" for key, item in real.items() if type(key) is str]
        return f"dict({', '.join(items)})"
    return kind.__qualname__


def _parameters(module: Any) -> Iterator[torch.Tensor]:
    """What it and its parts hold."""
    pending, seen = [module], set()
    while pending:
        held = pending.pop().__dict__
        if id(held) in seen:
            continue
        seen.add(id(held))
        own, parts = (held.get(name) for name in ("_parameters", "_modules"))
        yield from (each for each in (own.values() if type(own) is dict else ()) if type(each) is torch.nn.Parameter)
        below = parts.values() if type(parts) is dict else ()
        pending += [each for each in below if issubclass(type(each), torch.nn.Module)]
