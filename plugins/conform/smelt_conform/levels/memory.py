"""Level `memory`: the target, allocating and freeing. Calls only methods of the chip."""

import torch

from smelt_conform.bench import Bench, expect
from smelt_conform.check import Check, Level

_ODD_SIZES = (1, 3, 63, 64, 65, 1000, 4095, 4096, 4097, 100_003)
_FORMS = ("llvm", "spirv")


def _describe(bench: Bench) -> None:
    target = bench.target
    expect(target.form in _FORMS, f"Target.form is {target.form!r}, not one of {', '.join(_FORMS)}")
    expect(target.warp_size >= 1, f"Target.warp_size is {target.warp_size}")
    expect((target.form == "llvm") == (target.warp_size == 1), "Target.warp_size is 1 for llvm, and above 1 for spirv")
    bits = target.vector_bits
    expect(target.form != "llvm" or (bits >= 64 and bits.bit_count() == 1), f"Target.vector_bits is {bits}")
    unknown = [str(name) for name in target.dtypes if str(getattr(torch, str(name), None)) != f"torch.{name}"]
    expect(not unknown, f"Target.dtypes has {', '.join(unknown)}, which are not names of dtypes such as 'float32'")
    expect(not target.dtypes or "float32" in target.dtypes, "Target.dtypes has no float32, which every level needs")
    expect(target.memory_bytes >= 0, f"Target.memory_bytes is {target.memory_bytes}")


def _alignment(bench: Bench) -> None:
    for size in _ODD_SIZES:
        address = bench.allocate(size)
        expect(address % 64 == 0, f"allocate({size}) returned {address:#x}, which is not a multiple of 64")


def _whole(bench: Bench) -> None:
    for size in _ODD_SIZES:
        data = _pattern(size, size)
        wrong = _first_difference(bench.get(bench.put(data), size), data)
        expect(wrong is None, f"byte {wrong} of an allocation of {size} bytes differs from what was written")


def _apart(bench: Bench) -> None:
    sizes = [size + extra for size in _ODD_SIZES for extra in range(3)]
    written = [(size, bench.put(_pattern(number, size))) for number, size in enumerate(sizes)]
    addresses = [address for _, address in written]
    expect(len({*addresses}) == len(addresses), "two allocations have the same address")
    for number, (size, address) in enumerate(written):
        wrong = _first_difference(bench.get(address, size), _pattern(number, size))
        expect(
            wrong is None, f"byte {wrong} of allocation {number} ({size} bytes) was overwritten by a write to others"
        )


def _inside(bench: Bench) -> None:
    address = bench.put(bytes(300))
    bench.put(b"abc", address + 101)
    expected = bytes(101) + b"abc" + bytes(196)
    wrong = _first_difference(bench.get(address, 300), expected)
    expect(wrong is None, f"3 bytes written at address + 101 went elsewhere: byte {wrong} is wrong")
    expect(bench.get(address + 102, 2) == b"bc", "2 bytes read at address + 102 differ from what was written there")


def _free(bench: Bench) -> None:
    """Allocate and free more than the chip has, in total."""
    total = bench.target.memory_bytes or 1 << 30
    piece = max(1 << 20, total // 8)
    for number in range(10):
        try:
            address = bench.allocate(piece)
        except MemoryError as error:
            reason = f"allocation {number + 1} of {piece} bytes failed, though each was freed before the next"
            expect(False, f"{reason}: {error}")
        bench.free(address)


def _kept(bench: Bench) -> None:
    """Freeing an allocation and reusing its place leave the others unchanged."""
    addresses = [bench.put(_pattern(number, 5000)) for number in range(12)]
    for number in range(0, 12, 2):
        bench.free(addresses[number])
    for number in range(0, 12, 2):
        addresses[number] = bench.put(_pattern(number + 50, 4999))
    for number in range(1, 12, 2):
        wrong = _first_difference(bench.get(addresses[number], 5000), _pattern(number, 5000))
        expect(wrong is None, f"byte {wrong} of an allocation changed when others were freed and allocated")


def _freed_late(bench: Bench) -> None:
    """Queued work may still use memory that is freed."""
    size = 1 << 20
    source, target = bench.put(_pattern(1, size)), bench.allocate(size)
    bench.keep_busy()
    bench.ask(bench.chip.copy_within, target, source, size)
    bench.free(source)
    for number in range(3):
        bench.put(_pattern(number + 2, size))
    wrong = _first_difference(bench.get(target, size), _pattern(1, size))
    expect(wrong is None, f"a copy queued before its source was freed has the wrong data at byte {wrong}")


def _pattern(seed: int, size: int) -> bytes:
    """Bytes that differ from one seed to the next, and that do not repeat at powers of two."""
    period = bytes((index * 7 + seed * 31 + 1) % 251 for index in range(251))
    return (period * (size // 251 + 1))[:size]


def _first_difference(actual: bytes, expected: bytes) -> int | None:
    if actual == expected:
        return None
    return next(index for index, (one, other) in enumerate(zip(actual, expected, strict=True)) if one != other)


LEVEL = Level(
    "memory",
    "Memory",
    (
        Check(
            "describe",
            "kernels can be generated for the Target",
            "describe(): form, warp_size, dtypes",
            _describe,
        ),
        Check("alignment", "allocations begin at multiples of 64", "allocate(): round addresses up", _alignment),
        Check(
            "whole",
            "every byte of an allocation can be written and read",
            "copy_in() and copy_out(): the length",
            _whole,
        ),
        Check("apart", "allocations do not overlap", "allocate(): advance by the size, rounded up", _apart),
        Check("inside", "an address plus bytes is an address", "the translation of addresses in copies", _inside),
        Check("free", "memory that was freed can be allocated again", "free(): return the memory", _free),
        Check("kept", "freeing one allocation leaves the others alone", "free(): which block it returns", _kept),
        Check(
            "freed_late",
            "queued work may still use memory that is freed",
            "free(): put it on the queue, or wait for the queue",
            _freed_late,
        ),
    ),
)
