"""libsmelt for Windows: the tests of the C runtime, with its DLL and its import library, under Wine.

The artifacts are those of this machine. Their code follows one calling convention on every system.
"""

import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.native.deploy import test_runtime
from tests.native.deploy.building import HERE, build_library, run, zig
from tests.native.deploy.conftest import Said

# Windows has neither fork nor such pipes; the input of the last test is longer than a command line of Windows can be.
LEFT_OUT = {
    "test_after_a_fork_the_child_goes_on_alone",
    "test_pipes_are_neither_read_nor_replaced",
    "test_the_callers_own_threads_are_used",
}

# Each of the others runs again, with the fixture `drive` of this file.
TESTS = {name: test for name, test in vars(test_runtime).items() if name.startswith("test_")}
globals().update({name: test for name, test in TESTS.items() if name not in LEFT_OUT})

pytestmark = pytest.mark.slow  # Wine takes half a second to start a program

TARGET = "x86_64-windows-gnu"
WINE_FOLDERS = "/usr/lib/wine:/usr/lib/x86_64-linux-gnu/wine"  # where Debian has wine64


def wine() -> str:
    if platform.machine() != "x86_64":
        pytest.skip("Wine runs code of this machine, which is not x86-64")
    places = f"{os.environ.get('PATH', '')}:{WINE_FOLDERS}"
    found = next(filter(None, (shutil.which(name, path=places) for name in ("wine", "wine64"))), None)
    if found is None:
        pytest.skip("there is no Wine here")
    return found


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Said]:
    """As the fixture of conftest.py, of the driver for Windows."""
    command = wine()
    folder = tmp_path_factory.mktemp("windows")
    prefix = build_library(folder / "prefix", TARGET)
    program = folder / "driver.exe"
    flags = [f"-I{prefix / 'include'}", str(prefix / "lib" / "smelt.lib")]
    run([*zig(), "cc", "-target", TARGET, "-std=c11", "-O1", str(HERE / "driver.c"), "-o", str(program), *flags])
    shutil.copy(prefix / "bin" / "smelt.dll", folder)
    quiet = {"WINEDEBUG": "-all", "WINEDLLOVERRIDES": "mscoree,mshtml="}
    settings = {**os.environ, **quiet, "WINEPREFIX": str(folder / "wine")}
    subprocess.run([command, "cmd", "/c", "ver"], env=settings, capture_output=True, timeout=300, check=False)

    def drive(path: Path, *commands: str) -> Said:
        line = [command, program, path, *commands]
        done = subprocess.run(line, capture_output=True, text=True, timeout=120, env=settings)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.endswith("left 0\n"), "what was allocated is not freed"
        return Said(done.stdout.splitlines())

    return drive
