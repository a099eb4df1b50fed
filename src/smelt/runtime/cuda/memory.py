"""Memory of GPUs when there is too little: what is kept for later calls is let go before an allocation fails.

    offer_spare(let_go)                        let_go() → whether there was anything to let go
    or_spare(lambda: torch.empty(…))           tries, lets go of what is kept, tries again; then PyTorch's own error

PyTorch's allocator gives its cached blocks back to the driver by itself before it raises; what programs keep between
calls (`runtime/program/arenas.py`) it cannot know to be free.
"""

from collections.abc import Callable
from typing import TypeVar

import torch

_Made = TypeVar("_Made")
_spare: list[Callable[[], bool]] = []


def offer_spare(let_go: Callable[[], bool]) -> None:
    """Have `let_go` called when memory is short."""
    _spare.append(let_go)


def or_spare(allocate: Callable[[], _Made]) -> _Made:
    """What `allocate` returns, if need be once everything that is spare was let go."""
    try:
        return allocate()
    except torch.OutOfMemoryError:
        freed = [let_go() for let_go in _spare]  # every one of them
        if not any(freed):
            raise
    return allocate()
