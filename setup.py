"""Builds the C part, `smelt._native`. Everything else about the package is in pyproject.toml."""

from glob import glob

from setuptools import Extension, setup

SOURCES = sorted(glob("src/smelt/csrc/**/*.c", recursive=True))

setup(
    ext_modules=[
        Extension(
            "smelt._native",
            sources=[path for path in SOURCES if "/deploy/" not in path or path.endswith("/checksum.c")],
            depends=sorted(glob("src/smelt/csrc/**/*.h", recursive=True)),
            include_dirs=["src/smelt/csrc"],
            extra_compile_args=["-O2", "-std=c11", "-fvisibility=hidden"],
        )
    ]
)
