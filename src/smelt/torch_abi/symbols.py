"""Functions of the running process by name: those libtorch exports, the C library's, OpenMP's, and our own.

find_symbol("aoti_torch_get_data_ptr") → its address, or None
"""

import ctypes
import functools
import os
import sys

import torch

from smelt import _native

# What generated code calls to share its points out between threads (csrc/executor/parallel.c).
PARALLEL_FOR = "smelt_parallel_for"
# What the warps of a GPU kernel call on the host to wait for each other (csrc/gpu/host_grid.c).
SIMT_BARRIER = "smelt_simt_barrier"
OPENMP = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")


@functools.cache
def _libraries() -> tuple[ctypes.CDLL, ...]:
    """libtorch_cpu is loaded already and depends on the C library and the OpenMP in use, so a look-up through it finds
    those very libraries; the process itself has the compiler's helpers."""
    return (ctypes.CDLL(_path("torch_cpu")), ctypes.CDLL(None))


@functools.cache
def find_symbol(name: str) -> int | None:
    """The address of a function of the C library, of OpenMP or of our own; None if there is none."""
    if name == PARALLEL_FOR:
        return _native.parallel_for_address(*(find_symbol(each) or 0 for each in OPENMP))
    if name == SIMT_BARRIER:
        return _native.simt_barrier_address()
    for library in _libraries():
        try:
            address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        except AttributeError:
            continue
        if address:
            return address
    return None


@functools.cache
def find_in_cuda(name: str) -> int | None:
    """The address of a function of libtorch_cuda, which a PyTorch for CUDA has loaded; None if there is none."""
    return _find_in("torch_cuda", name)


def _find_in(library: str, name: str) -> int | None:
    try:
        return ctypes.cast(getattr(ctypes.CDLL(_path(library)), name), ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None


def has_openmp() -> bool:
    return all(find_symbol(name) is not None for name in OPENMP)


@functools.cache
def find_in_bindings(name: str) -> int | None:
    """The address of a function of libtorch_python, which only Python itself loads; None if there is none."""
    return _find_in("torch_python", name)


def _path(library: str) -> str:
    suffix = "dylib" if sys.platform == "darwin" else "so"
    return os.path.join(torch.__path__[0], "lib", f"lib{library}.{suffix}")
