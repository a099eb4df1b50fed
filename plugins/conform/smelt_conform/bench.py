"""`Bench`: what a check works with: the chip, the device made of it, the compiler, and comparisons with the host."""

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
"""Computes tensors on the device that it is given by name."""

_BUSY_SECONDS = 0.1
_BUSY_BYTES = 64 << 20


class CheckFailed(Exception):
    """The chip is not as it should be."""


class NotOffered(Exception):
    """The chip says itself that it does not do this."""


class Bench:
    """One chip under test. Addresses that a check allocates are freed when it ends."""

    def __init__(self, device: ChipDevice, compile: Callable[..., Any]) -> None:
        self.name = device.name
        self.device = device
        self.compile = compile
        self.handle: Any = None  # what the chip has compiled last
        self._held: list[int] = []
        self._watch_compile()

    def _watch_compile(self) -> None:
        compile = self.chip.compile

        def watched(module: KernelModule) -> Any:
            self.handle = compile(module)
            return self.handle

        with contextlib.suppress(AttributeError):  # where objects of its class take no attributes
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
        """Bytes at an address, or in new memory."""
        address = self.allocate(len(data)) if address is None else address
        self.ask(self.chip.copy_in, address, memoryview(bytearray(data)))
        return address

    def get(self, address: int, nbytes: int) -> bytes:
        data = bytearray(nbytes)
        self.ask(self.chip.copy_out, address, memoryview(data))
        return bytes(data)

    @contextlib.contextmanager
    def checking(self) -> Iterator[None]:
        """While a check runs: what it leaves allocated is freed."""
        try:
            yield
        finally:
            held, self._held = self._held, []
            for address in held:
                with contextlib.suppress(Exception):  # the check's own error says more
                    self.ask(self.chip.free, address)

    def keep_busy(self, seconds: float = _BUSY_SECONDS) -> float:
        """Ask for copies that take a while; return how many seconds, roughly."""
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
        """Raise where the chip does not have a dtype."""
        has = self.target.dtypes
        missing = [name for name in (str(each).removeprefix("torch.") for each in dtypes) if has and name not in has]
        if missing:
            raise NotOffered(f"the chip has no {', '.join(missing)}")

    def compiled_on(self, device: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function itself for the host, compiled for the chip."""
        called: Callable[..., Any] = self.compile(function, fullgraph=True) if device == self.name else function
        return called

    def agrees(self, program: Program, rtol: float | None = None, atol: float | None = None) -> None:
        """A program gives on the chip what it gives on the host."""
        found, wanted = tensors_of(program(self.name)), tensors_of(program(HOST.type))
        expect(len(found) == len(wanted), f"{len(found)} results, and the host has {len(wanted)}")
        for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
            same(one, other, f"result {number}" if len(found) > 1 else "the result", rtol, atol)


def expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise CheckFailed(otherwise)


def same(
    found: torch.Tensor, wanted: torch.Tensor, what: str, rtol: float | None = None, atol: float | None = None
) -> None:
    """Within what the dtype allows, or what is given. NaN equals NaN."""
    if found.is_floating_point() and wanted.is_floating_point() and rtol is None:
        rtol, atol = _TOLERANCES.get(found.dtype, (None, None))
    host = found.detach().to(HOST)

    def text(said: str) -> str:
        return f"{what} is not the host's: {' '.join(said.split())}"

    try:
        torch.testing.assert_close(host, wanted.detach(), rtol=rtol, atol=atol, equal_nan=True, msg=text)
    except AssertionError as error:
        raise CheckFailed(str(error)) from None


_TOLERANCES = {torch.float32: (1e-5, 1e-5), torch.float16: (2e-3, 2e-3), torch.bfloat16: (1.6e-2, 1.6e-2)}


def tensors_of(value: Any) -> list[torch.Tensor]:
    """All tensors in the results of a program; numbers become tensors."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in tensors_of(item)]
    return [torch.tensor(value)]


def numbers(device: str, *shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Normal random numbers, drawn by the host, on a device."""
    generator = torch.Generator().manual_seed(seed + 1)
    drawn = torch.randn(shape, generator=generator, device=HOST)
    if dtype is torch.bool:
        drawn = drawn > 0
    elif not (dtype.is_floating_point or dtype.is_complex):
        drawn = (drawn * 20).abs() if dtype is torch.uint8 else drawn * 20
    return drawn.to(dtype).to(device)


def compared(program: Program, *dtypes: torch.dtype, rtol: float | None = None, atol: float | None = None) -> Any:
    """A check's `run`: the program on the chip against the host."""

    def run(bench: Bench) -> None:
        bench.needs(torch.float32, *dtypes)
        bench.agrees(program, rtol, atol)

    return run
