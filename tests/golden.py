"""Golden texts: what a stage printed once, reviewed, and must print again.

A test hands over a name and a text; the stored file under `tests/golden/` is the answer it is held against.

    golden("fuse/softmax.txt", text_of(kernel))

`pytest --update-golden` rewrites the files instead of comparing, so that `git diff` becomes the review.
"""

import difflib
from pathlib import Path

ROOT = Path(__file__).parent / "golden"

updating = False
"""Set by conftest.py from `--update-golden`."""


def golden(name: str, text: str, root: Path = ROOT) -> None:
    """Assert that `text` is what the file `name` holds; a missing file is a failure, not a pass."""
    path = root / name
    if not path.resolve().is_relative_to(root.resolve()):
        raise ValueError(f"golden file {name!r} lies outside {root}")
    text = text.rstrip("\n") + "\n"
    if updating:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return
    if not path.exists():
        raise AssertionError(f"no golden file {name}; run pytest --update-golden and review this text:\n\n{text}")
    stored = path.read_text(encoding="utf-8")
    if stored != text:
        raise AssertionError(f"{difference(name, stored, text)}\nif this is right, run pytest --update-golden")


def difference(name: str, stored: str, text: str) -> str:
    """A unified diff from the stored text to the new one."""
    lines = difflib.unified_diff(
        stored.splitlines(), text.splitlines(), f"tests/golden/{name} (stored)", f"{name} (now)", lineterm=""
    )
    return "\n".join(lines)
