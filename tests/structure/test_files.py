"""Files: each opens with what it is, none is too long, and the pages that list things list all of them."""

import re
from pathlib import Path

from smelt.base.errors import CODES
from smelt.base.events import CHANNELS
from smelt.base.options import ENVIRONMENT, MODES, Config, Options, describe
from tests import golden
from tests.structure import files

DOCS = files.ROOT / "docs"


def name(path: Path) -> str:
    return path.relative_to(files.ROOT).as_posix()


def test_every_file_says_what_it_is() -> None:
    silent = [name(path) for path in (*files.python_files(), *files.c_files()) if not files.opening(path)]
    assert silent == []


def test_no_file_is_long() -> None:
    lengths = {name(path): len(path.read_text().splitlines()) for path in (*files.python_files(), *files.c_files())}
    assert {path: length for path, length in lengths.items() if length > files.LONGEST} == {}


def test_the_architecture_page_is_a_map() -> None:
    assert len((DOCS / "architecture.md").read_text(encoding="utf-8").splitlines()) <= 350


def test_a_file_opens_with_its_docstring_or_first_comment(tmp_path: Path) -> None:
    python, c = tmp_path / "part.py", tmp_path / "part.c"
    python.write_text('"""Does this.\n\nMore."""\n')
    c.write_text("/* Finds frames.\n *\n * More.\n */\n#include <Python.h>\n")
    assert [files.opening(path).splitlines()[0] for path in (python, c)] == ["Does this.", "Finds frames."]


def test_every_error_code_is_explained() -> None:
    sections = re.split(r"^## ", (DOCS / "errors.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    explained = {section.split(":")[0].split()[0]: section for section in sections if section.startswith("SM")}
    assert sorted(explained) == sorted(CODES)
    for code, section in explained.items():
        assert section.splitlines()[0] == f"{code}: {CODES[code]}"
        assert len(section) > 200, f"{code} deserves more words"


def settings_page() -> str:
    """docs/settings.md, whole: what can be set is written down once, in the code."""
    lines = ["# Settings", "", "Written from the code by `pytest --update-golden`; edit the fields' own words instead."]
    for title, kind in (
        ("Options of one compilation: `smelt.compile(model, options={…})`", Options),
        ("Settings of the process: `smelt.config`", Config),
    ):
        lines += ["", f"## {title}", "", "| name | default | what it does |", "|---|---|---|"]
        lines += [f"| `{field}` | `{default!r}` | {doc} |" for field, default, doc in describe(kind)]
    lines += ["", "## Environment variables", "", "| name | what it does |", "|---|---|"]
    lines += [f"| `{name}` | {doc} |" for name, doc in ENVIRONMENT.items()]
    lines += ["", "## Modes: `smelt.compile(model, mode=…)`", "", "| mode | what it means |", "|---|---|"]
    lines += [f"| `{mode!r}` | {doc} |" for mode, doc in MODES.items()]
    lines += ["", "## Logs: `SMELT_LOGS=graph,kernels`, or `all`", ""]
    lines += ["| channel | what is printed, to stderr |", "|---|---|"]
    lines += [f"| `{channel}` | {doc} |" for channel, doc in CHANNELS.items()]
    return "\n".join(lines)


def test_every_channel_and_setting_is_documented() -> None:
    golden.golden("settings.md", settings_page(), root=DOCS)


def test_links_between_pages_lead_somewhere() -> None:
    pages = [*DOCS.glob("*.md"), *files.ROOT.glob("*.md")]
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))]
    local = [(page, link) for page, link in links if "://" not in link]
    assert local
    assert [f"{page.name}: {link}" for page, link in local if not (page.parent / link).exists()] == []


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as the site makes them."""
    text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text(encoding="utf-8"))
    bare = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in re.findall(r"(?m)^#+ (.*)$", text))
    return {re.sub(r"[-\s]+", "-", heading) for heading in bare}


def test_links_to_headings_lead_somewhere() -> None:
    pages = [*DOCS.glob("*.md"), *files.ROOT.glob("*.md")]
    links = [
        (page, *link)
        for page in pages
        for link in re.findall(r"\]\(([\w./]*)#([\w-]+)\)", page.read_text(encoding="utf-8"))
        if not link[0].endswith(".svg")
    ]
    assert links
    assert [
        f"{page.name}: {target}#{anchor}"
        for page, target, anchor in links
        if anchor not in anchors_of(page.parent / target if target else page)
    ] == []
