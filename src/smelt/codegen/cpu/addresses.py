"""Computes the addresses of the elements that a kernel reads and writes: loop positions → offsets → addresses.

    x[100*i + j]     once per row: x + 100*i        at each point: that plus j, for `lanes` elements from there on
"""

from collections.abc import Sequence
from dataclasses import field

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu.schedule import SchedulePlan
from smelt.codegen.cpu.workspace import WorkspaceLayout
from smelt.codegen.loops.builder import Builder, param
from smelt.ir.kernel import Axis, Index
from smelt.ir.loops import Value
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import is_symsize


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
