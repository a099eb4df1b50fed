"""Copies inside of a chip's memory between any two layouts of one shape, by kernels that only move bits.

    x[:, ::2] = y        kernel over (i, j): x[s0·i + s1·j] = y[t0·i + t1·j], with sizes and strides as operands

Compiled graphs write whole buffers. What they cannot write, a part of a tensor with others' numbers between its
elements, is computed elsewhere and copied there. Complex numbers and whatever dtype a chip has no arithmetic for are
copied, too: as integers of their size, or as floats by a chip without integers.
"""

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from smelt.base import events
from smelt.base.fast_dataclass import dataclass
from smelt.base.options import Options
from smelt.chips.launcher import ChipLauncher
from smelt.chips.runtime import ChipDevice
from smelt.codegen.build import CompiledKernel, compile_kernels, compile_unaligned
from smelt.dispatch.tensors import layout_of, memory_of
from smelt.ir.kernel import Axis, Buffer, Index, Kernel, Load, Role, Stage, Store
from smelt.symbolic.expressions import Expression, ShapeEnv, Symbol
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import SymSize, sym_size

Loop = tuple[int, int, int]
"""One dimension: its size, how far a step goes in the target, and in the source."""

_CARRIERS = (torch.uint8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64)
"""Dtypes that bits are moved as; the first of a size that the chip has."""


@dataclass(frozen=True, slots=True)
class _Version:
    """Code for a form of loops. It relies on facts of their sizes."""

    code: CompiledKernel
    kernel: Kernel
    numbers: tuple[Symbol, ...]  # sizes and strides that are operands, in the order of the loops

    def bound(self, code: CompiledKernel, numbers: Sequence[int]) -> tuple[CompiledKernel, list[int]]:
        """Code for the sizes of one copy, and what it is given of them."""
        values = dict(zip(self.numbers, numbers, strict=True)).__getitem__
        phases = tuple([replace(phase, blocks=_at(phase.blocks, values)) for phase in code.phases])
        workspaces = (_at(code.per_thread_workspace, values), _at(code.workspace, values))
        sizes = [int(each.evaluate(values)) for each in code.sizes]
        return replace(code, phases=phases, per_thread_workspace=workspaces[0], workspace=workspaces[1]), sizes


class StridedCopies:
    """Of one chip."""

    def __init__(self, device: ChipDevice) -> None:
        self._device = device
        self._versions: dict[Any, list[_Version]] = {}
        self._lock = threading.RLock()

    def forget(self) -> None:
        with self._lock:
            self._versions.clear()

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """The numbers of a tensor into the memory of another one of the same shape and dtype."""
        if not target.numel():
            return
        if _meet(target, source):
            source = self.dense(source)
        loops = _loops(target, source)
        size = target.element_size()
        if loops == [] or (len(loops) == 1 and loops[0][1:] == (1, 1)):
            count = size * (loops[0][0] if loops else 1)
            addresses = self._device.address_of(target), self._device.address_of(source)
            self._device.copy_within(*addresses, count)
            return
        carrier = self._carrier(size)
        if carrier is None:
            self._by_host(target, source)
            return
        if carrier.itemsize != size:
            scale = size // carrier.itemsize
            loops = [*((n, to * scale, of * scale) for n, to, of in loops), (scale, 1, 1)]
        self._run(loops, carrier, target, source)

    def dense(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy without gaps, laid out as PyTorch lays out copies."""
        like = torch.empty_like(torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta"))
        copy = self._device.new(tensor.shape, like.stride(), tensor.dtype)
        self.copy(copy, tensor)
        return copy

    def _carrier(self, size: int) -> torch.dtype | None:
        """The widest dtype of the chip's by which elements of so many bytes are copied; None if there is none."""
        has = self._device.target.dtypes
        fitting = [each for each in _CARRIERS if size % each.itemsize == 0]
        offered = [each for each in fitting if not has or str(each).removeprefix("torch.") in has]
        return max(offered, key=lambda each: each.itemsize, default=None)

    def _by_host(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """All that the target reaches over is read, and written with the source's numbers in it."""
        events.count("chip_fallbacks")
        host = self._device.to_host(target)
        host.copy_(self._device.to_host(source))
        self._device.write(target, host)

    def _run(self, loops: list[Loop], dtype: torch.dtype, target: torch.Tensor, source: torch.Tensor) -> None:
        form = (dtype, tuple([(_as_form(to), _as_form(of)) for _, to, of in loops]))
        numbers = [size for size, _, _ in loops]
        numbers += [step for loop in loops for step in loop[1:] if step > 1]
        with self._lock:
            versions = self._versions.setdefault(form, [])
            version = next((each for each in versions if _fits(each, numbers)), None)
            if version is None:
                version = self._compiled(loops, dtype, numbers)
                versions.append(version)
        code, sizes = version.bound(version.code, numbers)

        def unaligned() -> CompiledKernel:
            return version.bound(compile_unaligned(version.kernel), numbers)[0]

        buffers: list[Any] = [source, target]
        if sizes:
            buffers.append(torch.tensor(sizes, dtype=torch.int64))
        ChipLauncher(self._device, code, unaligned)(1, *buffers)

    def _compiled(self, loops: list[Loop], dtype: torch.dtype, numbers: list[int]) -> _Version:
        shape_env = ShapeEnv()
        symbols = tuple([shape_env.symbol(f"n{place}", number) for place, number in enumerate(numbers)])
        kernel = _kernel(loops, dtype, iter([sym_size(shape_env, Expression.of(each)) for each in symbols]))
        kernel = replace(kernel, target=self._device.name)
        (code,) = compile_kernels([kernel], Options()).values()
        return _Version(code, kernel, symbols)


def _at(size: Size, values: Any) -> int:
    return int(size.evaluate(values) if isinstance(size, SymSize) else size)


def _fits(version: _Version, numbers: list[int]) -> bool:
    values = dict(zip(version.numbers, numbers, strict=True))
    return all(fact.holds(values.__getitem__) for fact in version.code.facts)


def _as_form(step: int) -> int:
    """Steps of 0 and 1 are part of the code, others operands."""
    return min(step, 2)


def _kernel(loops: list[Loop], dtype: torch.dtype, numbers: Any) -> Kernel:
    axes = tuple([Axis(f"i{place}", next(numbers)) for place in range(len(loops))])
    to: list[tuple[str, Size]] = []
    of: list[tuple[str, Size]] = []
    spans: list[Size] = [1, 1]
    for axis, (_, *steps) in zip(axes, loops, strict=True):
        for place, (terms, step) in enumerate(zip((to, of), steps, strict=True)):
            if step == 0:
                continue
            known = next(numbers) if step > 1 else 1
            terms.append((axis.name, known))
            spans[place] = spans[place] + (axis.size - 1) * known
    buffers = (Buffer("source", dtype, spans[1], Role.INPUT), Buffer("target", dtype, spans[0], Role.OUTPUT))
    body = (Load("value", "source", Index(tuple(of))), Store("target", Index(tuple(to)), "value"))
    return Kernel("strided_copy", axes[:-1], axes[-1:], buffers, (Stage(True, body),))


def _loops(target: torch.Tensor, source: torch.Tensor) -> list[Loop]:
    """The dimensions from the outermost to the innermost of the target; what can be one loop is one."""
    dims = [
        (size, to, of)
        for size, to, of in zip(target.shape, target.stride(), source.stride(), strict=True)
        if size != 1
    ]
    dims.sort(key=lambda dim: -dim[1])
    loops: list[Loop] = []
    for size, to, of in reversed(dims):
        if loops and (to, of) == (loops[-1][0] * loops[-1][1], loops[-1][0] * loops[-1][2]):
            loops[-1] = (size * loops[-1][0], *loops[-1][1:])
        else:
            loops.append((size, to, of))
    return loops[::-1]


def _meet(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors may share elements, each at another place."""
    if memory_of(one) is not memory_of(other) or layout_of(one)[:3] == layout_of(other)[:3]:
        return False
    (first, last), (begin, end) = (_extent(each) for each in (one, other))
    return first < end and begin < last


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    shape, stride, offset, dtype = layout_of(tensor)
    last = offset + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    return offset * dtype.itemsize, (last + 1) * dtype.itemsize
