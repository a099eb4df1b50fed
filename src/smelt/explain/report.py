"""The report: one HTML file that shows what the compiler did, for people.

    events of a run  →  report_data  →  assets/report.html with styles, scripts, libraries and data in it

The file opens from disk and asks nothing of a network. Graphs are laid out by dagre and drawn by cytoscape, curves by
uPlot; all three are in `assets/`, under their own licences (MIT), which their files begin with or `LICENSES.txt` holds.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from importlib.resources import files

from smelt.base.events import Event, collect, emit
from smelt.explain.report_code import Codes
from smelt.explain.report_data import report_data
from smelt.runtime.program.profile import profiling

_PLACE = re.compile(r"\{\{(\w+)\}\}")  # of the template; what is put there may hold the same and is left alone
_PARTS = {
    "styles": ("uPlot.min.css", "report.css"),
    "dagre": ("dagre.min.js",),
    "cytoscape": ("cytoscape.min.js",),
    "uplot": ("uPlot.iife.min.js",),
    "script": ("report.js", "report_graphs.js", "report_figures.js"),
}


def page(events: Sequence[Event], title: str) -> str:
    """The whole file as text."""
    text = _asset("report.html")
    codes = Codes()
    data = json.dumps(report_data(events, title, codes), separators=(",", ":")).replace("<", "\\u003c")
    parts = {name: "\n".join(map(_asset, names)) for name, names in _PARTS.items()}
    parts |= {"data": data, "codes": codes.packed(), "title": _escaped(f"smelt: {title}")}
    return _PLACE.sub(lambda match: parts[match[1]], text)


def write(path: str | os.PathLike[str], events: Sequence[Event], title: str) -> None:
    """Write the report of a run."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(page(events, title))


@contextlib.contextmanager
def record(path: str | os.PathLike[str], title: str = "", *, profile: bool = False) -> Iterator[None]:
    """Report on everything this thread compiles inside the block; written when it ends, by an exception too.

    With `profile`, what is compiled in the block is timed step by step whenever it is called there.
    """
    with collect() as events, profiling() if profile else contextlib.nullcontext(list) as times:
        try:
            yield
        finally:
            for taken in times():
                emit("timing", f"{taken.program}: {sum(taken.nanoseconds) / 1e6:.3f} ms in {taken.calls} calls", taken)
            write(path, events, title or os.path.basename(path))


def _asset(name: str) -> str:
    return files("smelt.explain").joinpath("assets", name).read_text(encoding="utf-8")


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
