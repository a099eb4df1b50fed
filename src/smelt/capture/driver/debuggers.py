"""Debuggers and coverage tools that meet a compiled function: said once, as they do not see its lines run.

sys.settrace(…), or a tool of sys.monitoring      →     SM014: … breakpoints in f do not stop there …
"""

import sys
from collections.abc import Callable
from typing import Any

from smelt import _native
from smelt.base.errors import SmeltWarning, warn

_TOOLS = {"a debugger": 0, "a coverage tool": 1}  # by their numbers in sys.monitoring


class _Reported:
    done = False


def watch() -> None:
    """Say it at the first call of a compiled function that a trace function sees."""
    if not _Reported.done:
        _native.Region.on_trace(_traced)


def tell_of_monitoring(name: str) -> None:
    """Say it if a tool that watches lines by `sys.monitoring` is there when a function is compiled."""
    monitoring: Any = getattr(sys, "monitoring", None)
    if monitoring is None or _Reported.done:
        return
    for what, number in _TOOLS.items():
        tool = monitoring.get_tool(number)
        if tool is not None:
            _tell(name, f"{what} ({tool}, by sys.monitoring)")
            return


def _traced(function: Callable[..., Any]) -> None:
    if not _Reported.done:
        name = getattr(function, "__qualname__", None) or type(function).__qualname__
        _tell(name, "a debugger or coverage tool (sys.settrace)")


def _tell(name: str, what: str) -> None:
    _Reported.done = True
    text = (
        f"SM014: {what} is active, and {name} is compiled: its lines run as kernels, so breakpoints in it do not stop "
        "and coverage does not count them; only what Python runs, as at graph breaks, is seen. Hint: "
        "`with smelt.disable():` around the call runs it in Python, as does smelt.compile(…, disable=True)."
    )
    try:
        warn(text)
    except SmeltWarning as warning:  # where warnings are errors, watching a program shall not break it
        print(warning, file=sys.stderr)
