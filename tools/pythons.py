"""Where a Python of some version is: this one, one in PATH, or one of pyenv's."""

import subprocess
import sys
from pathlib import Path

VERSIONS = ("3.11", "3.12", "3.13")


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
