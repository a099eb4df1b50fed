"""C and C++ programs against the runtime, built as its users build them, and run in processes without Python."""

import shutil
import subprocess
from pathlib import Path

import pytest

from smelt.deploy.runtime import LIBRARY

ROOT = Path(__file__).parents[2]
INCLUDE = LIBRARY.parents[1] / "include"


def built(source: str, folder: Path) -> Path:
    """The program of a source file, linked with the static library."""
    cpp = source.endswith(".cpp")
    compiler = shutil.which("g++" if cpp else "gcc") or shutil.which("c++" if cpp else "cc")
    if compiler is None:
        pytest.skip("no C compiler")
    made = folder / Path(source).stem
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-std=c++17" if cpp else "-std=c11", f"-I{INCLUDE}"]
    libraries = [str(LIBRARY.with_suffix(".a")), "-lm", "-lpthread", "-ldl"]
    subprocess.run([compiler, *flags, str(ROOT / source), *libraries, "-o", str(made)], check=True, timeout=120)
    return made


def run(program: Path, *arguments: object) -> str:
    """What a program prints; with nothing in its environment."""
    made = subprocess.run(
        [str(program), *map(str, arguments)], check=False, capture_output=True, text=True, timeout=120, env={}
    )
    assert made.returncode == 0, made.stderr
    return made.stdout
