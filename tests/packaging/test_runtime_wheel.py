"""The wheel of smelt-runtime, installed into an empty environment: its page is followed as a new user would.

The wheels for AArch64 run by qemu where `SMELT_AARCH64_ROOT` names a folder with Python 3.11 and the C library of that
processor, unpacked from Debian's packages: `dpkg -x python3.11-minimal_…_arm64.deb FOLDER`, and so on.
"""

import fnmatch
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy
import pytest
import torch

import smelt
from tests.packaging.commands import ROOT, clean_environment, run

find_python = runpy.run_path(str(ROOT / "tools" / "pythons.py"))["find_python"]

PAGE = (ROOT / "packages" / "runtime" / "README.md").read_text(encoding="utf-8")
SCRIPTS: dict[str, str] = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL))
PRINTED = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
MOST_BYTES = 1_000_000

# Threads that share a model, have sessions of their own and load files: what is wrong is printed.
THREADS = """
import threading, numpy, smelt_runtime

x = numpy.linspace(-1, 1, 20, dtype="float32").reshape(5, 4)
model = smelt_runtime.load("model.smelt", threads=1)
expected, wrong = model(x), []

def check(make):
    call = make()
    for _ in range(100):
        if not numpy.array_equal(call(x), expected):
            wrong.append(make)

def load_again():
    return lambda x: smelt_runtime.load("model.smelt", threads=1)(x)

calls = [threading.Thread(target=check, args=(make,)) for make in (lambda: model, model.session, load_again) * 2]
for each in calls:
    each.start()
for each in calls:
    each.join()
print(wrong)
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(wheels: Path) -> Path:
    (made,) = wheels.glob("smelt_runtime-*.whl")
    return made


def environment_with(wheel: Path, base: str, home: Path) -> Path:
    """The Python of a new environment with the wheel, and with what pip fetches for it."""
    run([base, "-m", "venv", home])
    pip = [home / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "-qq", wheel]
    if subprocess.run(list(map(str, pip)), capture_output=True, timeout=600).returncode:
        pytest.skip("NumPy cannot be fetched here")
    return home / "bin" / "python"


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of the Python that runs the tests."""
    return environment_with(wheel, sys.executable, tmp_path_factory.mktemp("empty"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the page exports."""
    folder = tmp_path_factory.mktemp("page")
    for name, text in SCRIPTS.items():
        (folder / name).write_text(text)
    environment = clean_environment() | {"PYTHONPATH": str(ROOT / "src")}
    for name in ("export.py", "export_step.py"):
        run([sys.executable, name], cwd=folder, env=environment)
    return folder


def test_the_wheel_is_small_and_serves_every_python(wheel: Path) -> None:
    assert re.fullmatch(r"smelt_runtime-[\d.]+-py3-none-manylinux[\w.]+\.whl", wheel.name)
    assert wheel.stat().st_size < MOST_BYTES
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    assert {"smelt_runtime/__init__.py", "smelt_runtime/py.typed", "smelt_runtime/lib/libsmelt.so"} <= set(names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"smelt_runtime"}
    assert [name for name in names if name.endswith("licenses/LICENSE")]


def test_the_environment_has_numpy_and_nothing_else(python: Path) -> None:
    listed = run([python, "-m", "pip", "list", "--format=freeze"]).lower()
    assert {line.partition("==")[0] for line in listed.split()} <= {"numpy", "pip", "setuptools", "smelt-runtime"}


def test_the_page_leads_to_a_running_model(python: Path, folder: Path) -> None:
    assert list(SCRIPTS) == ["export.py", "run.py", "export_step.py", "train.py"]
    for name, printed in zip(("run.py", "train.py"), PRINTED, strict=True):
        assert run([python, name], cwd=folder, env=clean_environment()) == printed
    ((command, lines),) = re.findall(r"```console\n\$ python (.*?)\n(.*?)```", PAGE, re.DOTALL)
    shown = run([python, *command.split()], cwd=folder, env=clean_environment())
    assert fnmatch.fnmatchcase(shown, re.sub(r"(?<=code for x86-64 )…", "*", lines).replace("[", "[[]"))


@pytest.mark.parametrize("version", ["3.12", "3.13", "3.14", "3.14t"])
def test_the_same_wheel_runs_with_other_pythons(version: str, wheel: Path, folder: Path, tmp_path: Path) -> None:
    base = find_python(version)
    if base is None:
        pytest.skip(f"there is no Python {version} here")
    python = environment_with(wheel, base, tmp_path / "empty")
    for name, printed in zip(("run.py", "train.py"), PRINTED, strict=True):
        assert run([python, name], cwd=folder, env=clean_environment()) == printed
    assert run([python, "-c", THREADS], cwd=folder, env=clean_environment()) == "[]\n"


def test_smelt_reads_the_checkpoint_of_the_runtime(python: Path, folder: Path) -> None:
    run([python, "train.py"], cwd=folder, env=clean_environment())
    before, after = (smelt.load(folder / name).state_dict() for name in ("step.smelt", "checkpoint.smelt"))
    assert before.keys() == after.keys()
    assert not torch.equal(before["model.0.weight"], after["model.0.weight"])


@pytest.mark.parametrize("package", ["smelt", "smelt_runtime"])
def test_the_wheels_for_aarch64_run(package: str, cross_wheels: Path, tmp_path: Path) -> None:
    """The wheel of smelt without PyTorch: its C extension is imported, and loads a file."""
    root, qemu = os.environ.get("SMELT_AARCH64_ROOT"), shutil.which("qemu-aarch64-static")
    if root is None or qemu is None or sys.version_info[:2] != (3, 11):
        pytest.skip(
            "no Python 3.11 for AArch64 here: SMELT_AARCH64_ROOT, qemu-aarch64-static or this Python is another"
        )
    (wheel,) = cross_wheels.glob(f"{package}-*.whl")
    site = tmp_path / "site"
    chosen = ["--python-version", "3.11", "--platform", "manylinux_2_27_aarch64", "--no-deps"]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-qq", "--target", site, *chosen]
    run([*pip, "numpy", wheel])
    x = torch.randn(2, 4)
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.GELU(), torch.nn.Linear(16, 3))
    smelt.export(model, (x,), targets=("aarch64",)).save(tmp_path / "model.smelt")
    numpy.save(tmp_path / "x.npy", x.numpy())
    script = f"import numpy, {package}; print({package}.load('model.smelt')(numpy.load('x.npy')).tolist())"
    command = [qemu, "-L", root, "-E", f"PYTHONPATH={site}", f"{root}/usr/bin/python3.11", "-c", script]
    printed = run(command, cwd=tmp_path, env=clean_environment())
    torch.testing.assert_close(torch.tensor(json.loads(printed)), model(x).detach())
