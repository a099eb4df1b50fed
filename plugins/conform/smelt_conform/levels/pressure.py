"""Level `pressure`: programs that fill the memory, run out of it and continue, and long runs."""

import gc
from typing import Any

import torch
from torch import nn

from smelt.device.host_library import HOST
from smelt_conform.bench import Bench, NotOffered, expect, numbers, same
from smelt_conform.check import Check, Level


def _out_of_memory(bench: Bench) -> None:
    """A tensor that is too large raises PyTorch's error; existing tensors stay intact."""
    held = numbers(bench.name, 1000)
    try:
        torch.empty(1 << 48, device=bench.name)
    except torch.OutOfMemoryError:
        pass
    else:
        expect(False, "a tensor of a petabyte was created")
    same(held * 2, numbers(HOST.type, 1000) * 2, "a result computed after memory ran out")


def _full(bench: Bench) -> None:
    """Fill the memory, free half of it, fill it again."""
    total = bench.target.memory_bytes
    if not total:
        raise NotOffered("Target.memory_bytes does not say how much there is")
    piece = max(1 << 20, total // 16)

    def fill() -> list[int]:
        addresses: list[int] = []
        try:
            while len(addresses) < 16:
                addresses.append(bench.allocate(piece))
        except MemoryError:
            pass
        return addresses

    first = fill()
    expect(
        len(first) >= 8, f"{len(first)} pieces of a sixteenth of the memory fit: less than half of it is usable"
    )
    for address in first[::2]:
        bench.free(address)
    again = len(fill())
    expect(again >= len(first[::2]), f"every second of {len(first)} pieces was freed, and only {again} fit again")


def _fragments(bench: Bench) -> None:
    """Allocate many sizes and free some of them: live allocations do not overlap."""
    held: dict[int, tuple[int, int]] = {}
    for step in range(300):
        size = (step * 7919) % 20_000 + 1
        address = bench.put(bytes([step % 251]) * size)
        held[step] = (address, size)
        if step % 3:
            oldest_or_newest = min(held) if step % 2 else max(held)
            bench.free(held.pop(oldest_or_newest)[0])
    for step, (address, size) in held.items():
        expect(bench.get(address, size) == bytes([step % 251]) * size, f"allocation {step} was overwritten by others")


def _long_run(bench: Bench) -> None:
    """Memory in use does not grow from one training step to the next."""
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).to(bench.name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    used = []
    for step in range(60):
        optimizer.zero_grad()
        model(numbers(bench.name, 32, 64, seed=step)).square().mean().backward()
        optimizer.step()
        used.append(bench.device.bytes)
    expect(used[-1] <= used[5], f"{used[5]} bytes were in use after 6 steps, {used[-1]} after 60")


def _freed(bench: Bench) -> None:
    gc.collect()
    before = bench.device.allocations

    def program() -> Any:
        x = numbers(bench.name, 64, 64).requires_grad_()
        loss: Any = (x @ x).softmax(-1).square().sum()
        loss.backward()
        return x.grad

    program()
    gc.collect()
    left = bench.device.allocations - before
    expect(left <= 1, f"{left} allocations are in use after all tensors are gone")  # one is kept for kernels


def _large(bench: Bench) -> None:
    """Tensors of up to 64 MiB, as far as they fit."""
    total = bench.target.memory_bytes or 1 << 30
    count = min(64 << 20, total // 64) // 4 * 4
    x = torch.zeros(count // 4, device=bench.name)
    x[-1], x[0] = 3.0, 2.0
    y = x + 1
    whole = y.cpu()
    values = [whole[0].item(), whole[1].item(), whole[-2].item(), whole[-1].item(), y[-1].item(), x.sum().item()]
    expect(values == [3.0, 1.0, 1.0, 4.0, 4.0, 5.0], f"the ends of a tensor of {count} bytes plus 1 are {values}")


LEVEL = Level(
    "pressure",
    "Memory pressure",
    (
        Check(
            "out_of_memory",
            "running out of memory raises PyTorch's error",
            "allocate(): raise MemoryError",
            _out_of_memory,
        ),
        Check("large", "every element of a large tensor is correct", "sizes and offsets of 64 bits", _large),
        Check(
            "full",
            "all memory can be allocated, and freed memory again",
            "free(): return all of it; fragmentation",
            _full,
        ),
        Check(
            "fragments", "allocations of many sizes do not overlap", "allocate(): the list of free blocks", _fragments
        ),
        Check("long_run", "memory in use does not grow during training", "free()", _long_run),
        Check("given_back", "memory is freed when tensors die", "free()", _freed),
    ),
)
