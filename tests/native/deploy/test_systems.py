"""libsmelt compiled by zig for the systems that docs/deploy.md lists: libraries for each, without warnings."""

from pathlib import Path

import pytest

from tests.native.deploy.building import build_library

pytestmark = pytest.mark.slow  # each builds the library once more

BEGINS = {"linux": b"\x7fELF", "macos": b"\xcf\xfa\xed\xfe", "windows": b"MZ"}
LIBRARIES = {"linux": "lib/libsmelt.so.1", "macos": "lib/libsmelt.1.dylib", "windows": "bin/smelt.dll"}


@pytest.mark.parametrize(
    "target",
    [
        "x86_64-macos",
        "aarch64-macos",
        "x86_64-windows-gnu",
        "aarch64-windows-gnu",
        "x86_64-linux-musl",
        "aarch64-linux-musl",
        "riscv64-linux-musl",
        "x86_64-linux-gnu.2.17",
        "aarch64-linux-gnu.2.17",
    ],
)
def test_it_is_compiled_for(target: str, tmp_path: Path) -> None:
    prefix = build_library(tmp_path, target)
    system = target.split("-")[1]
    assert (prefix / LIBRARIES[system]).read_bytes().startswith(BEGINS[system])
    assert (prefix / "lib" / "libsmelt.a").read_bytes().startswith(b"!<arch>\n")
    if system == "windows":
        assert (prefix / "lib" / "smelt.lib").exists()
