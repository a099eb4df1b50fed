"""Wheels of this Python, for this machine and for the other processor, each built once for all tests of packages."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.commands import ROOT

NO_TOOLS = 3  # what tools/wheel.py ends with where zig, setuptools or auditwheel cannot be fetched


def build_wheels(folder: Path, machine: str) -> Path:
    """The folder, with the wheels of smelt and smelt-runtime in it."""
    if not sys.platform.startswith("linux"):
        pytest.skip("wheels are built for Linux")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    build = [sys.executable, ROOT / "tools" / "wheel.py", version, "--machine", machine, "--to", folder]
    done = subprocess.run(list(map(str, build)), capture_output=True, text=True, timeout=1200)
    if done.returncode == NO_TOOLS:
        pytest.skip("zig, setuptools or auditwheel cannot be fetched here")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the wheels for this machine."""
    return build_wheels(tmp_path_factory.mktemp("dist"), platform.machine())


@pytest.fixture(scope="session")
def cross_wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the wheels for AArch64, built on x86-64."""
    if platform.machine() != "x86_64":
        pytest.skip("the processor is no x86-64: wheels for AArch64 are not cross-built here")
    return build_wheels(tmp_path_factory.mktemp("dist"), "aarch64")
