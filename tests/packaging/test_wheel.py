"""A wheel: built without torch, installed into an empty environment, and used where there is no compiler."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NO_TOOLS = 3  # what tools/wheel.py ends with where setuptools or auditwheel cannot be fetched

pytestmark = pytest.mark.slow


def run(command: Sequence[object], **settings: object) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600, **settings)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return str(done.stdout)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the Python that runs the tests."""
    if not sys.platform.startswith("linux"):
        pytest.skip("wheels are built for Linux")
    if shutil.which("gcc") is None and shutil.which("cc") is None:
        pytest.skip("there is no C compiler here")
    folder = tmp_path_factory.mktemp("dist")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    build = [sys.executable, str(ROOT / "tools" / "wheel.py"), version, "--to", str(folder)]
    done = subprocess.run(build, capture_output=True, text=True, timeout=600)
    if done.returncode == NO_TOOLS:
        pytest.skip("setuptools or auditwheel cannot be fetched here")
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = folder.glob("*.whl")
    return made


def test_it_is_named_for_its_python_and_for_an_older_linux(wheel: Path) -> None:
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert re.fullmatch(rf"smelt-[\d.]+-{tag}-{tag}-manylinux[\w.]+\.whl", wheel.name)


def test_it_has_what_runs_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    assert [name for name in names if re.fullmatch(r"smelt/_native\.\S+\.so", name)]
    assert {"smelt/py.typed", "smelt/__init__.py"} <= set(names)
    assert [name for name in names if name.startswith("smelt/explain/assets/")]
    sources = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src" / "smelt").rglob("*.py")}
    assert sources - set(names) == set()
    assert [name for name in names if name.endswith((".c", ".h"))] == ["smelt/include/smelt.h"]
    assert {"smelt/include/smelt.hpp", "smelt/lib/libsmelt.so", "smelt/lib/libsmelt.a"} <= set(names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"smelt"}


def test_the_demo_runs_without_a_compiler(wheel: Path, tmp_path: Path) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("there is no torch here")
    home = tmp_path / "empty"
    run([sys.executable, "-m", "venv", home])
    python = home / "bin" / "python"
    run([python, "-m", "pip", "--disable-pip-version-check", "install", "-qq", "--no-deps", "--no-index", wheel])
    # What smelt needs (torch, llvmlite, …) is lent by the environment that runs the tests: gigabytes are not copied.
    # A path file read from there would bring this checkout along; those of a folder that is lent are not read.
    (lent,) = home.glob("lib/python*/site-packages")
    (lent / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    for folder in ("examples", "benchmarks"):
        shutil.copytree(ROOT / folder, tmp_path / "work" / folder)
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SMELT_CACHE", "CC", "CXX")}
    settings = {**kept, "PATH": str(nothing), "SMELT_CACHE_DIR": str(tmp_path / "cache")}
    script = "import smelt, shutil; print(smelt.__file__, *map(shutil.which, ('cc', 'gcc', 'g++', 'clang')))"
    said = run([python, "-c", script], cwd=tmp_path / "work", env=settings)
    assert said.startswith(str(home)) and said.split()[1:] == ["None"] * 4
    said = run([python, "-m", "examples.demo", "--steps", "12"], cwd=tmp_path / "work", env=settings)
    assert "eager and smelt agree" in said and "smelt compiled" in said
    assert "all is well" in run([home / "bin" / "smelt", "doctor"], cwd=tmp_path / "work", env=settings)
