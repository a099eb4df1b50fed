"""The memory of a part of a kernel: buffers, private arrays side by side in its workspace, and addresses of elements.

    scratch e: f32[1024], accumulate y: f32[10]   →   e at 0, y's sums at 4608, 5184 bytes for each thread
    x[100*i + j]     once per row: x + 100*i        at each point: that plus j, for `lanes` elements from there on
"""

from collections.abc import Mapping, Sequence
from dataclasses import field

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu import online_softmax, row_accumulators, scans, scatters
from smelt.codegen.cpu.schedule import LoopSchedule
from smelt.codegen.loops.arrays import Array
from smelt.codegen.loops.builder import Builder, param
from smelt.ir.check_kernel import value_dtypes
from smelt.ir.kernel import Axis, Index, Kernel, Role, Scatter
from smelt.ir.loops import Value
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import is_symsize

MINE = param("mine", "ptr")  # the workspace of a part
_ALIGN = 64
_APART = 512  # bytes between private arrays: loads that lie 4 KiB behind a store, or 8, may wait for it


@dataclass(frozen=True, slots=True)
class Workspace:
    """Private arrays of a part, one behind the other: the byte where each begins, and its dtype."""

    places: dict[str, tuple[Size, torch.dtype]]
    size: Size

    @classmethod
    def of(cls, lengths: Mapping[str, tuple[Size, torch.dtype]], apart: int = _APART) -> "Workspace":
        """Of arrays with so many elements of a dtype each."""
        places: dict[str, tuple[Size, torch.dtype]] = {}
        end: Size = 0
        for name, (length, dtype) in lengths.items():
            places[name] = end, dtype
            end += (length * dtype.itemsize + _ALIGN - 1) // _ALIGN * _ALIGN + apart
        return cls(places, end)

    @classmethod
    def of_loops(cls, plan: LoopSchedule) -> "Workspace":
        """The scratch of a kernel, and what its reductions and scatters keep."""
        kernel, dtypes = plan.kernel, value_dtypes(plan.kernel)
        lengths = {b.name: (b.size, b.dtype) for b in kernel.buffers if b.role is Role.SCRATCH}
        for fold in plan.accumulators:
            lengths |= {name: (row_accumulators.padded(fold), dtype) for name, dtype in fold.arrays}
        for scan in scans.scans(kernel):
            if scan.axis != kernel.cols[-1].name:  # that is carried from vector to vector
                state = scans.State.of(scan, dtypes[scan.value], kernel.cols)
                lengths[state.name] = state.size, state.dtype
        if plan.online is not None and plan.online.third is not None:
            count = plan.width // online_softmax.block_of(plan.lanes) + 2  # one begun, and the last vector
            lengths[online_softmax.REFERENCES] = count, torch.float32
        for put in [i for i in kernel.instructions() if isinstance(i, Scatter)]:
            lengths[scatters.nowhere(put.buffer)] = plan.lanes, kernel.buffer(put.buffer).dtype
        return cls.of(lengths)

    def array(self, b: Builder, name: str) -> Array:
        place, dtype = self.places[name]
        return Array(b, b.element(MINE, "i8", place), dtype)

    def arrays(self, b: Builder) -> dict[str, Array]:
        return {name: self.array(b, name) for name in self.places}


def parameters(b: Builder, kernel: Kernel) -> dict[str, Array]:
    """The buffers that a function is given, by name."""
    return {each.name: Array(b, b.load_pointer(place), each.dtype) for place, each in enumerate(kernel.parameters)}


@dataclass(slots=True)
class Addresses:
    """Addresses at the current position of a part's loops."""

    b: Builder
    kernel: Kernel
    arrays: dict[str, Array]  # buffers, and arrays of the workspace
    axes: dict[str, Value] = field(default_factory=dict)  # axis → where the loops stand now
    rows: dict[tuple[str, Index], Array] = field(default_factory=dict)  # what holds for the whole row
    lanes: int = 1  # how many points along the last col axis are computed at once

    @classmethod
    def begin(cls, b: Builder, kernel: Kernel, workspace: Workspace) -> "Addresses":
        return cls(b, kernel, parameters(b, kernel) | workspace.arrays(b))

    @property
    def vector_axis(self) -> str:
        return self.kernel.cols[-1].name if self.kernel.cols else ""

    def lane_stride(self, index: Index) -> Size:
        """How far apart the elements of two lanes are."""
        return index.stride(self.vector_axis) if self.lanes > 1 else 0

    def offset(self, index: Index) -> Value:
        """How far the first lane is from the first element."""
        return self.add(self._row_offset(index), self.terms(index, self.kernel.cols))

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
        total = self.terms(index, self.kernel.rows)
        if total is None:
            return base
        return self.b.add(total, base) if index.offset else total

    def of_row(self, array: str, index: Index) -> Array:
        """The element with the row's part of `index`, computed once per row."""
        key = (array, index)
        if key not in self.rows:
            self.rows[key] = self.arrays[array].at(self._row_offset(index))
        return self.rows[key]

    def of(self, array: str, index: Index) -> Array:
        """The element of the first lane."""
        offset = self.terms(index, self.kernel.cols)
        base = self.of_row(array, index)
        return base if offset is None else base.at(offset)

    def of_lanes(self, array: str, index: Index, stride: Size, skipped: int = 0) -> list[Array]:
        """Each lane's element, but for so many at the beginning."""
        first = self.of(array, index)
        lanes = range(skipped, self.lanes)
        if is_symsize(stride):
            step = self.b.const("i64", stride)
            return [first.at(self.b.mul(step, lane)) if lane else first for lane in lanes]
        return [first.at(lane * stride) for lane in lanes]

    def of_last_lane(self, array: str, index: Index) -> Array:
        """The lowest element, for lanes whose stride is -1."""
        return self.of(array, index).at(1 - self.lanes)
