"""The device that recorded operators run on in the end: the host, or a GPU, where lazy tensors have one stream.

    with real.working():       kernels go to that stream: it waits for the program's current one, which waits for it

A program, autograd's engine and hooks may each have another current stream. Were it left to them, what one thread runs
could be read by another before it is there. The stream is the GPU's default one: where a program uses no other, nothing
waits for anything.
"""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from smelt.base.errors import SmeltError
from smelt.device.host_library import on_host
from smelt.meta.devices import with_index

_NOTHING: AbstractContextManager[None] = nullcontext()


class RealDevice:
    """The host. What is asked of it is done when the call returns."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @property
    def generator(self) -> torch.Generator:
        """What random numbers are drawn from, as eager draws them."""
        return torch.default_generator

    def working(self) -> AbstractContextManager[None]:
        """Round whatever runs operators."""
        return _NOTHING

    def selected(self) -> AbstractContextManager[None]:
        """Round whatever compiles for it, on any thread."""
        return _NOTHING

    def lend(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor made while `working`, for the program."""
        return tensor

    def program_stream(self) -> Any:
        """The stream that the program has here; None where there are none."""
        return None

    def on(self, stream: Any) -> AbstractContextManager[None]:
        """As if the program had this stream."""
        return _NOTHING

    def is_elsewhere(self, device: torch.device) -> bool:
        return device.type != self.device.type

    def synchronize(self) -> None:
        """Until all is done."""

    def empty_cache(self) -> None:
        """Give back memory that nobody uses."""


class CudaDevice(RealDevice):
    """A GPU. `cuda` is `torch.cuda`."""

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        super().__init__(device)
        self._cuda = cuda
        self.stream = cuda.default_stream(device)
        self._program = threading.local()  # its stream, for as long as it waits

    @property
    def generator(self) -> torch.Generator:
        generator: torch.Generator = self._cuda.default_generators[self.device.index]
        return generator

    def working(self) -> AbstractContextManager[None]:
        is_current = self._cuda.current_device() == self.device.index
        return _NOTHING if is_current and self.program_stream() == self.stream else self._switched()

    def program_stream(self) -> Any:
        return self._cuda.current_stream(self.device)

    def on(self, stream: Any) -> AbstractContextManager[None]:
        context: AbstractContextManager[None] = self._cuda.stream(stream)
        return context

    def is_elsewhere(self, device: torch.device) -> bool:
        return with_index(device) != self.device

    @contextmanager
    def _switched(self) -> Iterator[None]:
        before = self.program_stream()
        with self._cuda.device(self.device):
            if before == self.stream:
                yield
                return
            self.stream.wait_stream(before)
            self._program.stream = before
            try:
                with self._cuda.stream(self.stream):
                    yield
            finally:
                self._program.stream = None
                before.wait_stream(self.stream)

    def selected(self) -> AbstractContextManager[None]:
        context: AbstractContextManager[None] = self._cuda.device(self.device)
        return context

    def lend(self, tensor: torch.Tensor) -> torch.Tensor:
        """Its memory is the stream's: it may be used anew only after what the program's stream does with it."""
        waiting = getattr(self._program, "stream", None)
        if tensor.is_cuda and waiting is not None:
            tensor.record_stream(waiting)
        return tensor

    def synchronize(self) -> None:
        self._cuda.synchronize(self.device)

    def empty_cache(self) -> None:
        self._cuda.empty_cache()


def real_device(on: str | torch.device) -> RealDevice:
    """The device of this name, if lazy tensors can run on it here."""
    try:
        device = torch.device(on)
    except RuntimeError as error:
        raise SmeltError("SM070", f"lazy tensors cannot run on {on!r}: {str(error).splitlines()[0]}") from None
    if on_host(device):
        return RealDevice(torch.device(device.type))
    reason = _why_not(device)
    if reason is not None:
        hint = 'smelt.lazy.enable(on="cpu") runs on the CPU'
        raise SmeltError("SM070", f"lazy tensors cannot run on {on!s}: {reason}", hint=hint)
    torch.cuda.init()  # type: ignore[no-untyped-call]
    return CudaDevice(with_index(device))


def _why_not(device: torch.device) -> str | None:
    if device.type != "cuda":
        return 'they run on "cpu" or "cuda"'
    if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        return f"PyTorch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return "PyTorch sees no GPU"
    count = torch.cuda.device_count()
    return None if (device.index or 0) < count else f"there are {count} GPUs, and their numbers begin at 0"
