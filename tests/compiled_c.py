"""C files of the tests as shared objects, made by gcc; tests that need one are left out where there is none.

    build("tests/native/host_grids.c", tmp_path)   →   a `ctypes.CDLL`'s path
"""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CSRC = ROOT / "src" / "smelt" / "csrc"


def build(source: str, folder: Path, *more: str, name: str = "") -> str:
    """The path of the shared object, called `name`, or as the source is. `more`: sources of smelt."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    made = folder / (name or Path(source).stem + ".so")
    if not made.exists():
        flags = ["-shared", "-fPIC", "-O1", "-std=gnu11", "-Wall", "-Werror", "-pthread"]
        flags += [f"-I{CSRC}", f"-I{CSRC.parent / 'include'}", f"-Wl,-soname,{made.name}"]
        sources = [str(ROOT / source), *(str(CSRC / each) for each in more)]
        subprocess.run([compiler, *flags, *sources, "-o", str(made), "-ldl"], check=True, timeout=120)
    return str(made)
