"""The CUDA driver, opened when it is first asked for: what it is, which GPUs it has, or why kernels cannot run there.

    why_not_cuda()               →   None, or "there is no CUDA driver: libcuda.so.1: cannot open shared object file"
    devices()[0].capability      →   (9, 0)

It is opened by name, or by the path in the environment variable SMELT_LIBCUDA. Opening it makes CUDA unusable in
children that fork() makes later, so it is asked only once a program uses CUDA itself, and by `smelt doctor`.
"""

import functools
import os

from smelt import _native
from smelt.base import locks
from smelt.base.errors import SmeltError
from smelt.base.fast_dataclass import dataclass

SWITCH = "SMELT_LIBCUDA"
LEAST_DRIVER = 12000
LEAST_CAPABILITY = (7, 5)

# Questions about a GPU, by the numbers that the driver's manual gives them.
_ATTRIBUTES = {
    "warp": 10,
    "multiprocessors": 16,
    "threads_per_multiprocessor": 39,
    "blocks_per_multiprocessor": 106,
}
_MAJOR, _MINOR = 75, 76
# Errors that speak against every kernel: no assembler in the driver, PTX too new for it, assembling forbidden.
_REFUSALS = (221, 222, 223)

_lock = locks.lock()
_refused: list[str] = []


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """A GPU, by what its driver says."""

    number: int
    name: str
    capability: tuple[int, int]
    warp: int
    multiprocessors: int
    threads_per_multiprocessor: int
    blocks_per_multiprocessor: int


@dataclass(frozen=True, slots=True)
class CudaDriver:
    """An open driver. `version` is 12040 for 12.4."""

    version: int
    devices: tuple[CudaDevice, ...]

    @property
    def text(self) -> str:
        return f"{self.version // 1000}.{self.version % 1000 // 10}"


def why_not_cuda() -> str | None:
    """Why no kernel of ours can run on a GPU here; None if one can."""
    opened = _opened()
    if isinstance(opened, str):
        return opened
    if opened.version < LEAST_DRIVER:
        return f"the CUDA driver is for CUDA {opened.text}, and {LEAST_DRIVER // 1000} is needed"
    if not opened.devices:
        return "the CUDA driver sees no GPU"
    reasons = [why_not_device(device) for device in opened.devices]
    if all(reasons):
        return reasons[0]
    return _refused[0] if _refused else None


def why_not_device(device: CudaDevice) -> str | None:
    """Why no kernel of ours can run on this GPU."""
    if device.capability >= LEAST_CAPABILITY:
        return None
    have, need = (".".join(map(str, each)) for each in (device.capability, LEAST_CAPABILITY))
    return f"{device.name} has compute capability {have}, and {need} is needed"


def driver() -> CudaDriver:
    """The driver; a `SmeltError` says why there is none."""
    opened = _opened()
    if isinstance(opened, str):
        raise SmeltError("SM030", opened)
    return opened


def devices() -> tuple[CudaDevice, ...]:
    """The GPUs that PyTorch sees too, in its order; () where there is no driver."""
    opened = _opened()
    return () if isinstance(opened, str) else opened.devices


def note_refusal(error: _native.CudaError) -> None:
    """Some errors of the assembler are about the driver, not about what it was given: `why_not_cuda` says so then."""
    if error.code in _REFUSALS:
        _refused[:] = [f"the CUDA driver refuses PTX: {error.text}"]


def forget() -> None:
    """Look for the driver anew; what was loaded stays loaded."""
    _refused.clear()
    _opened.cache_clear()


@functools.cache
def _opened() -> CudaDriver | str:
    with _native.Held(_lock):
        path = os.environ.get(SWITCH, "") or "libcuda.so.1"
        try:
            version = _native.cuda_open(path)
            return CudaDriver(version, tuple(_device(*each) for each in enumerate(_native.cuda_device_names())))
        except OSError as error:
            return f"there is no CUDA driver: {error}"
        except _native.CudaError as error:
            return f"the CUDA driver does not start: {error}"


def _device(number: int, name: str) -> CudaDevice:
    attributes = {field: _native.cuda_attribute(number, attribute) for field, attribute in _ATTRIBUTES.items()}
    capability = (_native.cuda_attribute(number, _MAJOR), _native.cuda_attribute(number, _MINOR))
    return CudaDevice(number, name, capability, **attributes)
