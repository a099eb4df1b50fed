"""`Bench`: the context of a check: the chip, its device, the compiler, and comparisons with the host."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from smelt.chips.runtime import ChipDevice
from smelt.device import Chip, KernelModule, Target
from smelt.device.host_library import HOST

Program = Callable[[str], Any]
"""Device name → tensors computed on that device."""

_BUSY_SECONDS = 0.1
_BUSY_BYTES = 64 << 20


class CheckFailed(Exception):
    """The chip does not have the property that the check tests."""


class NotOffered(Exception):
    """The chip declares that it does not support this."""


class Bench:
    """One chip under test. Addresses that a check allocates are freed when it ends."""

    def __init__(self, device: ChipDevice, compile: Callable[..., Any]) -> None:
        self.name = device.name
        self.device = device
        self.compile = compile
        self.handle: Any = None  # returned by the last call of `chip.compile`
        self._held: list[int] = []
        self._watch_compile()

    def _watch_compile(self) -> None:
        compile = self.chip.compile

        def watched(module: KernelModule) -> Any:
            self.handle = compile(module)
            return self.handle

        with contextlib.suppress(AttributeError):  # a class with __slots__
            setattr(self.chip, "compile", functools.wraps(compile)(watched))  # noqa: B010  a method, to mypy

    @property
    def chip(self) -> Chip:
        return self.device.chip

    @property
    def target(self) -> Target:
        return self.device.target

    # The chip's own methods.

    def ask(self, method: Callable[..., Any], *args: Any) -> Any:
        return self.device.ask(method, *args)

    def allocate(self, nbytes: int) -> int:
        address: int = self.ask(self.chip.allocate, nbytes)
        expect(isinstance(address, int) and address > 0, f"allocate({nbytes}) returned {address!r}, not an address")
        self._held.append(address)
        return address

    def free(self, address: int) -> None:
        self._held.remove(address)
        self.ask(self.chip.free, address)

    def put(self, data: bytes, address: int | None = None) -> int:
        """Copy bytes to an address, or to a new allocation; return the address."""
        address = self.allocate(len(data)) if address is None else address
        self.ask(self.chip.copy_in, address, memoryview(bytearray(data)))
        return address

    def get(self, address: int, nbytes: int) -> bytes:
        data = bytearray(nbytes)
        self.ask(self.chip.copy_out, address, memoryview(data))
        return bytes(data)

    @contextlib.contextmanager
    def checking(self) -> Iterator[None]:
        """Free what the check leaves allocated."""
        try:
            yield
        finally:
            held, self._held = self._held, []
            for address in held:
                with contextlib.suppress(Exception):  # the check's own error is the one to report
                    self.ask(self.chip.free, address)

    def keep_busy(self, seconds: float = _BUSY_SECONDS) -> float:
        """Queue copies that take about `seconds`; return the estimated time."""
        size = min(_BUSY_BYTES, (self.target.memory_bytes or _BUSY_BYTES * 8) // 8)
        one, other = self.allocate(size), self.allocate(size)
        times = []
        for _ in range(2):
            start = time.perf_counter()
            self.ask(self.chip.copy_within, one, other, size)
            self.ask(self.chip.synchronize)
            times.append(time.perf_counter() - start)
        count = max(2, min(2000, round(seconds / min(times))))
        for _ in range(count):
            self.ask(self.chip.copy_within, one, other, size)
        return count * min(times)

    # Tensors.

    def needs(self, *dtypes: torch.dtype) -> None:
        """Raise `NotOffered` if the chip lacks one of the dtypes."""
        has = self.target.dtypes
        names = [str(dtype).removeprefix("torch.") for dtype in dtypes]
        missing = [name for name in names if has and name not in has]
        if missing:
            raise NotOffered(f"the chip has no {', '.join(missing)}")

    def compiled_on(self, device: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, compiled if the device is the chip."""
        called: Callable[..., Any] = self.compile(function, fullgraph=True) if device == self.name else function
        return called

    def agrees(self, program: Program, rtol: float | None = None, atol: float | None = None) -> None:
        """Check that a program returns the same results on the chip and on the host."""
        results, host_results = tensors_of(program(self.name)), tensors_of(program(HOST.type))
        expect(len(results) == len(host_results), f"{len(results)} results, but {len(host_results)} on the host")
        for number, (actual, expected) in enumerate(zip(results, host_results, strict=True)):
            same(actual, expected, f"result {number}" if len(results) > 1 else "the result", rtol, atol)


def expect(condition: bool, message: str) -> None:
    if not condition:
        raise CheckFailed(message)


def same(
    actual: torch.Tensor, expected: torch.Tensor, what: str, rtol: float | None = None, atol: float | None = None
) -> None:
    """Check that two tensors are equal within the tolerance of their dtype, or `rtol` and `atol`. NaN equals NaN."""
    if actual.is_floating_point() and expected.is_floating_point() and rtol is None:
        rtol, atol = _TOLERANCES.get(actual.dtype, (None, None))
    on_host = actual.detach().to(HOST)

    def text(message: str) -> str:
        return f"{what} differs from the host's: {' '.join(message.split())}"

    try:
        torch.testing.assert_close(on_host, expected.detach(), rtol=rtol, atol=atol, equal_nan=True, msg=text)
    except AssertionError as error:
        raise CheckFailed(str(error)) from None


_TOLERANCES = {torch.float32: (1e-5, 1e-5), torch.float16: (2e-3, 2e-3), torch.bfloat16: (1.6e-2, 1.6e-2)}


def tensors_of(value: Any) -> list[torch.Tensor]:
    """Flatten the results of a program; numbers become tensors."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in tensors_of(item)]
    return [torch.tensor(value)]


def numbers(device: str, *shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Normal random numbers on a device, generated on the host."""
    generator = torch.Generator().manual_seed(seed + 1)
    drawn = torch.randn(shape, generator=generator, device=HOST)
    if dtype is torch.bool:
        drawn = drawn > 0
    elif not (dtype.is_floating_point or dtype.is_complex):
        drawn = (drawn * 20).abs() if dtype is torch.uint8 else drawn * 20
    return drawn.to(dtype).to(device)


def compared(program: Program, *dtypes: torch.dtype, rtol: float | None = None, atol: float | None = None) -> Any:
    """A check's `run` that compares a program on the chip with the host."""

    def run(bench: Bench) -> None:
        bench.needs(torch.float32, *dtypes)
        bench.agrees(program, rtol, atol)

    return run
