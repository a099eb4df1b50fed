"""The source package of libsmelt: unpacked in an empty folder, built, and used from C and C++ as its page says."""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch

from tests.packaging.pages import block, blocks
from tools.packages import libsmelt, version

LIB = Path(__file__).parents[2] / "src" / "smelt" / "lib"
PAGE = "libsmelt"
PATH = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"  # CMake may be a Python package


def shell(command: str, folder: Path, **settings: str) -> str:
    """What a command prints; it may not warn."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    settings = kept | {"PATH": PATH} | settings
    argv = ["sh", "-e", "-c", command]
    done = subprocess.run(argv, cwd=folder, env=settings, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in done.stderr, done.stderr
    return done.stdout


def needed(*tools: str) -> None:
    missing = [tool for tool in tools if shutil.which(tool, path=PATH) is None]
    if missing:
        pytest.skip(f"there is no {' and no '.join(missing)} here")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the unpacked sources, the library in `smelt`, and `model.smelt`."""
    needed("cc", "ar")
    home = tmp_path_factory.mktemp("home")
    with tarfile.open(libsmelt(home)) as archive:
        archive.extractall(home, filter="data")
    shell(block(PAGE, "sh", 'sh build.sh "$HOME'), home / f"libsmelt-{version()}", HOME=str(home))
    code = block(PAGE, "python", "smelt.export").replace('"model.smelt"', f'"{home}/model.smelt"')
    names: dict[str, object] = {}
    exec(code, names)
    model = names["model"]
    assert isinstance(model, torch.nn.Module)
    with torch.no_grad():
        expected = model(torch.arange(1.0, 9.0).reshape(2, 4)).flatten().tolist()
    (home / "expected").write_text(" ".join(map(str, expected)))
    return home


def is_right(home: Path, printed: str) -> bool:
    expected = [float(word) for word in (home / "expected").read_text().split()]
    return [float(word) for word in printed.split()] == pytest.approx(expected, rel=1e-5)


def in_new_folder(home: Path, folder: Path) -> Path:
    folder.mkdir()
    shutil.copy(home / "model.smelt", folder)
    return folder


def test_a_program_is_built_with_pkg_config(home: Path, tmp_path: Path) -> None:
    needed("pkg-config")
    folder = in_new_folder(home, tmp_path / "empty")
    (folder / "infer.c").write_text(block(PAGE, "c", "int main"))
    strict = "-std=c99 -Wall -Wextra -Wpedantic -Werror"
    command = block(PAGE, "sh", "pkg-config").replace("cc infer.c", f"cc {strict} infer.c")
    assert is_right(home, shell(command, folder, HOME=str(home)))


@pytest.mark.parametrize("target", ["smelt::smelt", "smelt::static"])
def test_a_program_is_built_with_cmake(home: Path, tmp_path: Path, target: str) -> None:
    needed("cmake", "c++")
    folder = in_new_folder(home, tmp_path / "empty")
    (folder / "infer.cpp").write_text(block(PAGE, "cpp", "int main"))
    (folder / "CMakeLists.txt").write_text(block(PAGE, "cmake", "find_package").replace("smelt::smelt", target, 1))
    strict = {"CXXFLAGS": "-Wall -Wextra -Wpedantic -Werror"}
    printed = shell(block(PAGE, "sh", "cmake -B"), folder, HOME=str(home), **strict)
    assert is_right(home, printed.splitlines()[-1])
    linked = shell("ldd build/infer", folder) if shutil.which("ldd") else ""
    assert ("libsmelt" in linked) == (bool(linked) and target == "smelt::smelt")


def test_cmake_refuses_a_later_version(home: Path, tmp_path: Path) -> None:
    needed("cmake", "c++")
    text = block(PAGE, "cmake", "find_package").replace("find_package(smelt", "find_package(smelt 99.0")
    (tmp_path / "CMakeLists.txt").write_text(text)
    (tmp_path / "infer.cpp").write_text("")
    argv = ["cmake", "-B", "build", f"-DCMAKE_PREFIX_PATH={home / 'smelt'}"]
    settings = os.environ | {"PATH": PATH}
    done = subprocess.run(argv, cwd=tmp_path, env=settings, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode and f"version: {version()}" in done.stderr


def test_one_command_builds_the_library(home: Path) -> None:
    sources = home / f"libsmelt-{version()}"
    shell(block(PAGE, "sh", "cc -O2"), sources)
    assert (sources / "libsmelt.so.1").stat().st_size < 250_000


def test_the_page_names_what_is_there(home: Path) -> None:
    assert len(blocks(PAGE, "sh")) == 5
    for name in ("infer.c", "train.c", "generate.c", "serve.c"):
        assert (home / f"libsmelt-{version()}" / "examples" / name).exists()


def test_files_for_build_systems_name_the_version_of_smelt() -> None:
    assert f"\nVersion: {version()}\n" in (LIB / "pkgconfig" / "smelt.pc").read_text()
    text = (LIB / "cmake" / "smelt" / "smelt-config-version.cmake").read_text()
    assert f"set(PACKAGE_VERSION {version()})" in text
