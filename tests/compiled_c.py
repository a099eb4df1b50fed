"""C files of the tests as shared objects, made by gcc; tests that need one are left out where there is none.

    build("tests/native/host_grids.c", tmp_path)   →   a `ctypes.CDLL`'s path
"""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def build(source: str, folder: Path) -> str:
    """The path of the shared object."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    made = folder / (Path(source).stem + ".so")
    if not made.exists():
        flags = ["-shared", "-fPIC", "-O1", "-std=gnu11", "-Wall", "-Werror", "-pthread"]
        subprocess.run([compiler, *flags, str(ROOT / source), "-o", str(made)], check=True, timeout=120)
    return str(made)
