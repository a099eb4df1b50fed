"""Capture: Python functions as they run become torch-level graphs, guards, and points to go on from."""

from smelt.capture.breaks import REASONS, BreakRecord
from smelt.capture.calls import DISABLED, graph_break
from smelt.capture.plan import GraphRecord
from smelt.capture.region import CompiledRegion

__all__ = ["DISABLED", "REASONS", "BreakRecord", "CompiledRegion", "GraphRecord", "graph_break"]
