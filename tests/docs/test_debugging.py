"""Whatever one may wish to see or do while debugging has a section with a command and what it prints.

The page's own test runs the commands (`test_pages.py`); this one holds that none is missing and none prints nothing.
"""

import itertools
import re

import pytest

from tests.docs.pages import FENCE, ROOT, commands_of

PAGE = (ROOT / "docs" / "debugging.md").read_text(encoding="utf-8")

# The section, the command in it, and what of its output is the answer.
WISHES: dict[str, tuple[str, str]] = {
    "Explain a program": ("smelt explain train.py:example", "Graph Break Count: 1"),
    "Write a report": ("smelt report --out report.html train.py", "written to report.html"),
    "See guards": ("SMELT_LOGS=guards python job.py", "x: Tensor float32[4, 8]"),
    "See breaks": ("SMELT_LOGS=breaks python noisy.py", "at noisy.py:6"),
    "See the captured graph": ("SMELT_LOGS=graph python job.py", "softmax: f32[4, 8]"),
    "See generated code": ("SMELT_LOGS=kernels python job.py", "program backward0"),
    "See saved values": ("SMELT_LOGS=forward python job.py", "saved for backward: 160 bytes"),
    "See every operator": ("double(torch.ones(10))", "operator: sin.default"),
    "Compare timings": ("smelt bench job.py:example --backward --seconds 0.2", "times eager's speed"),
    "Check results": ("smelt verify job.py:example", "right"),
    "Disable": ("@smelt.disable", "marked smelt.disable"),
    "Reset": ("smelt.reset()", "0"),
    "Warm up": ("model(torch.zeros(32, 100)).sum().backward()", "compiled after the warm-up: 0"),
    "Show full tracebacks": ("wrong(torch.ones(2, 3))", "cannot be multiplied"),
}


def _section(title: str) -> str:
    (found,) = re.findall(rf"(?ms)^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE)
    return str(found)


@pytest.mark.parametrize("title", WISHES)
def test_a_wish_has_a_command_and_an_answer(title: str) -> None:
    command, answer = WISHES[title]
    shown = [(fence["language"], fence["body"]) for fence in FENCE.finditer(_section(title))]
    printed = {given: text for language, body in shown if language == "console" for given, text in commands_of(body)}
    for (language, body), (after, text) in itertools.pairwise(shown):
        if (language, after) == ("python", "text"):
            printed |= dict.fromkeys((line.strip() for line in body.splitlines()), text)
    assert command in printed, f"{title}: {command} is not shown with what it prints"
    assert answer in printed[command]


def test_the_table_leads_to_every_section() -> None:
    table = PAGE.split("\n## ")[0]
    sections = re.findall(r"(?m)^## (.*)$", PAGE)
    assert sections == list(WISHES)
    for title in sections:
        assert f"](#{title.lower().replace(' ', '-')})" in table
