"""Kernels of grids on a GPU, as launchers that `_native.Runner` launches without Python.

    cuda_launcher(code, (Grid("k0", blocks=64, threads=256), Grid("k0.sum", blocks=(1,), threads=32)), buffers=3)

The first launch on a device loads the code there; PyTorch's errors are raised for what a launch fails with.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import torch

from smelt import _native
from smelt.base.fast_dataclass import dataclass
from smelt.ir.kernel_code import KernelCode
from smelt.runtime.cuda.image import CudaCode
from smelt.runtime.cuda.memory import or_spare
from smelt.torch_abi import cuda_shims

_OUT_OF_MEMORY = 2
# What PyTorch adds to an error of CUDA.
_ADVICE = (
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"
)


class Grid(NamedTuple):
    """One phase of a kernel. `blocks` is a number, or (slot,) for one of the sizes that a launch is given."""

    symbol: str
    blocks: int | tuple[int]
    threads: int
    shared_bytes: int = 0


def cuda_launcher(
    code: CudaCode,
    grids: Sequence[Grid],
    buffers: int,
    workspace: int | tuple[int] = 0,
    *,
    sizes: int = 0,
    device: int = -1,
    alignment: int = 1,
    unaligned: Callable[[], _native.GridLauncher] | None = None,
    numbers: bytes = b"",
) -> _native.GridLauncher:
    """A launcher of `grids`, one after the other. `buffers` counts the array of sizes, if there is one; `workspace` is
    in bytes; `device`: where it is launched, by default where its first buffer is. Where a buffer does not begin at a
    multiple of `alignment` bytes, what `unaligned` returns is launched. `numbers`: as `_native.GridLauncher` has it."""
    phases = tuple((0, grid.blocks, grid.threads, grid.shared_bytes, True) for grid in grids)
    support = _Support(code, tuple(grids))
    return _native.GridLauncher(
        phases,
        buffers,
        workspace,
        sizes=sizes,
        support=support,
        device=device,
        alignment=alignment,
        unaligned=unaligned,
        numbers=numbers,
    )


def kernel_launcher(
    code: CudaCode,
    kernel: KernelCode,
    alignment: int = 1,
    unaligned: Callable[[], _native.GridLauncher] | None = None,
) -> _native.GridLauncher:
    """A launcher of a kernel, all of whose sizes are numbers by now, in the module that its functions are in."""
    grids = [Grid(each.symbol, each.blocks, each.threads, each.shared_bytes) for each in kernel.phases]
    return cuda_launcher(
        code,
        grids,
        kernel.buffers,
        kernel.workspace,
        sizes=kernel.size_count,
        alignment=alignment,
        unaligned=unaligned,
        numbers=kernel.numbers,
    )


@dataclass(frozen=True, slots=True)
class _Support:
    """What a launcher asks Python for: `_native.CudaSupport`."""

    code: CudaCode
    grids: tuple[Grid, ...]

    def functions(self, device: int) -> tuple[int, ...]:
        cuda_shims.connect()
        return tuple([self.code.function(grid.symbol, device, grid.shared_bytes) for grid in self.grids])

    def stream(self, device: int) -> int:
        stream: int = torch.cuda.current_stream(device).cuda_stream
        return stream

    def workspace(self, device: int, nbytes: int) -> torch.Tensor:
        return or_spare(lambda: torch.empty(nbytes, dtype=torch.uint8, device=torch.device("cuda", device)))

    def failed(self, code: int, phase: int) -> NoReturn:
        raise launch_error(code, self.grids[phase].symbol)


def launch_error(code: int, symbol: str) -> RuntimeError:
    """PyTorch's error for what the driver said of a launch."""
    text = _native.cuda_error_text(code)
    if code == _OUT_OF_MEMORY:
        return torch.OutOfMemoryError(f"CUDA out of memory. The driver has none left to launch {symbol}.")
    error: Any = getattr(torch, "AcceleratorError", RuntimeError)(f"CUDA error: {text}\n{_ADVICE}")
    error.error_code = code  # as PyTorch's have it
    assert isinstance(error, RuntimeError)
    return error
