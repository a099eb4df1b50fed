"""Reads the source tree for the rules on files: each says what it is, none is long, the architecture page lists all.

    src/smelt/device/fusion_limits.py  →  - `device/fusion_limits.py`: when two groups may not become one kernel
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "smelt"
LONGEST = 800
BEGIN, END = "<!-- files: begin (rewritten by pytest --update-golden) -->", "<!-- files: end -->"

_COMMENT = re.compile(r"\A\s*/\*+(.*?)\*/", re.DOTALL)


def python_files() -> list[Path]:
    """Every Python file of the repository that is ours."""
    folders = [ROOT / name for name in ("src", "plugins", "tests", "benchmarks", "examples")]
    paths = [path for folder in folders for path in folder.rglob("*.py*")]
    return sorted(path for path in paths if path.suffix in (".py", ".pyi") and not _is_marker(path))


def _is_marker(path: Path) -> bool:
    """An empty `__init__.py` of a test folder has nothing to say."""
    return path.name == "__init__.py" and SOURCE not in path.parents and not path.read_text().strip()


def c_files() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*") if path.suffix in (".c", ".h"))


def opening(path: Path) -> str:
    """What a file says of itself first: the module docstring, or the comment a C file opens with."""
    text = path.read_text(encoding="utf-8")
    if path.suffix in (".c", ".h"):
        match = _COMMENT.match(text)
        return re.sub(r"^[ *]+", "", match[1], flags=re.MULTILINE).strip() if match else ""
    return (ast.get_docstring(ast.parse(text)) or "").strip()


def summary(path: Path) -> str:
    """The first sentence of the opening, on one line."""
    paragraph = " ".join(opening(path).split("\n\n")[0].split())
    sentence = re.split(r"(?<=\.)\s+(?=[A-Z`])", paragraph)[0]
    return sentence.rstrip(".:")


def file_list() -> str:
    """A line per file of the package, folder by folder; a header is told with its C file."""
    lines: list[str] = []
    folder = None
    for path in sorted((p for p in SOURCE.rglob("*") if p.suffix in (".py", ".pyi", ".c", ".h")), key=_order):
        if path.suffix == ".h" and path.with_suffix(".c").exists():
            continue
        if path.name == "__init__.py" and not opening(path):
            continue
        if path.parent != folder:
            folder = path.parent
            lines += ["", f"### `{folder.relative_to(SOURCE.parent).as_posix()}/`", ""]
        lines.append(f"- `{path.relative_to(SOURCE).as_posix()}`: {summary(path)}")
    return "\n".join(lines).strip()


def _order(path: Path) -> tuple[str, bool, str]:
    return (path.parent.as_posix(), path.name != "__init__.py", path.name)


def replaced(page: str, listing: str) -> str:
    """`page` with the part between the markers replaced."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{listing}\n\n{END}{after}"
