"""Keeping Python's cyclic collector out of short bursts of allocation.

Importing and compiling make many long-lived objects and hardly any garbage, but enough of them to set off full
collections, each of which walks all of PyTorch: 0.1 s for nothing, where a compilation takes as long.
"""

import contextlib
import gc
import threading
from collections.abc import Iterator

_lock = threading.Lock()
_bursts = 0  # blocks in progress, over all threads
_was_enabled = False


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """No automatic collection inside the block. Nests, and leaves a collector that was off alone."""
    global _bursts, _was_enabled
    with _lock:
        if _bursts == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _bursts += 1
    try:
        yield
    finally:
        with _lock:
            _bursts -= 1
            if _bursts == 0 and _was_enabled:
                gc.enable()
