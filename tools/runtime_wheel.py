"""Builds the wheel of smelt-runtime out of a wheel of smelt: `python tools/runtime_wheel.py smelt-….whl [--to dist]`

    packages/runtime   the face, the package page, pyproject.toml
    src/smelt          the modules that the face imports, and those that they import; `smelt.` becomes `smelt_runtime.`
    smelt-….whl        smelt/lib/libsmelt.so, built for the wheel's system, and its platform tag
      →  dist/smelt_runtime-0.1.0-py3-none-manylinux_2_27_x86_64.whl

The binding is written once, in smelt. The library has no Python in it, so one wheel serves all versions of Python.
"""

import argparse
import ast
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
FACE = ROOT / "packages" / "runtime"
SOURCE = ROOT / "src" / "smelt"
LIBRARY = "lib/libsmelt.so"


def imported_modules(file: Path) -> set[str]:
    """The modules of smelt that a file imports, below `smelt.`; those imported inside functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name.removeprefix("smelt.") for name in names if name.startswith("smelt.")}


def module_file(name: str) -> Path | None:
    """The file of `deploy.loaded`; None for a name inside a module."""
    path = SOURCE.joinpath(*name.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.exists()), None)


def needed_files(files: Iterable[Path]) -> list[Path]:
    """Every file of smelt that these import, directly or not, and the packages that contain them."""
    needed: set[Path] = set()
    waiting = list(files)
    while waiting:
        for name in imported_modules(waiting.pop()):
            parts = name.split(".")
            paths = (module_file(".".join(parts[:count])) for count in range(1, len(parts) + 1))
            added = {path for path in paths if path is not None} - needed
            needed |= added
            waiting += added
    return sorted(needed)


def renamed(text: str) -> str:
    """A module of smelt as a module of smelt_runtime: only import statements differ."""
    return re.sub(r"(?m)^(\s*(?:from|import) )smelt\.", r"\1smelt_runtime.", text)


def write_sources(library: bytes, to: Path) -> None:
    """The folder that the wheel is built from; `library`: libsmelt for its system."""
    shutil.copytree(FACE, to, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"))
    shutil.copy(ROOT / "LICENSE", to)
    package = to / "smelt_runtime"
    face = sorted(package.glob("*.py"))
    for file in needed_files(face):
        target = package / file.relative_to(SOURCE)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    for file in package.rglob("*.py"):
        file.write_text(renamed(file.read_text(encoding="utf-8")), encoding="utf-8")
    (package / LIBRARY).parent.mkdir()
    (package / LIBRARY).write_bytes(library)


def build_runtime(wheel: Path, to: Path) -> Path:
    """Build the wheel into `to`. The Python that runs this needs setuptools and wheel."""
    platform = wheel.stem.split("-")[-1]
    with zipfile.ZipFile(wheel) as opened:
        library = opened.read(f"smelt/{LIBRARY}")
    with tempfile.TemporaryDirectory(prefix="smelt-runtime-") as folder:
        sources, raw = Path(folder) / "sources", Path(folder) / "raw"
        write_sources(library, sources)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-qq", "--no-deps"]
        subprocess.run([*pip, "--no-build-isolation", "-w", str(raw), str(sources)], check=True)
        tags = [sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", platform]
        subprocess.run([*tags, *map(str, raw.glob("*.whl"))], check=True, capture_output=True)
        (built,) = raw.glob("*.whl")
        to.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(built, to))


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/runtime_wheel.py", description="smelt-runtime out of a wheel of smelt")
    parser.add_argument("wheel", type=Path, help="a wheel of smelt, for the same system")
    parser.add_argument("--to", type=Path, default=ROOT / "dist", help="the folder of the wheel (dist)")
    args = parser.parse_args()
    print(f"smelt: built {build_runtime(args.wheel, args.to)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
