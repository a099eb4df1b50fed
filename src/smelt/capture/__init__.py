"""Capture: Python functions as they run become torch-level graphs, guards, and points to go on from."""

from smelt.capture.breaks import REASONS
from smelt.capture.marks import DISABLED, graph_break, is_compiling, mark_dynamic, mark_entered
from smelt.capture.recompiles import RecompileRecord
from smelt.capture.records import BreakRecord, GraphRecord
from smelt.capture.region import CompiledRegion

__all__ = [
    "DISABLED",
    "REASONS",
    "BreakRecord",
    "CompiledRegion",
    "GraphRecord",
    "RecompileRecord",
    "graph_break",
    "is_compiling",
    "mark_dynamic",
    "mark_entered",
]
