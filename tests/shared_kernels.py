"""Machine code made once for all processes of a test run: what LLVM makes of a text, by the text and its target.

    share(folder)     `smelt.codegen` looks into `folder` before it asks LLVM, and what LLVM makes is written there

Everything before and after is done by each test as ever: capture, fusion, writing the text, linking and loading. The
folder is one run's own, so that nothing an earlier run left is what is tested.
"""

import hashlib
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = "SMELT_TESTS_SHARED"  # names the folder of a run to the processes it starts
_ENGINE = "smelt.codegen.llvm.compile"


def share(folder: Path) -> None:
    """Have this process use `folder`, if it has come so far as to compile anything; nothing is imported for it."""
    engine = sys.modules.get(_ENGINE)
    if engine is not None and not hasattr(engine._object, "unshared"):
        engine._object = _shared(engine, folder)  # type: ignore[attr-defined]


def _shared(engine: ModuleType, folder: Path) -> Any:
    unshared = engine._object

    def made(text: str, target: Any) -> bytes:
        told = "\n".join((engine.version(), target.triple, target.cpu, target.features, text))
        file = folder / hashlib.sha256(told.encode()).hexdigest()
        try:
            return file.read_bytes()
        except FileNotFoundError:
            code: bytes = unshared(text, target)
            _write(file, code)
            return code

    made.unshared = unshared  # type: ignore[attr-defined]
    return made


def _write(file: Path, code: bytes) -> None:
    """Whole or not at all, whoever else writes the same now."""
    with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as part:
        part.write(code)
    os.replace(part.name, file)
