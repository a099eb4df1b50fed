"""Machine code for GPUs: PTX assembled by the driver, kept as bytes, loaded on each GPU that launches it.

    code = CudaCode(ptx)                     one module, of one or many kernels
    code.function("k0", device=1)            assembled for the kind of GPU that device 1 is, and loaded there: once each
    code.images                              what was assembled, for a disk cache; `CudaCode(ptx, images)` uses it

A module is unloaded when nobody holds its `CudaCode` any more.
"""

import contextlib
from collections.abc import Iterable, Iterator

from smelt import _native
from smelt.base import locks
from smelt.base.errors import SmeltError
from smelt.base.fast_dataclass import dataclass
from smelt.runtime.cuda.driver import CudaDevice, driver, note_refusal, why_not_device


@dataclass(frozen=True, slots=True)
class CudaImage:
    """Machine code for one kind of GPU, as one version of the driver assembled it, and what the assembler printed."""

    code: bytes
    capability: tuple[int, int]
    driver: int
    log: str = ""

    @property
    def key(self) -> str:
        """What it was made for: code is used where this is the same."""
        return _key(self.capability, self.driver)


@dataclass(frozen=True, slots=True)
class FunctionUsage:
    """What a function takes of a GPU, and how many of its blocks one multiprocessor runs at once."""

    registers: int
    local_bytes: int  # per thread: spilled registers and arrays
    shared_bytes: int  # per block, beside what a launch asks for
    blocks_per_multiprocessor: int


def image_key(device: CudaDevice) -> str:
    """What images for a device have as their key."""
    return _key(device.capability, driver().version)


def assemble(ptx: str, device: CudaDevice) -> CudaImage:
    """Machine code of PTX for such a device."""
    with _refusals(f"the CUDA driver refuses generated code for {device.name}"):
        code, log = _native.cuda_link(ptx.encode(), device.number)
    return CudaImage(code, device.capability, driver().version, log)


class CudaCode:
    """The kernels of one module on every GPU that launches them. `images`: what was assembled of it before."""

    def __init__(self, ptx: str, images: Iterable[CudaImage] = ()) -> None:
        self.ptx = ptx
        self._images = {image.key: image for image in images}
        self._modules: dict[int, _native.CudaModule] = {}
        self._lock = locks.lock()

    @property
    def images(self) -> tuple[CudaImage, ...]:
        return tuple(self._images.values())

    def image(self, device: CudaDevice) -> CudaImage:
        """The code for such a device, assembled when it is first asked for."""
        with _native.Held(self._lock):
            key = image_key(device)
            if key not in self._images:
                self._images[key] = assemble(self.ptx, device)
            return self._images[key]

    def module(self, number: int) -> _native.CudaModule:
        """The code in the memory of a device, loaded when it is first asked for."""
        with _native.Held(self._lock):
            if number not in self._modules:
                device = _device(number)
                code = self.image(device).code
                with _refusals(f"the CUDA driver refuses generated code for {device.name}"):
                    self._modules[number] = _native.CudaModule(code, number)
            return self._modules[number]

    def function(self, symbol: str, device: int, shared_bytes: int = 0) -> int:
        """What the driver launches: a function of the code on a device, allowed so much shared memory."""
        with _refusals(f"{symbol} cannot be launched on {_device(device).name}"):
            return self.module(device).function(symbol, shared_bytes)

    def usage(self, symbol: str, device: int, threads: int, shared_bytes: int = 0) -> FunctionUsage:
        """What a function takes, launched with blocks of so many threads."""
        with _refusals(f"{symbol} cannot be launched on {_device(device).name}"):
            return FunctionUsage(*self.module(device).usage(symbol, threads, shared_bytes))


def _device(number: int) -> CudaDevice:
    gpus = driver().devices
    if not 0 <= number < len(gpus):
        raise SmeltError("SM030", f"there is no GPU number {number}, the CUDA driver sees {len(gpus)}")
    reason = why_not_device(gpus[number])
    if reason is not None:
        raise SmeltError("SM030", reason)
    return gpus[number]


def _key(capability: tuple[int, int], driver: int) -> str:
    return f"sm_{capability[0]}{capability[1]} driver {driver}"


@contextlib.contextmanager
def _refusals(text: str) -> Iterator[None]:
    """What the driver refuses is told as `text`, with the driver's own words and what its assembler printed."""
    try:
        yield
    except _native.CudaError as error:
        note_refusal(error)
        raise SmeltError("SM030", f"{text}: {error}\n{error.log}".strip()) from error
