"""The host CPU as a target, and the functions of the running process that generated code may call."""

import ctypes
import functools
import os
import sys

import torch

from smelt.codegen.math.library import LIBRARY
from smelt.device import Level, Target, register

_OPENMP = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")


def describe_host() -> Target:
    """What LLVM knows of this machine, as a target."""
    from smelt.codegen import engine

    llvm = engine.llvm()
    triple = llvm.get_process_triple()
    features = dict(llvm.get_host_cpu_features())
    arm = triple.startswith(("aarch64", "arm64"))
    if features.get("avx512f"):
        bits, registers = 512, 32
    elif features.get("avx2") or features.get("avx"):
        bits, registers = 256, 16
    else:
        bits, registers = 128, 32 if arm else 16
    return Target(
        name="cpu",
        triple=triple,
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        vector_bits=bits,
        vector_registers=registers,
        levels=(Level.THREADS, Level.LANES),
        has_fma=arm or bool(features.get("fma")),
        fma_overwrites=arm,
        has_masks=bool(features.get("avx512f")),
        has_nan_minimum=arm,
        scratch_limit=256 * 1024,
    )


register("cpu", describe_host)


@functools.cache
def external_symbols() -> dict[str, int]:
    """Addresses of the C library's functions and of the OpenMP that PyTorch runs on, those that are there.

    libtorch_cpu is loaded already and depends on both, so a look-up through it finds the very libraries in use.
    """
    suffix = "dylib" if sys.platform == "darwin" else "so"
    library = ctypes.CDLL(os.path.join(torch.__path__[0], "lib", f"libtorch_cpu.{suffix}"))
    names = [*_OPENMP, *LIBRARY.values(), *(f"{name}f" for name in LIBRARY.values())]
    found: dict[str, int] = {}
    for name in names:
        try:
            address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        except AttributeError:
            continue
        if address:
            found[name] = address
    return found


def has_openmp() -> bool:
    return all(name in external_symbols() for name in _OPENMP)
