"""`LibraryProduct`: a contraction as a library multiplies matrices; `LibraryCall`: the same as a launch knows it.

    p = contract (k:768) x[768*i + k], w[768*j + k]; store y[3072*i + j] = p
    →  128 × 3072 × 768, x by strides (768, 1), w by (1, 768), y by (3072, 1)

A library takes two matrices that are contiguous along rows or columns, a batch of them at equal distances, and a vector
that is added to each row of the result. Axes that every index walks as one are one.
"""

from collections.abc import Iterable, Sequence

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.ir.kernel import Axis, Contract, Factor, Index, Kernel
from smelt.symbolic.shapes import Size, product
from smelt.symbolic.symsize import hint, is_symsize, known_equal

# Multiplications that are worth a call of the library, beside a kernel of our own with all that follows in it.
LEAST_WORK = 1 << 21
_SUMMED_IN = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
}
_MOST_BATCHES = 2


@dataclass(frozen=True, slots=True)
class Operand:
    """A matrix in a buffer: `offset` and strides in elements, along its rows, its cols and both axes of the batch."""

    buffer: str
    dtype: torch.dtype
    offset: Size
    row: Size
    col: Size
    batch: tuple[Size, Size]


@dataclass(frozen=True, slots=True)
class LibraryProduct:
    """`result` (rows × cols) = `left` (rows × terms) · `right` (terms × cols) for each of a batch, which has two axes.
    `bias`: a vector that is added to each row, without a batch."""

    rows: Size
    cols: Size
    terms: Size
    batch: tuple[Size, Size]
    left: Operand
    right: Operand
    result: Operand
    bias: Operand | None = None

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (self.left, self.right, self.result, *((self.bias,) if self.bias is not None else ()))


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """A product that a library may compute instead of so many grids. `places`: of each operand of it, the buffer by its
    place among the kernel's, the workspace coming last, and the first byte there."""

    product: LibraryProduct
    grids: int
    places: tuple[tuple[int, Size], ...]

    @property
    def numbers(self) -> tuple[Size, ...]:
        """All that may vary: the sizes, then of each operand its first byte and its strides."""
        numbers = [self.product.rows, self.product.cols, self.product.terms, *self.product.batch]
        for operand, (_, first) in zip(self.product.operands, self.places, strict=True):
            numbers += [first, operand.row, operand.col, *operand.batch]
        return tuple(numbers)


def is_library_product(contract: Contract, kernel: Kernel) -> bool:
    """Whether there is a library's product for a contraction, wherever its result goes."""
    dtypes = {kernel.buffer(factor.buffer).dtype for factor in contract.factors}
    if len(dtypes) != 1 or _SUMMED_IN.get(dtypes.pop()) is not contract.dtype:
        return False
    work = product(hint(axis.size) for axis in (*kernel.rows, *kernel.cols, *contract.axes))
    return work >= LEAST_WORK and not any(factor.bounds for factor in contract.factors)


def sides(contract: Contract, axes: Sequence[Axis]) -> tuple[list[Axis], list[Axis], list[Axis]]:
    """The axes that only the left factor names, those that only the right one does, and the others."""
    left, right = (factor.index.axes for factor in contract.factors)
    rows = [axis for axis in axes if axis.name in left - right]
    cols = [axis for axis in axes if axis.name in right - left]
    return rows, cols, [axis for axis in axes if axis not in rows and axis not in cols]


def library_product(
    contract: Contract, kernel: Kernel, buffer: str, dtype: torch.dtype, at: Index
) -> LibraryProduct | None:
    """The product of a contraction whose result goes to `buffer`, by an index over the kernel's axes; None if a library
    has none."""
    if not is_library_product(contract, kernel):
        return None
    rows, cols, batch = sides(contract, kernel.rows + kernel.cols)
    left, right = contract.factors
    if buffer in (left.buffer, right.buffer):
        return None
    lines = [_merged(axes, indices) for axes, indices in (
        (rows, (left.index, at)), (cols, (right.index, at)), (contract.axes, (left.index, right.index)),
    )]  # fmt: skip
    if any(len(each) > 1 for each in lines):
        return None
    (row_count, of_rows), (col_count, of_cols), (terms, along) = (each[0] if each else (1, (1, 1)) for each in lines)
    batches = sorted(_merged(batch, (left.index, right.index, at)), key=lambda each: hint(each[0]))
    if len(batches) > _MOST_BATCHES:
        return None
    several = [*[(1, (0, 0, 0))] * (_MOST_BATCHES - len(batches)), *batches]
    outer, inner = several

    def operand(place: int, factor: Factor | None, row: Size, col: Size) -> Operand:
        steps = inner[1][place], outer[1][place]
        if factor is None:
            return Operand(buffer, dtype, at.offset, row, col, steps)
        return Operand(factor.buffer, kernel.buffer(factor.buffer).dtype, factor.index.offset, row, col, steps)

    whole = LibraryProduct(
        row_count, col_count, terms, (inner[0], outer[0]),
        operand(0, left, of_rows[0], along[0]), operand(1, right, along[1], of_cols[0]),
        operand(2, None, of_rows[1], of_cols[1]),
    )  # fmt: skip
    shapes = ((whole.left, row_count, terms), (whole.right, terms, col_count), (whole.result, row_count, col_count))
    return whole if all(_is_matrix(*each) for each in shapes) else None


def _merged(axes: Iterable[Axis], indices: Sequence[Index]) -> list[tuple[Size, tuple[Size, ...]]]:
    """Axes as few as they can be, outermost first: each with its size and its stride in every index."""
    ordered = sorted(axes, key=lambda axis: [-hint(index.stride(axis.name)) for index in indices])
    lines: list[tuple[Size, tuple[Size, ...]]] = []
    for axis in reversed(ordered):
        steps = tuple(index.stride(axis.name) for index in indices)
        if lines:
            size, inner = lines[0]
            if all(known_equal(step, size * within) for step, within in zip(steps, inner, strict=True)):
                lines[0] = size * axis.size, inner
                continue
        lines.insert(0, (axis.size, steps))
    return lines


def _is_matrix(operand: Operand, rows: Size, cols: Size) -> bool:
    """Whether rows or cols are contiguous, and do not overlap."""
    numbers = (operand.offset, operand.row, operand.col, *operand.batch)
    if any(not is_symsize(number) and number < 0 for number in numbers):
        return False
    lines = ((operand.col, operand.row, cols, rows), (operand.row, operand.col, rows, cols))
    for step, line, length, count in lines:
        apart = is_symsize(line) or is_symsize(length) or known_equal(count, 1) or line >= length
        if known_equal(step, 1) and apart:
            return True
    return False
