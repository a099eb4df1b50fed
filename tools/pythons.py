"""The versions of Python and PyTorch that smelt is for, and where a Python is: this one, one in PATH, or pyenv's."""

import runpy
import subprocess
import sys
from pathlib import Path

_tested = runpy.run_path(str(Path(__file__).parents[1] / "src" / "smelt" / "base" / "version.py"))
VERSIONS = tuple(f"{major}.{minor}" for major, minor in _tested["PYTHONS"])
OLDEST, NEWEST = (f"{major}.{minor}" for major, minor in _tested["TORCHES"])


def find_python(version: str) -> str | None:
    """A Python of this version that runs, or None."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    installed = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    for python in (f"python{version}", *map(str, installed)):
        try:
            subprocess.run([python, "-c", ""], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):  # a shim of pyenv fails for what is not chosen
            continue
        return python
    return None
