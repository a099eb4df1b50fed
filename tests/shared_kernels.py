"""Machine code made once for all test runs and their processes: what LLVM makes of a text, by the text and its target.

    share(folder)     `smelt.codegen` looks into `folder` before it asks LLVM, and what LLVM makes is written there

Everything before and after is done by each test as ever: capture, fusion, writing the text, linking and loading. What
LLVM makes of a text is the same at each run, a quarter of whose time it takes: the folder is kept for later ones, in
pytest's cache. `--cache-clear` empties it, `-p no:cacheprovider` does without. What is a week old is made again, and so
is everything where the way to call LLVM has changed.
"""

import contextlib
import hashlib
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

FOLDER = "SMELT_TESTS_SHARED"  # names the folder of a run to the processes it starts
_ENGINE = "smelt.codegen.llvm.compile"
_DIGEST = hashlib.sha256().digest_size
_KEPT = 7 * 24 * 3600  # seconds
_NOT_KEPT = "smelt-tests-"


def begin(cache: "pytest.Cache | None") -> Path:
    """The folder for a run of the tests: in pytest's cache, without what is old; or a new one, which is not kept."""
    try:
        folder = cache.mkdir("kernels") if cache is not None else None
    except OSError:
        folder = None
    if folder is None:
        return Path(tempfile.mkdtemp(prefix=_NOT_KEPT))
    for file in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another run removes it too
            if file.stat().st_mtime < time.time() - _KEPT:
                file.unlink()
    return folder


def end(folder: Path) -> None:
    """Remove the folder of a run if it is not kept."""
    if folder.name.startswith(_NOT_KEPT):
        shutil.rmtree(folder, ignore_errors=True)


def share(folder: Path) -> None:
    """Have this process use `folder`, if it has come so far as to compile anything; nothing is imported for it."""
    engine = sys.modules.get(_ENGINE)
    if engine is not None and not hasattr(engine._object, "unshared"):
        engine._object = _shared(engine, folder)  # type: ignore[attr-defined]


def _shared(engine: ModuleType, folder: Path) -> Any:
    from smelt.codegen.llvm import shared_objects

    unshared = engine._object
    caller = Path(str(engine.__file__)).read_text()

    def made(text: str, target: Any) -> bytes:
        told = "\n".join((caller, shared_objects.version(), target.triple, target.cpu, target.features, text))
        file = folder / hashlib.sha256(told.encode()).hexdigest()
        code = _read(file)
        if code is None:
            code = unshared(text, target)
            _write(file, code)
        return code

    made.unshared = unshared  # type: ignore[attr-defined]
    return made


def _read(file: Path) -> bytes | None:
    """What `_write` wrote; None if there is no such file, or a machine that stopped left a part of it."""
    try:
        found = file.read_bytes()
    except FileNotFoundError:
        return None
    code = found[_DIGEST:]
    return code if hashlib.sha256(code).digest() == found[:_DIGEST] else None


def _write(file: Path, code: bytes) -> None:
    """Whole or not at all, whoever else writes the same now."""
    with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as part:
        part.write(hashlib.sha256(code).digest() + code)
    os.replace(part.name, file)
