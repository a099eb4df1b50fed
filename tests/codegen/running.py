"""Run a compiled kernel on tensors, as the runtime does."""

import ctypes
from collections.abc import Callable, Sequence

import torch

from smelt.base.options import Options
from smelt.codegen import CompiledKernel, compile_kernels
from smelt.ir.kernel import Kernel


def call(
    compiled: CompiledKernel,
    tensors: Sequence[torch.Tensor],
    threads: int = 1,
    per_thread: int | None = None,
    room: Callable[[int], torch.Tensor] | None = None,
) -> None:
    """One call, with a workspace of just the size it asks for, guarded by bytes that must not change, or in `room`, the
    memory for so many bytes."""
    size = (compiled.per_thread_workspace if per_thread is None else per_thread) * threads
    workspace = torch.full((size + 128,), 0xA5, dtype=torch.uint8) if room is None else room(size)
    start = -workspace.data_ptr() % 64
    assert start + size <= len(workspace)
    buffers = (ctypes.c_void_p * max(1, len(tensors)))(*[tensor.data_ptr() for tensor in tensors])
    address = compiled.address(compiled.symbol)
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)(address)
    function(ctypes.addressof(buffers), threads, workspace.data_ptr() + start)
    if room is None:
        assert bool((workspace[:start] == 0xA5).all()) and bool((workspace[start + size :] == 0xA5).all())


def run(kernel: Kernel, tensors: Sequence[torch.Tensor], threads: int = 1) -> None:
    call(compile_kernels([kernel], Options(check_specs=True))[kernel.name], tensors, threads)
