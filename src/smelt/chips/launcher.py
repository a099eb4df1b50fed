"""What launches a compiled kernel on a chip: tensors become addresses, numbers of the host's are copied there first."""

from collections.abc import Callable
from typing import Any

import torch

from smelt.chips.runtime import ChipDevice, ChipMemory
from smelt.device import Grid
from smelt.ir.kernel_code import KernelCode

ALIGNMENT = 16
"""In bytes, of every buffer that code for grids takes."""


class ChipLauncher:
    """Called as `_native.Runner` calls kernels: with a number of threads, which chips do not need, and tensors."""

    def __init__(self, device: ChipDevice, code: KernelCode, unaligned: Callable[[], KernelCode] | None) -> None:
        self._device = device
        self._code = code
        self._unaligned = unaligned if code.phases else None  # one function takes buffers anywhere
        self._other: ChipLauncher | None = None

    def __call__(self, threads: int, *tensors: torch.Tensor) -> None:
        sizes: tuple[int, ...] = ()
        if self._code.size_count:
            sizes = tuple(tensors[-1].tolist())
            tensors = tensors[:-1]
        staged: list[ChipMemory] = []  # given back once they are launched: what is asked for later comes later
        buffers = tuple([self._address(each, staged) for each in tensors])
        if self._unaligned is not None and any(each % ALIGNMENT for each in buffers):
            if self._other is None:
                self._other = ChipLauncher(self._device, self._unaligned(), None)
            self._other._launch(buffers, sizes)
        else:
            self._launch(buffers, sizes)

    def _address(self, tensor: torch.Tensor, staged: list[ChipMemory]) -> int:
        if tensor.device.type == self._device.name:
            return self._device.address_of(tensor)
        staged.append(self._device.stage(tensor))
        return staged[-1].address

    def _launch(self, buffers: tuple[int, ...], sizes: tuple[int, ...]) -> None:
        device, code = self._device, self._code
        if not code.phases:
            needed: Any = code.per_thread_workspace
            workspace = device.scratch(int(needed)) if needed else 0
            device.launch(code.loaded, code.symbol, buffers, sizes, workspace, Grid())
            return
        workspace = device.scratch(int(code.workspace)) if code.workspace else 0
        for phase in code.phases:
            grid = Grid(int(phase.blocks), phase.threads, phase.shared_bytes)
            device.launch(code.loaded, phase.symbol, buffers, sizes, workspace, grid)
