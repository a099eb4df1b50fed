"""Capture: Python functions as they run become torch-level graphs, guards, and points to go on from."""

from smelt.capture.driver.region import CompiledRegion
from smelt.capture.guards.recompiles import RecompileRecord
from smelt.capture.model.breaks import REASONS
from smelt.capture.model.marks import DISABLED, graph_break, is_compiling, mark_dynamic, mark_entered
from smelt.capture.model.records import BreakRecord, GraphRecord

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
