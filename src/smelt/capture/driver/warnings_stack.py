"""`warnings.warn` of a break, which names a frame some levels up: those are no real frames, so its place is found here.

warn("old", stacklevel=2) in g, called by f   →   warn_explicit("old", UserWarning, file of f, line of f, …)
"""

import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from smelt.capture.driver.tracebacks import is_own
from smelt.capture.model.state import LiveFrame

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def placed(frames: list[LiveFrame], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """The call that warns as `warnings.warn(*args, **kwargs)` in the innermost of `frames` would."""
    named = dict(zip(("message", "category", "stacklevel", "source"), args, strict=False)) | kwargs
    message, category, level = (named.pop(name, None) for name in ("message", "category", "stacklevel"))
    source = named.pop("source", None)
    kind = type(message) if isinstance(message, Warning) else category or UserWarning
    plain = isinstance(kind, type) and issubclass(kind, Warning) and isinstance(level, int) and len(args) < 5
    if named or not plain or level < 2:
        return warnings.warn, args, kwargs  # which looks no further than the innermost frame, or complains
    caller = next((place for number, place in enumerate(_places(frames), 1) if number == level), None)
    if caller is None:
        return warnings.warn, args, kwargs
    file, line, names = caller
    registry = names.setdefault("__warningregistry__", {})
    where = (file, line, names.get("__name__", "<string>"), registry)
    return warnings.warn_explicit, (message, kind, *where), {"source": source}


def _places(frames: list[LiveFrame]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """File, line and globals of the frames as Python would have them, from the innermost on."""
    for virtual in reversed(frames):
        if not is_own(virtual.info.code):
            yield virtual.info.code.co_filename, virtual.running.line, virtual.function.__globals__
    real = sys._getframe(1)
    while (outer := real.f_back) is not None:
        real = outer
        if not is_own(real.f_code):
            yield real.f_code.co_filename, real.f_lineno, real.f_globals
