"""The pages on the code name what is there: every path and dotted name exists, every layer and room is described."""

import importlib
import re
from pathlib import Path

import pytest

from tests.structure import files
from tests.structure.imports import LAYERS, ROOMS

PAGES = (files.ROOT / "CONTRIBUTING.md", files.ROOT / "docs" / "architecture.md")
EMPTY = ("lazy", "deploy", "plugins")  # a layer, and no code yet
# Pages that name files of a program of the reader's, or of PyTorch's tests.
ELSEWHERE = ("deploy.md", "versions.md")
_QUOTED = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(r"[\w.-]+(/[\w.-]+)+/?|[\w-]+\.(py|pyi|c|h|md|toml|txt|yml)")
_ELSEWHERE = ("dist/", "build/", "Python.h")  # made by a build, or not ours


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    text = page.read_text(encoding="utf-8")
    return re.sub(r"(?ms)^```.*?^```$", "", text)


def missing_paths(text: str) -> list[str]:
    """Paths in backquotes that are neither below the repository nor below the package."""
    found = [name for name in _QUOTED.findall(text) if _PATH.fullmatch(name) and not name.startswith(_ELSEWHERE)]
    folders = (files.ROOT, files.SOURCE, *(path for path in (files.ROOT / "tests").rglob("*") if path.is_dir()))
    return [name for name in dict.fromkeys(found) if not any((folder / name).exists() for folder in folders)]


def missing_names(text: str) -> list[str]:
    """Dotted names in backquotes that begin with a unit of the package and lead nowhere."""
    dotted = [name for name in _QUOTED.findall(text) if re.fullmatch(r"\w+(\.\w+)+", name)]
    return [name for name in dict.fromkeys(dotted) if name.split(".")[0] in LAYERS and not _is_found(name)]


def _is_found(name: str) -> bool:
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(["smelt", *parts[:count]]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            found = getattr(found, part, None)
        return found is not None
    return False


def _checked() -> list[Path]:
    docs = sorted((files.ROOT / "docs").glob("*.md"))
    return [PAGES[0], *(page for page in docs if page.name not in ELSEWHERE)]


@pytest.mark.parametrize("page", _checked(), ids=lambda page: page.name)
def test_what_a_page_names_exists(page: Path) -> None:
    text = prose(page)
    assert missing_paths(text) == []
    assert missing_names(text) == []


def test_what_does_not_exist_is_found() -> None:
    assert missing_paths("`src/smelt/nowhere.py`, `ir/graph.py`, `make test`") == ["src/smelt/nowhere.py"]
    assert missing_names("`ir.graph.Traced`, `ir.graph.Nothing`, `torch.nothing`") == ["ir.graph.Nothing"]


def test_the_architecture_page_has_the_layers() -> None:
    rows = re.findall(r"^\| (\d) \| ([^|]+) \|$", prose(PAGES[1]), re.MULTILINE)
    table = {unit: int(layer) for layer, units in rows for unit in _QUOTED.findall(units)}
    assert table == LAYERS


def test_every_room_is_described() -> None:
    text = prose(PAGES[1])
    units = [unit for unit in LAYERS if unit not in (*EMPTY, "__init__")]
    assert [unit for unit in units if not re.search(rf"^\*\*.*`{unit}`.*\*\*: ", text, re.MULTILINE)] == []
    folders = [f"{unit}/{room}" for unit, rooms in ROOMS.items() for room in rooms]
    described = [folder for folder in folders if (files.SOURCE / folder).is_dir()]
    assert described
    assert [folder for folder in described if f"`{folder}`" not in text] == []
