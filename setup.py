"""Builds the C part, `smelt._native`. Everything else about the package is in pyproject.toml."""

from glob import glob

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "smelt._native",
            sources=sorted(glob("src/smelt/csrc/**/*.c", recursive=True)),
            depends=sorted(glob("src/smelt/csrc/**/*.h", recursive=True)),
            include_dirs=["src/smelt/csrc"],
            extra_compile_args=["-O2", "-std=c11", "-fvisibility=hidden"],
        )
    ]
)
