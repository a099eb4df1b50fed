"""Code in the README and in docs/, to be run as it stands there.

A page's Python blocks run in order, in one namespace that has `torch` and `smelt`. A comment `# SM003: …` behind a
statement says that it raises, or warns of, that code. A block marked `text` right behind a Python block is what it
prints, where `…` stands for anything. `<!-- run first: … -->` before a block is code that a reader needs no telling of.
"""

import ast
import contextlib
import fnmatch
import io
import linecache
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import smelt

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

_BLOCK = re.compile(
    r"(?:<!-- run first: (?P<first>.*?) -->\n+)?```python\n(?P<code>.*?)```(?:\n+```text\n(?P<text>.*?)```)?", re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """A block of Python: where it stands, what runs before it unseen, and what it prints if the page says so."""

    page: str
    line: int
    first: str
    code: str
    text: str | None


def blocks_of(page: Path) -> Iterator[Block]:
    content = page.read_text(encoding="utf-8")
    for match in _BLOCK.finditer(content):
        line = content.count("\n", 0, match.start("code")) + 1
        yield Block(page.name, line, match["first"] or "", match["code"], match["text"])


def fresh() -> dict[str, Any]:
    """The namespace a page starts with."""
    return {"torch": torch, "smelt": smelt, "__name__": "page"}


def run(block: Block, namespace: dict[str, Any]) -> None:
    """Run a block; an AssertionError says what is not as the page has it."""
    exec(block.first, namespace)
    file = f"<{block.page}, line {block.line}>"
    lines = block.code.splitlines(keepends=True)
    linecache.cache[file] = (len(block.code), None, lines, file)  # capture shows the lines of a break
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for statement in ast.parse(block.code).body:
            code = compile(ast.Module([statement], []), file, "exec")
            text = "".join(lines[statement.lineno - 1 : statement.end_lineno])
            expected = re.search(r"# (SM\d+)", text)
            _run_statement(code, namespace, expected[1] if expected else None, f"{file}: {text}")
    if block.text is not None:
        found, wanted = printed.getvalue().rstrip(), block.text.rstrip()
        pattern = re.sub(r"([\[\]?*])", r"[\1]", wanted).replace("…", "*")
        assert fnmatch.fnmatchcase(found, pattern), f"{file} prints\n{found}\nwhere the page has\n{wanted}"


def _run_statement(code: Any, namespace: dict[str, Any], expected: str | None, where: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            exec(code, namespace)
            told = ""
        except smelt.SmeltError as error:
            told = str(error)
            assert expected is not None, f"{where} raises {error}"
    told += " ".join(str(each.message) for each in caught if issubclass(each.category, smelt.SmeltWarning))
    if expected is None:
        assert not told, f"{where} warns: {told}"
    else:
        assert expected in told, f"{where} does not say {expected}: {told or 'nothing'}"
