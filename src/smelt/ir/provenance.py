"""Where in the program a node comes from: the torch-level node it was recorded for, and that node's line.

    y = torch.relu(x @ w)     # model.py, line 7
    relu  → Origin("relu", 'File "model.py", line 7, in forward')        and so does threshold_backward, in the backward

While a torch-level graph is run under a recorder, `running(node)` says which node is at work. What the engine records
in the backward is matched by autograd's own count of operations: a node of its graph bears the number that was current
when the forward made it. Nothing depends on origins but what people are shown.
"""

import bisect
import re
import threading
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from smelt.base.fast_dataclass import dataclass

_ORIGIN = "smelt_origin"


@dataclass(frozen=True, slots=True)
class Origin:
    """A node of the captured graph, and where in the user's program it stands."""

    node: str
    place: str

    @property
    def line(self) -> str:
        """`model.py:7`, of the innermost line; empty if none is known."""
        lines = re.findall(r'File "([^"]+)", line (\d+)', self.place)
        return f"{lines[-1][0]}:{lines[-1][1]}" if lines else ""


class _Now(threading.local):
    def __init__(self) -> None:
        self.origin: Origin | None = None
        self.firsts: list[int] = []  # autograd's count when each origin below began
        self.origins: list[Origin] = []


_now = _Now()


def running(node: fx.Node) -> None:
    """From here on, what is recorded on this thread belongs to `node`."""
    origin = Origin(node.name, node.stack_trace or "")
    first = torch._C._autograd._get_sequence_nr()
    if _now.firsts and first < _now.firsts[-1]:
        nothing_runs()
    _now.origin = origin
    _now.firsts.append(first)
    _now.origins.append(origin)


def nothing_runs() -> None:
    """The graph has been run, and its backward too."""
    _now.origin = None
    _now.firsts.clear()
    _now.origins.clear()


def this_thread() -> Mapping[str, Any]:
    """What runs on this thread, for the engine's own threads, which record what this one waits for."""
    _ = _now.firsts  # made where it is first asked for
    return vars(_now)


def current(thread: Mapping[str, Any]) -> Origin | None:
    """What is recorded now belongs to this: in a backward, to the node whose derivative is taken. It was run on that
    thread."""
    at_work = torch._C._current_autograd_node()
    if at_work is None:
        return _now.origin
    place = bisect.bisect_right(thread["firsts"], at_work._sequence_nr()) - 1
    return thread["origins"][place] if place >= 0 and at_work.name() != "torch::autograd::AccumulateGrad" else None


def origin_of(node: fx.Node) -> Origin | None:
    origin: Origin | None = node.meta.get(_ORIGIN)
    return origin


def set_origin(node: fx.Node, origin: Origin | None) -> None:
    if origin is not None:
        node.meta.setdefault(_ORIGIN, origin)
