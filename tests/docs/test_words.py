"""Pages use plain technical English: the field's terms, no filler phrases, no history and no planning words."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT

# Words of our own that PyTorch's documentation has a word for.
TERMS = {
    r"the peer\b|\bpeer's\b": "torch.compile",
    r"row by row": "contiguous",
    r"\bturned (row|image|matri|round)": "transposed",
    r"\bby turns\b|\btakes? turns\b": "alternately, interleaved",
    r"past the cache": "non-temporal",
    r"\bheeds?\b": "depends on",
    r"(sizes|numbers) that vary": "dynamic shapes, dynamic scalars",
    r"left to PyTorch|leaves? (it|them) to PyTorch": "falls back to eager",
    r"comput(es?|ed) again": "recompute",
    r"in the world|the world is": "in the process",
    r"\b(tossed|coins)\b": "sampled, random bits",
    r"\bghosts?\b": "fake tensor",
    r"\btaken? apart\b": "decomposed",
    r"\b(kept|put) aside\b": "spilled, staged",
    r"\b(fuel|burns?)\b": "rewrite limit, opt-bisect limit",
    r"\bmend(s|ed)?\b": "fix",
    r"\bpure graphs?\b": "functional graph, ATen graph",
}
# Phrases that can be replaced by naming the thing.
FILLERS = {
    r"\bwhat (is|was|are|were)\b": "name the thing",
    r"\b(that which|those of|of which|theirs|ours)\b": "name the thing",
    r"\b[Ss]uch\b(?! as)": "name the thing, or say which",
    r"\b[Tt]here (is|are) none\b": "say what does not exist",
    r"\bas (it is|they are)\b": "unchanged, directly",
    r"\b(is|are) (said|told)\b": "prints, gets",
    r"\bat once\b": "eagerly, immediately, simultaneously",
    r"\b(lies|stands?)\b|\blie (row|in|where)\b": "is, is laid out",
    r"\bgets? along\b": "works",
    r"\bround (the|a|an|it|each|which)\b": "around",
    r"\b(is|are) promised\b": "guaranteed",
    r"\b(nobody|whoever|whichever)\b": "name the reader or the thing",
}
# Pages describe the present; CHANGELOG.md has the past.
HISTORY = {
    r"\bany ?more\b|\b(formerly|previously|used to)\b": "describe the present",
    r"\bnow\b|\bsince then\b": "describe the present",
}
PLANNING = {
    r"\b[Tt]he bar (is|of|holds)\b|\b[Mm]issed\b|is the aim\b|was aimed at|\b[Gg]oals?\b": "state the figure",
    r"\b(TODO|FIXME)\b|\bnot yet\b": "state the limitation",
}
GENERATED = {"api.md", "operators.md", "settings.md"}  # written from the code, whose words these are
CHANGELOG = ROOT / "CHANGELOG.md"
CHECKED = [page for page in (*PAGES, CHANGELOG) if page.name not in GENERATED]


def prose(text: str) -> str:
    """A page without code, headings and names of code, which have words of their own."""
    text = re.sub(r"(?ms)^```.*?^```$|<!--.*?-->", "", text)
    return re.sub(r"(?m)^#+ .*$|^ {4}\S.*$|`[^`\n]+`", "", text)


def found_in(text: str, words: dict[str, str]) -> list[tuple[str, str]]:
    """What should be said otherwise, and how."""
    text = re.sub(r"\s+", " ", prose(text))
    return [(match[0], instead) for pattern, instead in words.items() for match in re.finditer(pattern, text)]


@pytest.mark.parametrize("page", CHECKED, ids=lambda page: page.name)
def test_a_page_uses_plain_english(page: Path) -> None:
    words = TERMS | FILLERS | PLANNING | ({} if page == CHANGELOG else HISTORY)
    assert found_in(page.read_text(encoding="utf-8"), words) == [], f"{page.relative_to(ROOT)}: say instead"


@pytest.mark.parametrize(
    "sentence",
    [
        "It prints what is\nsaved.",
        "Such a graph is not compiled.",
        "Values are computed at once.",
        "The matrix is taken apart.",
        "This works now.",
        "The goal is 1.2.",
    ],
)
def test_words_to_avoid_are_found(sentence: str) -> None:
    assert found_in(sentence, TERMS | FILLERS | HISTORY | PLANNING)


@pytest.mark.parametrize(
    "sentence",
    [
        "Operations such as `print` break the graph.",
        "## What is captured",
        "The option `fuel` limits rewrites.",
        "Known graph breaks are listed.",
        "```text\nthe operator runs at once\n```",
    ],
)
def test_plain_sentences_raise_no_alarm(sentence: str) -> None:
    assert not found_in(sentence, TERMS | FILLERS | HISTORY | PLANNING)
