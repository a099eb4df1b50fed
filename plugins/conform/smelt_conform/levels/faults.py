"""Level `faults`: invalid requests raise errors, and the chip keeps working."""

from collections.abc import Callable

import torch

from smelt.base.errors import SmeltError
from smelt.chips import KernelModule, Launch
from smelt.device.host_library import HOST
from smelt_conform.bench import Bench, NotOffered, expect, numbers, same
from smelt_conform.check import Check, Level


def _must_raise(call: Callable[[], object], complaint: str) -> str:
    try:
        call()
    except (SmeltError, torch.OutOfMemoryError, MemoryError) as error:
        return str(error)
    expect(False, complaint)
    raise AssertionError


def _still_works(bench: Bench) -> None:
    same(numbers(bench.name, 33) * 2 + 1, numbers(HOST.type, 33) * 2 + 1, "what is computed after the error")


def _bad_code(bench: Bench) -> None:
    code: object = "this is no code" if bench.target.form == "llvm" else {"k0": b"this is no code."}
    module = KernelModule(bench.target.form, code, ("k0",), "conform")
    message = _must_raise(lambda: bench.ask(bench.chip.compile, module), "compile() accepted invalid code")
    expect(len(message) > 20, f"the error of compile() says only {message!r}")
    _still_works(bench)


def _bad_symbol(bench: Bench) -> None:
    """Launch a missing function of a valid module."""
    (numbers(bench.name, 3) * 0.5).sum().item()
    if bench.handle is None:
        raise NotOffered("the chip's class has __slots__, so its compiled modules cannot be observed")

    def launch() -> None:
        bench.ask(bench.chip.launch, bench.handle, Launch("no_such_function", ()))
        bench.ask(bench.chip.synchronize)

    _must_raise(launch, "neither launch() of a function that is not in the module nor synchronize() raised anything")
    _still_works(bench)


def _bad_index(bench: Bench) -> None:
    x = numbers(bench.name, 5)
    for _ in range(3):
        try:
            x[torch.tensor([9]).to(bench.name)].cpu()
        except IndexError:
            continue
        expect(False, "an index out of range raised no IndexError")
    _still_works(bench)


def _too_much(bench: Bench) -> None:
    nbytes = 1 << 50
    try:
        address = bench.ask(bench.chip.allocate, nbytes)
    except MemoryError:
        return _still_works(bench)
    except SmeltError as error:
        expect(False, f"allocate() of a petabyte raised {error} instead of MemoryError")
    expect(False, f"allocate() of a petabyte returned {address!r}; it must raise MemoryError")


def _other_devices(bench: Bench) -> None:
    try:
        numbers(bench.name, 3) + numbers(HOST.type, 3)
    except RuntimeError:
        return
    expect(False, "tensors of the chip and of the host were added without an error")


LEVEL = Level(
    "faults",
    "Faults",
    (
        Check(
            "bad_code",
            "code that cannot be compiled is an error",
            "compile(): raise, with the message of the compiler",
            _bad_code,
        ),
        Check(
            "lost_error",
            "an error of a launch is raised, immediately or by a later call",
            "launch() and the queue: keep the error, and raise it from the next method that can",
            _bad_symbol,
        ),
        Check("index_error", "an index out of range is an IndexError, not a crash", "copy_out()", _bad_index),
        Check(
            "no_room", "an allocation that does not fit is a MemoryError", "allocate(): raise MemoryError", _too_much
        ),
        Check(
            "other_devices",
            "mixing tensors of two devices is an error",
            "nothing: smelt raises this error",
            _other_devices,
        ),
    ),
)
