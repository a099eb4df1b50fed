"""Where the integers of a quantized factor, its scales and the other factor are read as the sum runs."""

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu.products.problem import Problem, ProductAxis
from smelt.codegen.cpu.products.streamed_blocks import as_matrices
from smelt.codegen.loops.arrays import Array
from smelt.codegen.loops.builder import Builder
from smelt.ir.kernel import Quantized
from smelt.ir.loops import Value
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import is_symsize, known_equal


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
