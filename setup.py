"""Builds the C part, `smelt._native`. Everything else about the package is in pyproject.toml."""

from glob import glob

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "smelt._native",
            sources=sorted(glob("src/smelt/_native/*.c")),
            depends=sorted(glob("src/smelt/_native/*.h")),
            extra_compile_args=["-O2", "-std=c11", "-fvisibility=hidden"],
        )
    ]
)
