"""Builds the C part: `smelt._native`, and `libsmelt`, which runs artifacts without Python.

Everything else about the package is in pyproject.toml.
"""

from glob import glob
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# The executor is linked last, which keeps frame, guards and runner together: calls measured 1 to 4 % shorter so.
SOURCES = sorted(glob("src/smelt/csrc/**/*.c", recursive=True), key=lambda path: ("/executor/" in path, path))
HEADERS = sorted([*glob("src/smelt/csrc/**/*.h", recursive=True), *glob("src/smelt/include/*")])
LIBRARY = [path for path in SOURCES if "/deploy/" in path or "/executor/" in path]
MODULE = [path for path in SOURCES if "/deploy/" not in path and "/static/" not in path]  # static: tools/static_core.py
INCLUDE = ["src/smelt/csrc", "src/smelt/include"]
SONAME = "libsmelt.so.1"  # its number changes when programs that were built would break
FLAGS = ["-O2", "-std=c11", "-fvisibility=hidden"]


class BuildExt(build_ext):
    """The module, then `libsmelt.so.1`, `libsmelt.so` for linkers, and `libsmelt.a` in `smelt/lib`, without Python."""

    def run(self) -> None:
        super().run()
        in_place = self.inplace or getattr(self, "editable_mode", False)
        folder = Path("src" if in_place else self.build_lib) / "smelt" / "lib"
        if not self.force and is_new(folder / "libsmelt.so") and is_new(folder / "libsmelt.a"):
            return
        folder.mkdir(parents=True, exist_ok=True)
        compiler: Any = self.compiler
        objects = compiler.compile(
            LIBRARY,
            output_dir=f"{self.build_temp}/libsmelt",
            include_dirs=INCLUDE,
            extra_postargs=[*FLAGS, "-fPIC", "-g0", "-ffunction-sections", "-fdata-sections"],
        )
        link = ["-Wl,-s", "-Wl,--gc-sections", f"-Wl,-soname,{SONAME}", "-lm", "-lpthread", "-ldl"]
        compiler.link_shared_object(objects, str(folder / SONAME), extra_postargs=link)
        for name in ("libsmelt.so", "libsmelt.a"):  # the archive would keep what was renamed
            (folder / name).unlink(missing_ok=True)
        (folder / "libsmelt.so").symlink_to(SONAME)
        compiler.create_static_lib(objects, "smelt", output_dir=str(folder))


def is_new(made: Path) -> bool:
    """Whether nothing that it is made of is newer."""
    parts = [*LIBRARY, *HEADERS, __file__]
    return made.exists() and made.stat().st_mtime >= max(Path(path).stat().st_mtime for path in parts)


setup(
    cmdclass={"build_ext": BuildExt},
    ext_modules=[
        Extension(
            "smelt._native",
            sources=MODULE,
            depends=HEADERS,
            include_dirs=INCLUDE,
            extra_compile_args=FLAGS,
        )
    ],
)
