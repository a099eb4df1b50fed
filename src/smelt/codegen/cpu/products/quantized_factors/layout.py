"""Where the integers of a quantized factor, its scales and the other factor are read as the sum runs."""

from collections.abc import Sequence
from typing import TypeVar

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu.entry_points import params
from smelt.codegen.cpu.products.problem import Problem, ProductAxis
from smelt.codegen.cpu.products.streamed_blocks import StreamedBlock, as_matrices
from smelt.codegen.loops.arrays import Array
from smelt.codegen.loops.builder import Builder
from smelt.ir.kernel import Quantized
from smelt.ir.loops import Value
from smelt.ir.tensorspec import short_name
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import is_symsize, known_equal

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Layout:
    """How the sum runs: `groups`, of `units` contiguous bytes each. Steps in the left factor: from one group to the
    next, from one byte to the next, and to what each integer of a byte is multiplied with. Steps in the right factor
    are in bytes. `scales`: from one group to the next in each element read beside the integers, and `left_scale` in the
    scale of a left factor of bytes."""

    groups: int
    units: int
    group_left: Size
    unit_left: Size
    parts: tuple[Size, ...]
    group_right: Size
    scales: tuple[Size, ...]
    left_scale: Size = 0


class Beside:
    """What is read beside integers: scales, then zero points and minima, if there are any. A function of blocks takes
    the address of each, the step from one row to the next and, if it reads them `along` the sum, from one group to the
    next: these are its `params`."""

    def __init__(self, problem: Problem, block: StreamedBlock, *, along: bool = True) -> None:
        quantized = problem.contract.right.quantized
        assert quantized is not None
        self.quantized, self.block, self.column = quantized, block, problem.n[0].name
        self.dtypes = dtypes = [each.dtype for each in block.elements]
        step = ", i64 along{0}" if along else ""
        self.params = [params(f"ptr element{{0}}, i64 across{{0}}{step}".format(n)) for n in range(len(dtypes))]

    @property
    def all_params(self) -> tuple[Value, ...]:
        return tuple(value for each in self.params for value in each)

    @property
    def text(self) -> str:
        """For names of functions: "scale_f32.zero_u8"."""
        present = [name for name in ("scale", "zero", "low") if getattr(self.quantized, name) is not None]
        return ".".join(f"{name}_{short_name(dtype)}" for name, dtype in zip(present, self.dtypes, strict=True))

    def args(self, layout: Layout) -> list[Value | Size]:
        """What the function is given for the block."""
        args: list[Value | Size] = []
        read = zip(self.block.elements, self.quantized.elements, layout.scales, self.params, strict=True)
        for array, element, along, taken in read:
            args += (array.pointer, element.index.stride(self.column), along)[: len(taken)]
        return args

    def arrays(self, b: Builder, rows: Sequence[Value]) -> list[list[Array]]:
        """Where each begins at some rows."""
        return [
            [Array(b, each[0], dtype).at(b.mul(row, each[1])) for row in rows]
            for each, dtype in zip(self.params, self.dtypes, strict=True)
        ]

    def apart(self, numbers: Sequence[_T]) -> tuple[_T, _T | None, _T | None]:
        """The scale, the zero point and the minimum."""
        scale, *others = numbers
        zero = others.pop(0) if self.quantized.zero is not None else None
        return scale, zero, others[0] if others else None


def oriented(problem: Problem) -> Problem:
    """With the quantized factor on the right. If both are, bytes with nothing but a scale are on the left."""
    left, right = (factor.quantized for factor in problem.contract.factors)
    if left is not None and (right is None or (is_scaled_bytes(right) and not is_scaled_bytes(left))):
        problem = problem.transposed()
    return as_matrices(problem)


def is_scaled_bytes(quantized: Quantized) -> bool:
    """Whether integers are signed bytes that are only scaled."""
    return quantized.kind == "i8" and not quantized.offset and len(quantized.elements) == 1


def layout_of(problem: Problem) -> Layout | str:
    """How the sum runs, or the reason why not along the integers of a row."""
    quantized = problem.contract.right.quantized
    assert quantized is not None
    axes = list(problem.k)
    parts: tuple[Size, ...] = (0,)
    if any(is_symsize(size) for axis in axes for size in (axis.size, axis.left, axis.right)):
        return "how long the sum is varies"
    if not quantized.is_packed:
        units, axes = _taken(axes, 1), [axis for axis in axes if axis.right != 1]
        unit_size, unit_left = (units.size, units.left) if units else (0, 0)
    else:
        half = next((axis for axis in axes if axis.size == 2 and abs(axis.right) == 1), None)
        rest = [axis for axis in axes if axis is not half]
        units = _taken(rest, 2)
        if half is not None and units is not None:
            parts = (0, half.left) if half.right == 1 else (half.left, 0)
            axes = [axis for axis in rest if axis is not units]
            unit_size, unit_left = units.size, units.left
        else:
            run = _taken(axes, 1)
            if run is None or run.size % 2:
                return "the integers of a byte are apart in the sum"
            parts, axes = (0, run.left), [axis for axis in axes if axis is not run]
            unit_size, unit_left = run.size // 2, 2 * run.left
            units = run
    if units is None:
        return "the right factor is not contiguous along the sum"
    if len(axes) > 1:
        return "the sum is over several axes"
    outer = axes[0] if axes else ProductAxis("", 1, 0, 0)
    packed = 2 if quantized.is_packed else 1
    rows = [axis.right for axis in (*problem.n, *problem.batch)]
    start = problem.contract.right.index.offset - first_half(problem)
    if any(not known_equal(step % packed, 0) for step in (*rows, outer.right, start)):
        return "rows start within a byte"
    inner = {axis.name for axis in problem.k} - {outer.name}
    of_left = problem.contract.left.quantized.elements if problem.contract.left.quantized else ()
    if any(inner & each.index.axes for each in (*quantized.elements, *of_left)):
        return "scales differ within a group"
    scales = tuple(each.index.stride(outer.name) for each in quantized.elements)
    left_scale = of_left[0].index.stride(outer.name) if of_left else 0
    group_right = outer.right // packed
    return Layout(int(outer.size), int(unit_size), outer.left, unit_left, parts, group_right, scales, left_scale)


def first_half(problem: Problem) -> int:
    """1 where the sum begins with the upper half of a byte, and goes back to the lower one."""
    return int(any(axis.right == -1 for axis in problem.k))


def _taken(axes: list[ProductAxis], step: int) -> ProductAxis | None:
    """The axis along which the right factor moves by `step`."""
    return next((axis for axis in axes if known_equal(axis.right, step)), None)


def left_vectors(b: Builder, dtype: torch.dtype, start: Array, layout: Layout, unit: Value, lanes: int) -> list[Value]:
    """What a vector of bytes is multiplied with: for each integer of a byte an element for each lane."""
    step, here = layout.unit_left, start.at(b.mul(unit, layout.unit_left))
    if step == 2 and layout.parts == (0, 1):
        both = here.load_as(dtype, 0, 2 * lanes)
        return [b.permute(both, range(side, 2 * lanes, 2)) for side in (0, 1)]
    if known_equal(step, 1):
        return [here.at(part).load_as(dtype, 0, lanes) for part in layout.parts]
    return [b.gathered([here.load_as(dtype, part + lane * step) for lane in range(lanes)]) for part in layout.parts]
