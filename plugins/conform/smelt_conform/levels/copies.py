"""Level `copies`: bytes in, out and within by the chip's methods; then tensors with strides, views and conversions."""

from typing import Any

import torch

from smelt_conform.bench import Bench, compared, expect, numbers
from smelt_conform.check import Check, Level, Measurement


def _copy_in_keeps_nothing(bench: Bench) -> None:
    """The caller may change its bytes as soon as copy_in has returned."""
    size = 1 << 20
    address = bench.allocate(size)
    bench.keep_busy()
    data = bytearray(b"\x05" * size)
    bench.ask(bench.chip.copy_in, address, memoryview(data))
    data[:] = b"\x09" * size
    actual = bench.get(address, size)
    expect(actual == b"\x05" * size, "copy_in read its argument after it had returned")


def _copy_out_is_done(bench: Bench) -> None:
    size = 1 << 20
    source, address = bench.put(b"\x11" * size), bench.put(b"\x22" * size)
    bench.keep_busy()
    bench.ask(bench.chip.copy_within, address, source, size)
    actual = bench.get(address, size)
    expect(actual == b"\x11" * size, "copy_out returned before earlier work was done")


def _copy_within(bench: Bench) -> None:
    source, target = bench.put(bytes(range(256)) * 4), bench.put(b"\xff" * 1024)
    for at, start, count in ((0, 0, 1), (5, 3, 7), (100, 31, 65), (300, 1, 500), (1000, 1000, 24)):
        before = bench.get(target, 1024)
        bench.ask(bench.chip.copy_within, target + at, source + start, count)
        expected = before[:at] + (bytes(range(256)) * 4)[start : start + count] + before[at + count :]
        actual = bench.get(target, 1024)
        copied = actual[at : at + count]
        expect(copied == expected[at : at + count], f"{count} bytes copied from +{start} to +{at} have wrong values")
        expect(actual == expected, f"copying {count} bytes to +{at} changed bytes beside them")


def _within_one(bench: Bench) -> None:
    """From one half of an allocation to the other."""
    address = bench.put(b"a" * 500 + b"b" * 500)
    bench.ask(bench.chip.copy_within, address + 500, address, 500)
    expect(bench.get(address, 1000) == b"a" * 1000, "a copy within one allocation has wrong bytes")


def _neighbours(bench: Bench) -> None:
    for at, count in ((0, 1), (7, 9), (64, 64), (99, 1)):
        address = bench.put(b"\x33" * 128)
        bench.put(b"\x44" * count, address + at)
        expected = b"\x33" * at + b"\x44" * count + b"\x33" * (128 - at - count)
        expect(bench.get(address, 128) == expected, f"copy_in of {count} bytes at +{at} wrote other bytes")


def _copy_out_length(bench: Bench) -> None:
    address = bench.put(bytes(range(100)))
    data = bytearray(b"\xee" * 60)
    bench.ask(bench.chip.copy_out, address + 10, memoryview(data)[20:40])
    expected = b"\xee" * 20 + bytes(range(10, 30)) + b"\xee" * 20
    expect(bytes(data) == expected, "copy_out of 20 bytes wrote to other bytes of the host than its argument")


def _strided(device: str) -> Any:
    x = numbers(device, 6, 8, 5)
    permuted = x.permute(2, 0, 1)
    sliced = x[::2, 1::3]
    return permuted.contiguous(), sliced.contiguous(), x.expand(3, 6, 8, 5).clone(), x[:, 2], permuted[1].t(), x.flip(1)


def _writes(device: str) -> Any:
    x = torch.zeros(6, 8, device=device)
    x[1:3, ::2] = numbers(device, 2, 4)
    x.t()[5].copy_(numbers(device, 6, seed=2))
    x[4].fill_(7)
    x[:, 7:].copy_(numbers(device, 1, 1).expand(6, 1))
    return x


def _views(device: str) -> Any:
    x = torch.zeros(24, device=device)
    x.view(4, 6)[1].add_(1)
    x.as_strided((3,), (7,), 2).mul_(5).add_(2)
    whole = torch.arange(64, dtype=torch.uint8, device=device)
    return x, whole.view(torch.int32), whole[8:24].view(torch.int64)


def _conversions(device: str) -> Any:
    x = numbers(device, 4, 9) * 10
    return x.int(), x.to(torch.int64).float(), (x > 0).float(), x.int().bool()


def _empty(device: str) -> Any:
    x = numbers(device, 0, 3)
    return x + 1, x.sum(), torch.cat([x, numbers(device, 2, 3)]), x.t().contiguous(), torch.empty(0, device=device)


def _round_trip(bench: Bench) -> None:
    for shape in ((), (1,), (3, 1, 5), (1000, 33)):
        x = numbers(bench.name, *shape)
        expect(torch.equal(x.cpu().to(bench.name).cpu(), x.cpu()), f"a tensor of shape {shape} came back changed")
    x = numbers(bench.name, 3, 4)
    expect("device='" + bench.name in repr(x), "a tensor does not print its device")


def _copy_of(direction: str) -> Any:
    def prepare(bench: Bench) -> tuple[Any, int]:
        size = 16 << 20
        one, data = bench.allocate(size), memoryview(bytearray(size))
        if direction == "in":
            return lambda: bench.ask(bench.chip.copy_in, one, data), size
        return lambda: bench.ask(bench.chip.copy_out, one, data), size

    return prepare


def _transposed(bench: Bench) -> tuple[Any, int]:
    x = torch.zeros(2048, 2048, device=bench.name)
    return lambda: x.t().contiguous(), 2 * x.nbytes


_LENGTHS = "the lengths and offsets that the method copies by"

LEVEL = Level(
    "copies",
    "Copies and strides",
    (
        Check("copy_in", "copy_in writes those bytes and no others", f"copy_in(): {_LENGTHS}", _neighbours),
        Check(
            "copy_in_keeps_nothing",
            "copy_in's argument may be changed once it has returned",
            "copy_in(): keep a copy of the bytes until they are written",
            _copy_in_keeps_nothing,
        ),
        Check("copy_out", "copy_out fills those bytes and no others", f"copy_out(): {_LENGTHS}", _copy_out_length),
        Check(
            "copy_out_is_done",
            "copy_out returns when its bytes are there, after all earlier work",
            "copy_out(): wait for the queue",
            _copy_out_is_done,
        ),
        Check("copy_within", "copies within the chip at any byte", f"copy_within(): {_LENGTHS}", _copy_within),
        Check("within_one", "copies within one allocation", f"copy_within(): {_LENGTHS}", _within_one),
        Check("round_trip", "tensors survive a round trip", "copy_in(), copy_out()", _round_trip),
        Check(
            "strided",
            "views are read by their strides",
            "launch(): addresses inside allocations",
            compared(_strided),
        ),
        Check("writes", "parts of tensors are written", "launch(): addresses inside allocations", compared(_writes)),
        Check(
            "views",
            "views share memory, of other dtypes too",
            "launch(): the same buffer passed twice",
            compared(_views),
        ),
        Check("conversions", "conversions between dtypes", "compile(): conversions of numbers", compared(_conversions)),
        Check("empty", "tensors without elements", "launch(): an address of 0", compared(_empty)),
    ),
    (
        Measurement("copy in", _copy_of("in")),
        Measurement("copy out", _copy_of("out")),
        Measurement("transposed copy", _transposed),
    ),
)
