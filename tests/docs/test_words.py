"""Pages speak as PyTorch's documentation does: words of our own that it has a word for are not used there."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT

INSTEAD = {
    r"the peer\b|\bpeer's\b": "torch.compile",
    r"row by row": "contiguous",
    r"\blies? (row|turned|otherwise|channels)|\bwhere (it|they) lies?\b": "is laid out, in place",
    r"\bby turns\b": "alternately, interleaved",
    r"past the cache": "non-temporal",
    r"\bheeds?\b": "depends on",
    r"(sizes|numbers) that vary": "dynamic shapes, dynamic scalars",
    r"left to PyTorch|leaves? (it|them) to PyTorch": "falls back to eager",
    r"comput(es?|ed) again": "recompute",
    r"in the world|the world is": "in the process",
    r"\b(tossed|coins)\b": "sampled, random bits",
    r"\bghosts?\b": "fake tensor",
    r"\btaken? apart\b": "decomposed",
    r"\bmend(s|ed)?\b": "fix",
    r"\bround (the|a|an|it|each|which)\b": "around",
    r"\btheirs\b": "name the thing",
    r"\b(is|are) told\b": "gets",
    r"\bpure graphs?\b": "functional graph, ATen graph",
    # planning
    r"\b[Tt]he bar (is|of|holds)\b|\bMissed\b|is the aim\b|was aimed at": "state the figure",
    r"\b(is|are) promised\b": "guaranteed",
}
# Written from the code, whose words these are; and the map of the code.
ELSEWHERE = {"api.md", "architecture.md", "operators.md", "settings.md"}


@pytest.mark.parametrize("page", [p for p in PAGES if p.name not in ELSEWHERE], ids=lambda page: page.name)
def test_a_page_uses_the_words_of_the_field(page: Path) -> None:
    # What a program prints is the program's, and the names of errors are the code's.
    text = re.sub(r"(?ms)^```.*?^```$|^## SM[^\n]*$", "", page.read_text(encoding="utf-8"))
    found = [(match[0], instead) for words, instead in INSTEAD.items() for match in re.finditer(words, text)]
    assert found == [], f"{page.relative_to(ROOT)}: say instead"
