"""Keeping Python's cyclic collector out of short bursts of allocation.

Importing and compiling make many long-lived objects and hardly any garbage, but enough of them to set off full
collections, each of which walks all of PyTorch: 0.1 s for nothing, where a compilation takes as long. Modules stay for
good, so what was made while some were loaded is told to be old at once: the collector would walk all of it as soon as
it is on again, 10 ms after a first compilation.
"""

import contextlib
import gc
import sys
import threading
from collections.abc import Iterator

_lock = threading.Lock()
_bursts = 0  # blocks in progress, over all threads
_was_enabled = False
_modules = 0  # loaded when the first block began
_OF_THE_INTERPRETER = 1000  # Python 3.12 freezes 375 objects as it starts; who freezes later freezes many thousands


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """No automatic collection inside the block. Nests, and leaves a collector that was off alone."""
    global _bursts, _was_enabled, _modules
    with _lock:
        if _bursts == 0:
            _was_enabled, _modules = gc.isenabled(), len(sys.modules)
            gc.disable()
        _bursts += 1
    try:
        yield
    finally:
        with _lock:
            _bursts -= 1
            if _bursts == 0 and _was_enabled:
                if len(sys.modules) > _modules:
                    _grow_old()
                gc.enable()


def _grow_old() -> None:
    """Count all there is among the objects that only a full collection looks at."""
    if gc.get_freeze_count() < _OF_THE_INTERPRETER:  # what the program has frozen stays frozen
        gc.freeze()
        gc.unfreeze()
