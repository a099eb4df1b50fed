"""What launches a compiled kernel on a chip: tensors become addresses, numbers that the host has are passed along."""

from collections.abc import Callable
from typing import Any

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.chips.runtime import ChipDevice, ChipMemory
from smelt.device import Grid, Launch
from smelt.ir.kernel_code import KernelCode

ALIGNMENT = 16
"""In bytes, of every buffer that code for grids takes."""


@dataclass(frozen=True, slots=True)
class _Operands:
    """What one launch is given: addresses, numbers by their places, and sizes."""

    buffers: tuple[int, ...]
    numbers: tuple[tuple[int, int], ...]
    sizes: tuple[int, ...]


class ChipLauncher:
    """Called as `_native.Runner` calls kernels: with a number of threads, which chips do not need, and tensors."""

    def __init__(self, device: ChipDevice, code: KernelCode, unaligned: Callable[[], KernelCode] | None) -> None:
        self._device = device
        self._code = code
        self._unaligned = unaligned if code.phases else None  # one function takes buffers anywhere
        self._other: ChipLauncher | None = None
        self._has_grids = bool(code.phases)
        self._numbers = code.numbers  # code for grids takes numbers at these places, one function anywhere

    def __call__(self, threads: int, *tensors: torch.Tensor) -> None:
        sizes: tuple[int, ...] = ()
        if self._code.size_count:
            sizes = tuple(tensors[-1].tolist())
            tensors = tensors[:-1]
        staged: list[ChipMemory] = []  # given back once they are launched: what is asked for later comes later
        buffers: list[int] = []
        numbers: list[tuple[int, int]] = []
        for place, tensor in enumerate(tensors):
            ours = tensor.device.type == self._device.name
            if self._takes_number(place) if self._has_grids else not ours and tensor.numel() == 1:
                numbers.append((place, _bits(self._device.to_host(tensor) if ours else tensor)))
                buffers.append(0)
            else:
                buffers.append(self._device.address_of(tensor) if ours else self._staged(tensor, staged))
        operands = _Operands(tuple(buffers), tuple(numbers), sizes)
        if self._unaligned is not None and any(each % ALIGNMENT for each in buffers):
            if self._other is None:
                self._other = ChipLauncher(self._device, self._unaligned(), None)
            self._other._launch(operands)
        else:
            self._launch(operands)

    def _takes_number(self, place: int) -> bool:
        return place < len(self._numbers) and self._numbers[place] > 0

    def _staged(self, tensor: torch.Tensor, staged: list[ChipMemory]) -> int:
        staged.append(self._device.stage(tensor))
        return staged[-1].address

    def _launch(self, operands: _Operands) -> None:
        device, code = self._device, self._code
        # Code for the sizes at hand has a buffer where other code has sizes, and does not read it.
        unread = code.buffers - bool(code.size_count) - len(operands.buffers)
        buffers, sizes = (*operands.buffers, *[0] * unread), operands.sizes if code.size_count else ()
        if not code.phases:
            needed: Any = code.per_thread_workspace
            workspace = device.scratch(int(needed)) if needed else 0
            device.launch(code.loaded, Launch(code.symbol, buffers, sizes, workspace, numbers=operands.numbers))
            return
        workspace = device.scratch(int(code.workspace)) if code.workspace else 0
        for phase in code.phases:
            grid = Grid(int(phase.blocks), phase.threads, phase.shared_bytes)
            device.launch(code.loaded, Launch(phase.symbol, buffers, sizes, workspace, grid, operands.numbers))


def _bits(tensor: torch.Tensor) -> int:
    """Of a number that the host has."""
    whole = tensor.reshape(1).view(torch.uint8).numpy().tobytes()
    return int.from_bytes(whole, "little")
