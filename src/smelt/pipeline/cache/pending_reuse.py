"""Compiled graphs that will be requested once more: the first step of a training creates the optimizer's state, the
second finds it, and both are one graph.

    keep(traced, options, parts)     a graph whose capture says that it will be requested once more
    take(traced, options)            its parts, for another capture of the same graph; once

What makes two graphs the same is the text that the disk cache has for its key.
"""

from collections import OrderedDict

from smelt import _native
from smelt.base import events, locks
from smelt.base.options import Options
from smelt.ir.graph import Traced
from smelt.ir.serialize import CannotStore
from smelt.pipeline.cache.keys import key_of
from smelt.pipeline.parts import CompiledParts

_MOST = 4  # trainings that begin at the same time

_pending: OrderedDict[str, CompiledParts] = OrderedDict()
_lock = locks.lock()


def keep(traced: Traced, options: Options, parts: CompiledParts) -> None:
    if not traced.recurs or (key := _key(traced, options)) is None:
        return
    with _native.Held(_lock):
        _pending[key] = parts
        while len(_pending) > _MOST:
            _pending.popitem(last=False)


def take(traced: Traced, options: Options) -> CompiledParts | None:
    # Whoever collects events wants to see every stage, so they all run.
    if not _pending or events.collecting() or (key := _key(traced, options)) is None:
        return None
    with _native.Held(_lock):
        return _pending.pop(key, None)


def forget() -> None:
    with _native.Held(_lock):
        _pending.clear()


def _key(traced: Traced, options: Options) -> str | None:
    try:
        return key_of(traced, options)
    except CannotStore:
        return None
