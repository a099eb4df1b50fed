"""The memory of a part of a kernel: buffers, private arrays side by side in its workspace, and addresses of elements.

    scratch e: f32[1024], accumulate y: f32[10]   →   e at 0, y's sums at 4608, 5184 bytes for each thread
    x[100*i + j]     once per row: x + 100*i        at each point: that plus j, for `lanes` elements from there on
"""

from collections.abc import Mapping, Sequence
from dataclasses import field

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu import online_softmax, row_accumulators, scans, scatters
from smelt.codegen.cpu.schedule import SchedulePlan
from smelt.codegen.loops.builder import Builder, param
from smelt.codegen.loops.scalars import memory_kind
from smelt.ir.check_kernel import value_dtypes
from smelt.ir.kernel import Axis, Index, Role, Scatter
from smelt.ir.loops import Value
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import is_symsize

_ALIGN = 64
_APART = 512  # bytes between private arrays: loads that lie 4 KiB behind a store, or 8, may wait for it


def aligned(size: Size) -> Size:
    return (size + _ALIGN - 1) // _ALIGN * _ALIGN


def laid_out(sizes: Mapping[str, Size], apart: int = _APART) -> tuple[dict[str, Size], Size]:
    """Arrays of so many bytes one behind the other: where each begins, and where all end."""
    places: dict[str, Size] = {}
    end: Size = 0
    for name, size in sizes.items():
        places[name] = end
        end += aligned(size) + apart
    return places, end


@dataclass(slots=True)
class WorkspaceLayout:
    """Arrays a part touches: the kind each holds, and for private ones (scratch, accumulators) a byte offset."""

    kinds: dict[str, str]
    offsets: dict[str, Size]
    size: Size

    @classmethod
    def of(cls, plan: SchedulePlan) -> "WorkspaceLayout":
        kinds = {buffer.name: memory_kind(buffer.dtype) for buffer in plan.kernel.buffers}
        private = [(b.name, b.dtype, b.size) for b in plan.kernel.buffers if b.role is Role.SCRATCH]
        for fold in plan.accumulators:
            private += [(name, dtype, row_accumulators.padded(fold)) for name, dtype in fold.arrays]
        dtypes = value_dtypes(plan.kernel)
        for scan in scans.scans(plan.kernel):
            if scan.axis == plan.kernel.cols[-1].name:
                continue  # carried from vector to vector
            state = scans.State.of(scan, dtypes[scan.value], plan.kernel.cols)
            private.append((state.name, state.dtype, state.size))
        if plan.online is not None and plan.online.third is not None:
            count = plan.width // online_softmax.block_of(plan.lanes) + 2  # one begun, and the last vector
            private.append((online_softmax.REFERENCES, torch.float32, count))
        for put in [i for i in plan.kernel.instructions() if isinstance(i, Scatter)]:
            private.append((scatters.nowhere(put.buffer), plan.kernel.buffer(put.buffer).dtype, plan.lanes))
        kinds |= {name: memory_kind(dtype) for name, dtype, _ in private}
        return cls(kinds, *laid_out({name: count * dtype.itemsize for name, dtype, count in private}))


@dataclass(slots=True)
class Addresses:
    """Addresses at the current position of a part's loops."""

    b: Builder
    plan: SchedulePlan
    layout: WorkspaceLayout
    pointers: dict[str, Value] = field(default_factory=dict)  # buffer or array of the workspace → its first element
    axes: dict[str, Value] = field(default_factory=dict)  # axis → where the loops stand now
    rows: dict[tuple[str, Index], Value] = field(default_factory=dict)  # addresses that hold for the whole row
    lanes: int = 1  # how many points along the last col axis are computed at once

    def load_pointers(self) -> None:
        for number, buffer in enumerate(self.plan.kernel.parameters):
            self.pointers[buffer.name] = self.b.load_pointer(number)
        for name, offset in self.layout.offsets.items():
            self.pointers[name] = self.b.element(param("mine", "ptr"), "i8", offset)

    @property
    def vector_axis(self) -> str:
        return self.plan.kernel.cols[-1].name if self.plan.kernel.cols else ""

    def lane_stride(self, index: Index) -> Size:
        """How far apart the elements of two lanes are."""
        return index.stride(self.vector_axis) if self.lanes > 1 else 0

    def offset(self, index: Index) -> Value:
        """How far the first lane is from the first element."""
        return self.add(self._row_offset(index), self._col_offset(index))

    def add(self, left: Value, right: Value | None) -> Value:
        return left if right is None else self.b.add(left, right)

    def terms(self, index: Index, axes: Sequence[Axis]) -> Value | None:
        """What `axes` add to an offset; None for nothing."""
        total: Value | None = None
        for axis in axes:
            stride = index.stride(axis.name)
            if stride:
                step = self.axes[axis.name] if stride == 1 else self.b.mul(self.axes[axis.name], stride)
                total = step if total is None else self.b.add(total, step)
        return total

    def _row_offset(self, index: Index) -> Value:
        base = self.b.const("i64", index.offset)
        total = self.terms(index, self.plan.kernel.rows)
        if total is None:
            return base
        return self.b.add(total, base) if index.offset else total

    def _col_offset(self, index: Index) -> Value | None:
        return self.terms(index, self.plan.kernel.cols)

    def of_row(self, array: str, index: Index) -> Value:
        """The address with the row's part of `index`, computed once per row."""
        key = (array, index)
        if key not in self.rows:
            kind = self.layout.kinds[array]
            self.rows[key] = self.b.element(self.pointers[array], kind, self._row_offset(index))
        return self.rows[key]

    def of(self, array: str, index: Index) -> Value:
        """The address of the first lane."""
        offset = self._col_offset(index)
        base = self.of_row(array, index)
        return base if offset is None else self.b.element(base, self.layout.kinds[array], offset)

    def of_lanes(self, array: str, index: Index, stride: Size, skipped: int = 0) -> list[Value]:
        """Each lane's address, but for so many at the beginning."""
        first = self.of(array, index)
        kind = self.layout.kinds[array]
        lanes = range(skipped, self.lanes)
        if is_symsize(stride):
            step = self.b.const("i64", stride)
            return [self.b.element(first, kind, self.b.mul(step, lane)) if lane else first for lane in lanes]
        return [self.b.element(first, kind, lane * stride) for lane in lanes]

    def of_last_lane(self, array: str, index: Index) -> Value:
        """The lowest address, for lanes whose stride is -1."""
        return self.b.element(self.of(array, index), self.layout.kinds[array], 1 - self.lanes)
