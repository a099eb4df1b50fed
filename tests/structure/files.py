"""Reads the source tree for the rules on files: each says what it is, and none is long."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "smelt"
LONGEST = 800
THIRD_PARTY = SOURCE / "csrc" / "executor" / "third_party"  # as its authors wrote it

_COMMENT = re.compile(r"\A\s*/\*+(.*?)\*/", re.DOTALL)


def python_files() -> list[Path]:
    """Every Python file of the repository that is ours."""
    folders = [ROOT / name for name in ("src", "plugins", "packages", "tests", "benchmarks", "examples")]
    paths = [path for folder in folders for path in folder.rglob("*.py*")]
    return sorted(path for path in paths if path.suffix in (".py", ".pyi") and not _is_marker(path))


def _is_marker(path: Path) -> bool:
    """An empty `__init__.py` of a test folder has nothing to say."""
    return path.name == "__init__.py" and SOURCE not in path.parents and not path.read_text().strip()


def c_files() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*") if path.suffix in (".c", ".h") and THIRD_PARTY not in path.parents)


def opening(path: Path) -> str:
    """What a file says of itself first: the module docstring, or the comment a C file opens with."""
    text = path.read_text(encoding="utf-8")
    if path.suffix in (".c", ".h"):
        match = _COMMENT.match(text)
        return re.sub(r"^[ *]+", "", match[1], flags=re.MULTILINE).strip() if match else ""
    return (ast.get_docstring(ast.parse(text)) or "").strip()
