"""Fusion: turns a functional ATen graph into a planned kernel program.

    build_program(Traced(graph, PURE), "forward0", options)  →  Program(kernels, library calls, buffers, arena)

fusion_passes.py   the table of its steps, and the one way in: build_program
fusion_graph.py    reads the graph: values, views dissolved, library calls
greedy_fusion.py   decides which values share a kernel (groups.py: what may, and why not)
inline_exprs.py    writes a group's scalar code, stage_split.py puts it into stages, build_kernel.py into a kernel
emit_program.py    buffers, steps, operands · memory_plan.py places buffers in the arena
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smelt.fuse.fusion_passes import build_program
    from smelt.fuse.greedy_fusion import why_not_fuse

__all__ = ["build_program", "why_not_fuse"]


def __getattr__(name: str) -> Any:
    """Import lazily: a program from the disk cache needs none of it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from smelt.fuse import fusion_passes, greedy_fusion

    return getattr(fusion_passes if name == "build_program" else greedy_fusion, name)
