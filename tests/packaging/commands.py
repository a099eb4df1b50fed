"""Commands of tests of packages: they run outside of this checkout, in environments that a test makes."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(command: Sequence[object], cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """What a command prints; it has to succeed."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600, cwd=cwd, env=env)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


def clean_environment() -> dict[str, str]:
    """The variables of this process without those that would lead to this checkout."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SMELT_CACHE", "CC", "CXX")}
