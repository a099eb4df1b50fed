"""Code in the README and in docs/, to be run as it stands there.

    ```python                 run in the page's one namespace, which has `torch` and `smelt`
    ```text                   right behind Python: what it prints
    ```python title="a.py"    a file, for the commands of the page
    ```console                `$ SMELT_LOGS=guards python a.py` or `$ smelt explain a.py:example`, and what it prints
    ```sh, ```toml, ```js     what is typed or written elsewhere; only looked at
    ```c                      a program, which tests/native/deploy/test_library.py compiles; with a title, a part of one

In what is printed `…` stands for anything. A comment `# SM003: …` behind a statement says that it raises, or warns of,
that code. `<!-- run first: … -->` before a block is code that a reader need not see. `<!-- needs: accelerate -->`
names packages that it imports: a page with such blocks is run section by section, each after what stands before the
first heading. Commands run inside this process, each as if it were a new one. `pytest --update-golden` puts what is
printed now into the page, unless there is a `…` in it.
"""

import ast
import contextlib
import fnmatch
import io
import itertools
import linecache
import os
import re
import runpy
import shlex
import sys
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import smelt
from smelt.base.events import set_printed
from smelt.cli import main as smelt_command
from smelt.pipeline import backends
from smelt.pipeline import compile as compiling
from tests import golden

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LANGUAGES = frozenset({"python", "console", "text", "sh", "toml", "c", "js"})

FENCE = re.compile(
    r"(?:<!-- needs: (?P<needs>[\w, ]+) -->\n+)?"
    r"(?:<!-- run first: (?P<first>(?:(?!-->).)*?) -->\n+)?^```(?P<language>\w*)(?P<info>[^\n]*)\n(?P<body>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
_HOW = "run pytest --update-golden tests/docs (and edit by hand what has a … in it)"
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_TITLE = re.compile(r'title="([^"]+)"')


@dataclass(frozen=True)
class Block:
    """A fenced block: where it stands, what runs before it unseen, and what it prints if the page says so."""

    page: str
    line: int
    language: str
    title: str  # the file it is, if it is one
    section: str  # the heading it stands under, "" before the first
    needs: tuple[str, ...]  # packages that may not be installed
    first: str
    code: str
    text: str | None
    place: tuple[int, int]  # where in the page stands what it prints


def blocks_of(page: Path) -> Iterator[Block]:
    """The blocks that are run, in order."""
    content = page.read_text(encoding="utf-8")
    fences = list(FENCE.finditer(content))
    for fence, after in itertools.zip_longest(fences, fences[1:]):
        if fence["language"] not in ("python", "console"):
            continue
        title = _TITLE.search(fence["info"])
        prints = after is not None and after["language"] == "text" and not content[fence.end() : after.start()].strip()
        where = fence.span("body") if fence["language"] == "console" else after.span("body") if prints else (0, 0)
        line = content.count("\n", 0, fence.start("body")) + 1
        text = content[slice(*where)] if where[1] else None
        name = title[1] if title else ""
        section = (_HEADING.findall(content, 0, fence.start()) or [""])[-1]
        needs = tuple(fence["needs"].split(", ")) if fence["needs"] else ()
        first, body = fence["first"] or "", fence["body"]
        yield Block(page.name, line, fence["language"], name, section, needs, first, body, text, where)


def parts_of(page: Path) -> list[tuple[str | None, frozenset[str]]]:
    """The sections that a page is run by, and the packages each needs; (None, …) for all at once."""
    needs: dict[str, frozenset[str]] = {}
    for block in blocks_of(page):
        needs[block.section] = needs.get(block.section, frozenset()) | set(block.needs)
    if not any(needs.values()):
        return [(None, frozenset())]
    return [(section, packages) for section, packages in needs.items() if section]


def fresh() -> dict[str, Any]:
    """The namespace a page starts with."""
    return {"torch": torch, "smelt": smelt, "__name__": "page"}


def run_page(page: Path, folder: Path, until: int | None = None, section: str | None = None) -> None:
    """Run the blocks of a page, up to a line of it or of one section, among the files it speaks of."""
    namespace = fresh()
    moved = 0  # how much longer the page is than when it was read
    with contextlib.chdir(folder), mock.patch.dict(backends._registered):
        for block in blocks_of(page):
            if until is not None and block.line > until:
                break
            if section is not None and block.section not in ("", section):
                continue
            now = run(block, namespace)
            if now is not None and now != block.text:
                start, end = (place + moved for place in block.place)
                content = page.read_text(encoding="utf-8")
                page.write_text(content[:start] + now + content[end:], encoding="utf-8")
                moved += len(now) - (end - start)


def run(block: Block, namespace: dict[str, Any]) -> str | None:
    """Run a block and give back the text the page should have; an AssertionError says what is not as it has it."""
    smelt.reset()
    where = f"<{block.page}, line {block.line}>"
    if block.title:
        Path(block.title).write_text(block.code, encoding="utf-8")
        return block.text
    if block.language == "console":
        return "".join(_command(command, wanted, where) for command, wanted in commands_of(block.code))
    exec(block.first, namespace)
    with mock.patch.object(compiling, "_numbers", itertools.count()):  # programs are named as in a new process
        printed = _run_python(block.code, namespace, where)
    return None if block.text is None else _held(printed, block.text, where)


def commands_of(body: str) -> Iterator[tuple[str, str]]:
    """Each command of a console with what the page says it prints."""
    for part in re.split(r"(?m)^\$ ", body)[1:]:
        command, _, wanted = part.partition("\n")
        yield command, wanted


def _held(printed: str, wanted: str, where: str) -> str:
    """What the page should have in the place of `wanted`."""
    found = printed.rstrip() + "\n" if printed.strip() else ""
    pattern = re.sub(r"([\[\]?*])", r"[\1]", wanted.rstrip()).replace("…", "*")
    if fnmatch.fnmatchcase(found.rstrip(), pattern):
        return wanted
    if golden.updating and "…" not in wanted:
        return found
    raise AssertionError(f"{where} prints\n{found}\nwhere the page has\n{wanted}\nif this is right, {_HOW}")


def _run_python(text: str, namespace: dict[str, Any], file: str) -> str:
    lines = text.splitlines(keepends=True)
    linecache.cache[file] = (len(text), None, lines, file)  # capture shows the lines of a break
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for statement in ast.parse(text).body:
            code = compile(ast.Module([statement], []), file, "exec")
            told = "".join(lines[statement.lineno - 1 : statement.end_lineno])
            expected = re.search(r"# (SM\d+)", told)
            _run_statement(code, namespace, expected[1] if expected else None, f"{file}: {told}")
    return printed.getvalue()


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


def _command(command: str, wanted: str, where: str) -> str:
    """Run a command of a console; the command again, with what the page should have behind it."""
    words = shlex.split(command, comments=True)
    settings = dict(word.split("=", 1) for word in itertools.takewhile(lambda word: "=" in word, words))
    program, *arguments = words[len(settings) :]
    settings.setdefault("SMELT_CACHE", "1" if "SMELT_CACHE_DIR" in settings else "0")
    smelt.reset()
    linecache.clearcache()
    torch.manual_seed(0)
    printed = io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, settings))
        stack.enter_context(mock.patch.object(sys, "argv", arguments))
        stack.enter_context(mock.patch.object(sys, "path", list(sys.path)))
        stack.enter_context(mock.patch.object(compiling, "_numbers", itertools.count()))
        stack.enter_context(contextlib.redirect_stdout(printed))
        stack.enter_context(contextlib.redirect_stderr(printed))
        stack.callback(set_printed, "")
        set_printed(settings.get("SMELT_LOGS", ""))
        _run_program(program, arguments, where)
    return f"$ {command}\n" + _held(printed.getvalue(), wanted, f"{where}: {command}")


def _run_program(program: str, arguments: list[str], where: str) -> None:
    if program == "smelt":
        smelt_command(arguments)
        return
    assert program == "python" and len(arguments) == 1, f"{where}: {program} is not known here"
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    except Exception as error:  # as Python ends a program
        print("".join(traceback.format_exception_only(error)), end="", file=sys.stderr)
