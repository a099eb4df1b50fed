"""Fusion: a pure ATen graph becomes a planned kernel program.

    build_program(Traced(graph, PURE), "forward0", options)  →  Program(kernels, library calls, buffers, arena)

values.py     reads the graph: values, views dissolved, library calls
grouping.py   decides which values share a kernel (groups.py: what may, and why not)
pull.py       writes a group's scalar code (expressions.py), order.py puts it into passes, assemble.py into a kernel
program.py    buffers, steps, operands · plan.py places buffers in the arena
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smelt.fuse.emit_program import build_program
    from smelt.fuse.greedy_fusion import why_not_fuse

__all__ = ["build_program", "why_not_fuse"]


def __getattr__(name: str) -> Any:
    """Loaded when it is asked for: a program out of the disk cache needs none of it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from smelt.fuse import emit_program, greedy_fusion

    return getattr(emit_program if name == "build_program" else greedy_fusion, name)
