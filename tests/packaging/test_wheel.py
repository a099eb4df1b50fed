"""A wheel: built without torch, installed into an empty environment, and used where there is no compiler."""

import importlib.util
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.packaging.commands import ROOT, clean_environment, run

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(wheels: Path) -> Path:
    """The wheel of the Python that runs the tests."""
    (made,) = wheels.glob("smelt-*.whl")
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
    assert {f"smelt/codegen/static/core/core{bits}.bc" for bits in (32, 64)} <= set(names)
    sources = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src" / "smelt").rglob("*.py")}
    assert sources - set(names) == set()
    assert [name for name in names if name.endswith((".c", ".h"))] == ["smelt/include/smelt.h"]
    libraries = {f"smelt/lib/libsmelt.{suffix}" for suffix in ("so", "so.1", "a")}
    assert {"smelt/include/smelt.hpp", *libraries} <= set(names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"smelt"}


def environment_with(wheel: Path, home: Path) -> Path:
    """A new environment with nothing but the wheel; its Python."""
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        pytest.skip("there is no torch here")
    run([sys.executable, "-m", "venv", home])
    install(home / "bin" / "python", wheel)
    # What smelt needs (torch, llvmlite, …) is lent by the environment that runs the tests: gigabytes are not copied.
    # A path file read from there would bring this checkout along; those of a folder that is lent are not read.
    (lent,) = home.glob("lib/python*/site-packages")
    (lent / "lent.pth").write_text(f"{Path(torch.origin).parents[1]}\n")
    return home / "bin" / "python"


def install(python: Path, wheel: Path) -> None:
    run([python, "-m", "pip", "--disable-pip-version-check", "install", "-qq", "--no-deps", "--no-index", wheel])


def test_conform_is_installed_as_a_package_of_its_own(wheel: Path, tmp_path: Path) -> None:
    python = environment_with(wheel, tmp_path / "empty")
    command = [python, "-m", "smelt", "conform", "sim", "--list"]
    settings = clean_environment()
    missing = subprocess.run(command, cwd=tmp_path, env=settings, capture_output=True, text=True, timeout=600)
    assert missing.returncode == 2 and "pip install smelt-conform" in missing.stderr
    shutil.copytree(ROOT / "plugins" / "conform", tmp_path / "sources")
    builder = ROOT / "build" / f"wheel-{VERSION}" / "bin" / "python"  # has setuptools, by tools/wheel.py
    build = [builder, "-m", "pip", "wheel", "-qq", "--no-deps", "--no-build-isolation"]
    run([*build, "-w", tmp_path, tmp_path / "sources"])
    (plugin,) = tmp_path.glob("smelt_conform-*.whl")
    install(python, plugin)
    assert "training.gpt2_compiled" in run(command, cwd=tmp_path, env=settings)
    (page,) = tmp_path.glob("empty/lib/python*/site-packages/smelt_conform/assets/conform.html")
    assert "{{levels}}" in page.read_text(encoding="utf-8")


def test_the_demo_runs_without_a_compiler(wheel: Path, tmp_path: Path) -> None:
    home = tmp_path / "empty"
    python = environment_with(wheel, home)
    for folder in ("examples", "benchmarks"):
        shutil.copytree(ROOT / folder, tmp_path / "work" / folder)
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    settings = {**clean_environment(), "PATH": str(nothing), "SMELT_CACHE_DIR": str(tmp_path / "cache")}
    script = "import smelt, shutil; print(smelt.__file__, *map(shutil.which, ('cc', 'gcc', 'g++', 'clang')))"
    said = run([python, "-c", script], cwd=tmp_path / "work", env=settings)
    assert said.startswith(str(home)) and said.split()[1:] == ["None"] * 4
    said = run([python, "-m", "examples.demo", "--steps", "12"], cwd=tmp_path / "work", env=settings)
    assert "eager and smelt agree" in said and "smelt compiled" in said
    assert "all is well" in run([home / "bin" / "smelt", "doctor"], cwd=tmp_path / "work", env=settings)
