"""The README is short, and its quick start runs as printed."""

import re
import warnings

import smelt
from smelt.explain.explanation import Explanation
from tests.structure.files import ROOT


def test_the_quick_start_runs() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8").split("## Quick start")[1]
    code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    printed: list[object] = []
    smelt.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Through a file name that linecache does not know, as in a notebook.
        exec(compile(code, "README.md", "exec"), {"print": printed.append, "__name__": "quick_start"})
    (explanation,) = printed
    assert isinstance(explanation, Explanation)
    assert (explanation.graph_count, explanation.graph_break_count) == (1, 0)
    assert "kernels" in str(explanation)


def test_the_readme_is_short() -> None:
    """What a stranger reads; tables and details live in docs/."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 130
