"""Every block of Python and every command in the README and in docs/ runs, raises and prints what the page says."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest
import torch

import smelt
from smelt.base.events import collect
from smelt.capture import BreakRecord
from smelt.capture.model.breaks import REASONS
from tests.docs.pages import (
    FENCE,
    LANGUAGES,
    PAGES,
    ROOT,
    Block,
    blocks_of,
    commands_of,
    fresh,
    parts_of,
    run,
    run_page,
)

BREAKS = ROOT / "docs" / "breaks.md"


def _codes_of_sections() -> list[tuple[int, str]]:
    """Each code of a break with the line of its heading."""
    content = BREAKS.read_text(encoding="utf-8")
    return [(content.count("\n", 0, found.start()) + 1, found[1]) for found in re.finditer(r"(?m)^## (B\d+):", content)]


CODES = _codes_of_sections()


PARTS = [
    pytest.param(page, section, needs, id=f"{page.name} {section}" if section else page.name)
    for page in PAGES
    for section, needs in parts_of(page)
]


@pytest.mark.parametrize(("page", "section", "needs"), PARTS)
def test_the_code_of_a_page_runs(page: Path, section: str | None, needs: frozenset[str], tmp_path: Path) -> None:
    missing = sorted(package for package in needs if importlib.util.find_spec(package) is None)
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed; make test-frameworks installs it")
    run_page(page, tmp_path, until=CODES[0][0] if page == BREAKS else None, section=section)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_nothing_on_a_page_escapes_the_tests(page: Path) -> None:
    """Each block says what it is, and each file is what some command of the page runs."""
    content = page.read_text(encoding="utf-8")
    for fence in FENCE.finditer(content):
        assert fence["language"] in LANGUAGES, f"{page.name}: a block of {fence['language'] or 'no language'}"
        if fence["language"] == "toml":
            tomllib.loads(fence["body"])
    blocks = list(blocks_of(page))
    commands = [command for block in blocks if block.language == "console" for command, _ in commands_of(block.code)]
    for block in blocks:
        assert not block.title or any(block.title in command for command in commands), f"nothing runs {block.title}"
    indented = re.findall(r"(?m)^\n {4}(?:import |from |def |@|.*smelt\.\w+\().*", FENCE.sub("", content))
    assert not indented, f"{page.name}: code that is only indented is not run: {indented}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_are_whole(page: Path) -> None:
    """Each begins with a head and a rule, and each row has as many cells as the head."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for table in re.findall(r"(?m)(?:^\|.*\n)+", text):
        rows = [re.sub(r"`[^`]*`|\\\|", "", row) for row in table.splitlines()]
        assert len(rows) > 2 and re.fullmatch(r"[|:-]+", rows[1]), f"{page.name}: {rows[0]}"
        assert {row.count("|") for row in rows} == {rows[0].count("|")}, f"{page.name}: {rows[0]}"


def _commands_named() -> list[tuple[Path, str]]:
    """Commands of make and of modules of the repository, in the text and in what is typed."""
    pages = [*PAGES, ROOT / "CHANGELOG.md"]
    pattern = r"(?:^|`|\$ )((?:make|python -m (?:benchmarks|tests)\.)[^`\n#]*)"
    texts = [(page, page.read_text(encoding="utf-8")) for page in pages]
    return [(page, command) for page, text in texts for command in re.findall(pattern, text, re.MULTILINE)]


def test_commands_that_pages_name_exist() -> None:
    """Targets of make, modules, and the arguments that modules have."""
    targets = re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"))
    missing = []
    for page, command in _commands_named():
        if make := re.match(r"make ([a-z-]+)", command):
            missing += [] if make[1] in targets else [(page.name, command)]
        elif module := re.match(r"python -m ([\w.]+)(.*)", command):
            source = ROOT / f"{module[1].replace('.', '/')}.py"
            text = source.read_text(encoding="utf-8") if source.exists() else ""
            known = text and all(argument in text for argument in re.findall(r"--[\w-]+", module[2]))
            missing += [] if known else [(page.name, command)]
    assert missing == []


def _sections() -> dict[str, list[Block]]:
    """The blocks of breaks.md by the code they are an example of."""
    sections: dict[str, list[Block]] = {code: [] for _, code in CODES}
    for block in blocks_of(BREAKS):
        found = [code for line, code in CODES if line < block.line]
        if found:
            sections[found[-1]].append(block)
    return sections


SECTIONS = _sections()


def _codes(function: object) -> tuple[list[str], object]:
    """The codes of the breaks on a first call, and what came out: a result, or the class of what was raised."""
    smelt.reset()
    compiled = smelt.compile(function, backend="eager")  # type: ignore[arg-type]
    with collect() as events:
        try:
            result: object = compiled(torch.ones(3))
        except Exception as error:
            result = type(error)
    return [event.subject.code for event in events if isinstance(event.subject, BreakRecord)], result


def _plain(function: object) -> object:
    try:
        return function(torch.ones(3))  # type: ignore[operator]
    except Exception as error:
        return type(error)


def _same(mine: object, plain: object) -> None:
    if isinstance(mine, torch.Tensor):
        torch.testing.assert_close(mine, plain)
    else:
        assert mine is plain


@pytest.mark.parametrize("code", SECTIONS)
def test_an_example_of_a_break_breaks_and_its_fixed_form_does_not(
    code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code in REASONS
    (block,) = SECTIONS[code]
    namespace = fresh()
    run(block, namespace)
    codes, result = _codes(namespace["breaks"])
    assert code in codes, f"{code} is not among {codes}"
    _same(result, _plain(namespace["breaks"]))
    codes, result = _codes(namespace["fixed"])
    assert codes == [] and isinstance(result, torch.Tensor)
    _same(result, _plain(namespace["fixed"]))


def test_the_site_has_every_page_once() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1]
    listed = re.findall(r"(\w+\.md)$", nav, re.MULTILINE)
    assert sorted(listed) == sorted(page.name for page in PAGES if page.parent == ROOT / "docs")
