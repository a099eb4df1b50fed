"""What launches of a kernel's grids on a GPU ask Python for: `_native.GridLauncher` does the rest without it.

    GridLauncher(phases, buffers, workspace, support=LaunchSupport(code, kernel.phases))

The first launch on a device loads the code there; PyTorch's errors are raised for what a launch fails with.
"""

from typing import Any, NoReturn

import torch

from smelt import _native
from smelt.base.fast_dataclass import dataclass
from smelt.ir.kernel_code import GridPhase
from smelt.runtime.cuda.image import CudaCode
from smelt.runtime.cuda.memory import or_spare
from smelt.torch_abi import cuda_shims

_OUT_OF_MEMORY = 2
# What PyTorch adds to an error of CUDA.
_ADVICE = (
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"
)


@dataclass(frozen=True, slots=True)
class LaunchSupport:
    """The functions of phases in the module that has them, on each device: `_native.CudaSupport`."""

    code: CudaCode
    phases: tuple[GridPhase, ...]

    def functions(self, device: int) -> tuple[int, ...]:
        cuda_shims.connect()
        return tuple([self.code.function(each.symbol, device, each.shared_bytes) for each in self.phases])

    def stream(self, device: int) -> int:
        stream: int = torch.cuda.current_stream(device).cuda_stream
        return stream

    def workspace(self, device: int, nbytes: int) -> torch.Tensor:
        return or_spare(lambda: torch.empty(nbytes, dtype=torch.uint8, device=torch.device("cuda", device)))

    def failed(self, code: int, phase: int) -> NoReturn:
        raise launch_error(code, self.phases[phase].symbol)


def launch_error(code: int, symbol: str) -> RuntimeError:
    """PyTorch's error for what the driver said of a launch."""
    text = _native.cuda_error_text(code)
    if code == _OUT_OF_MEMORY:
        return torch.OutOfMemoryError(f"CUDA out of memory. The driver has none left to launch {symbol}.")
    error: Any = getattr(torch, "AcceleratorError", RuntimeError)(f"CUDA error: {text}\n{_ADVICE}")
    error.error_code = code  # as PyTorch's have it
    assert isinstance(error, RuntimeError)
    return error
