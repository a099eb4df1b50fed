"""C programs of these tests, built by gcc against libsmelt or with its sources, and the artifacts they run.

Tests that need a compiler are left out where there is none, and those that need its sanitizers where those are not.
"""

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from smelt.ir.artifact_file.write import save
from tests.native.deploy.c_library import INCLUDE, LIBRARY, build_flags
from tests.native.deploy.models import MODELS

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
CSRC = ROOT / "src" / "smelt" / "csrc"
WARNINGS = ["-Wall", "-Wextra", "-Werror"]


def compiler(name: str = "gcc") -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"there is no {name} here")
    return found


def compiled(source: Path, to: Path, *flags: str, static: bool = False) -> Path:
    """A program against the library as it was built with the package."""
    if not LIBRARY.exists():
        pytest.skip("libsmelt was not built with the package")
    cplusplus = source.suffix == ".cpp"
    standard = "-std=c++17" if cplusplus else "-std=c11"
    command = [compiler("g++" if cplusplus else "gcc"), standard, "-O1", "-g", *WARNINGS, *flags, str(source)]
    run([*command, "-o", str(to), *build_flags(static=static)])
    return to


def zig() -> list[str]:
    """zig, whose `zig cc` compiles for other systems: in PATH, or as the package `ziglang`."""
    found = shutil.which("zig")
    if found is None and importlib.util.find_spec("ziglang") is None:
        pytest.skip("there is no zig here")
    return [found] if found is not None else [sys.executable, "-m", "ziglang"]


def build_library(prefix: Path, target: str | None = None) -> Path:
    """The library, installed into a folder by the script of its package; for another system by zig."""
    settings = dict(os.environ)
    if target is not None:
        settings |= {"CC": shlex.join([*zig(), "cc", "-target", target]), "AR": shlex.join([*zig(), "ar"])}
    else:
        settings["CC"] = compiler("cc")
    script = ROOT / "packages" / "libsmelt" / "build.sh"
    done = subprocess.run(
        ["sh", script, prefix], env=settings, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr, done.stderr
    return prefix


def sources() -> list[str]:
    """Of the library."""
    return sorted(str(path) for folder in ("deploy", "executor") for path in (CSRC / folder).rglob("*.c"))


def sanitized(source: Path, to: Path, sanitizers: str, *flags: str) -> Path:
    """A program together with the library's sources, built with sanitizers."""
    checksum = to.with_suffix(".o")  # by itself and fast: most of the time would go there
    (slow,) = (each for each in sources() if each.endswith("checksum.c"))
    gcc = compiler()
    folders = [f"-I{CSRC}", f"-I{INCLUDE}"]
    run([gcc, "-std=c11", "-O2", *folders, "-c", slow, "-o", str(checksum)])
    checks = [f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
    others = [each for each in sources() if each != slow]
    command = [gcc, "-std=c11", "-g", "-O2", *WARNINGS, *checks, *flags, *folders, str(source), *others, str(checksum)]
    command += ["-o", str(to), "-lm", "-lpthread", "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode and ("libasan" in done.stderr or "libtsan" in done.stderr or "libubsan" in done.stderr):
        pytest.skip("gcc has no sanitizers here")
    assert done.returncode == 0, done.stderr
    return to


def mutator(folder: Path) -> Path:
    """The program that opens and runs mutated files."""
    hooks = ["-DSMELT_TEST_LAUNCH=test_launch", "-DSMELT_TEST_COPY=test_copy"]
    return sanitized(HERE / "mutate.c", folder / "mutate", "address,undefined", *hooks)


def write_models(folder: Path) -> dict[str, Path]:
    """The artifacts of `models`, by name."""
    made = {name: folder / f"{name}.smelt" for name in MODELS}
    for name, path in made.items():
        save(MODELS[name]().artifact(), path)
    return made


def run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
