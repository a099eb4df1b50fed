"""`Problem`: a kernel with a contraction, its axes sorted by which factors depend on them.

    rows(i:128) cols(j:3072), p = contract (k:768) x[768*i + k], w[768*j + k]
    → m (i:128, 768 in left)   n (j:3072, 768 in right)   k (k:768, 1 in both)

The factors are ordered so that the kernel's last col axis, along which results are vectorized, belongs to the right
one: the axes of `n`. Axes of extent one are dropped, and adjacent axes that every access walks together are merged.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.axes import merged, merged_axes, reindexed, without_unit_axes
from smelt.ir.check_kernel import contraction_of, factor_range
from smelt.ir.kernel import Axis, Contract, Factor, Index, Instruction, Kernel, Stage
from smelt.ir.substitute_sizes import shape_env_of
from smelt.symbolic.shapes import Size, product
from smelt.symbolic.symsize import hint, known_equal

QUANTIZED = "a factor is quantized"


@dataclass(frozen=True, slots=True)
class ProductAxis(Axis):
    """An axis, and how far a step along it moves in each factor."""

    left: Size
    right: Size


@dataclass(frozen=True, slots=True)
class Problem:
    """A contraction and the rest of its kernel. `kernel` is the original one, in the shape that code is written for."""

    kernel: Kernel
    contract: Contract
    batch: tuple[ProductAxis, ...]  # named by both factors, or by none
    m: tuple[ProductAxis, ...]  # of the left factor alone
    n: tuple[ProductAxis, ...]  # of the right factor alone; the last of them is the kernel's last col axis
    k: tuple[ProductAxis, ...]  # summed over

    @property
    def stage(self) -> Stage:
        return self.kernel.stages[0]

    @property
    def epilogue(self) -> tuple[Instruction, ...]:
        """Everything beside the contraction, in order."""
        return tuple(i for i in self.stage.body if i is not self.contract)

    @property
    def dtype(self) -> torch.dtype:
        """The accumulator dtype."""
        return self.contract.dtype

    @property
    def left_dtype(self) -> torch.dtype:
        return self.kernel.buffer(self.contract.left.buffer).dtype

    @property
    def right_dtype(self) -> torch.dtype:
        return self.kernel.buffer(self.contract.right.buffer).dtype

    @property
    def rows(self) -> Size:
        return count(self.m)

    @property
    def cols(self) -> Size:
        return count(self.n)

    @property
    def depth(self) -> Size:
        return count(self.k)

    @property
    def batches(self) -> Size:
        return count(self.batch)

    @property
    def multiplications(self) -> Size:
        return self.batches * self.rows * self.cols * self.depth

    def transposed(self) -> "Problem":
        """The product of the transposes: what were rows are cols."""
        swapped = replace(self.contract, left=self.contract.right, right=self.contract.left)
        batch, m, n, k = (
            tuple(ProductAxis(axis.name, axis.size, axis.right, axis.left) for axis in axes)
            for axes in (self.batch, self.n, self.m, self.k)
        )
        return Problem(_with(self.kernel, self.contract, swapped), swapped, batch, m, n, k)

    @property
    def is_bounded(self) -> bool:
        return bool(self.contract.left.bounds or self.contract.right.bounds)

    @property
    def is_quantized(self) -> bool:
        return any(factor.quantized is not None for factor in self.contract.factors)

    def with_contract(self, contract: Contract) -> "Problem":
        """The same kernel with another contraction."""
        return replace(self, kernel=_with(self.kernel, self.contract, contract), contract=contract)


def count(axes: tuple[ProductAxis, ...]) -> Size:
    """How many points they have together."""
    return product(axis.size for axis in axes)


def at_example(problem: Problem) -> Problem:
    """With axes of the sizes that they have in the example, for choices of speed."""

    def fixed(axes: tuple[ProductAxis, ...]) -> tuple[ProductAxis, ...]:
        return tuple(ProductAxis(each.name, hint(each.size), hint(each.left), hint(each.right)) for each in axes)

    batch, m, n, k = map(fixed, (problem.batch, problem.m, problem.n, problem.k))
    return replace(problem, batch=batch, m=m, n=n, k=k)


def why_no_problem(kernel: Kernel) -> str | None:
    """Why no schedule takes a kernel with a contraction."""
    contract = contraction_of(kernel)
    if contract is None:
        return "it has no contraction"
    if len(kernel.stages) != 1:
        return "other stages are beside the contraction"
    return None


def problem_of(kernel: Kernel) -> Problem:
    """What `kernel` multiplies; `why_no_problem` has nothing against it."""
    kernel = merged(merged(_with_merged_sum(without_unit_axes(kernel)), cols=False), cols=True)
    contract = contraction_of(kernel)
    assert contract is not None
    named_left, named_right = _named(contract.left), _named(contract.right)
    if kernel.cols and kernel.cols[-1].name in named_left - named_right:
        swapped = replace(contract, left=contract.right, right=contract.left)
        kernel = _with(kernel, contract, swapped)
        contract, named_left, named_right = swapped, named_right, named_left
    axes = [_axis(contract, axis) for axis in kernel.rows + kernel.cols]
    only_left, only_right = named_left - named_right, named_right - named_left
    return Problem(
        kernel,
        contract,
        tuple(each for each in axes if each.name not in only_left | only_right),
        tuple(each for each in axes if each.name in only_left),
        tuple(each for each in axes if each.name in only_right),
        tuple(_axis(contract, axis) for axis in contract.axes),
    )


def _named(factor: Factor) -> frozenset[str]:
    return frozenset().union(*(index.axes for index in factor.indices))


def _axis(contract: Contract, axis: Axis) -> ProductAxis:
    left, right = (factor.index.stride(axis.name) for factor in contract.factors)
    return ProductAxis(axis.name, axis.size, left, right)


def _with(kernel: Kernel, old: Contract, new: Contract) -> Kernel:
    body = tuple(new if i is old else i for i in kernel.stages[0].body)
    return replace(kernel, stages=(Stage(True, body),))


def _sums_nothing(kernel: Kernel, contract: Contract) -> bool:
    """Whether there is no step, or a factor is out of bounds everywhere: its buffer may have no element to read."""
    if any(axis.size == 0 for axis in contract.axes):
        return True
    axes = kernel.rows + kernel.cols
    if any(axis.size == 0 for axis in axes):
        return False
    if shape_env_of(kernel) is not None:  # where a factor is out of bounds, its first element is read instead
        return any(known_equal(kernel.buffer(each.buffer).size, 0) for each in contract.factors)
    return any(each.bounds and factor_range(each, axes + contract.axes) is None for each in contract.factors)


def _over(contract: Contract, axes: Sequence[Axis], names: Iterable[str]) -> Contract:
    """The sum over other axes, with the terms of some names in its indices."""

    def over(index: Index) -> Index:
        return Index(tuple(term for term in index.terms if term[0] in names), index.offset)

    moved = reindexed(contract, over)
    assert isinstance(moved, Contract)
    return replace(moved, axes=tuple(axes))


def _with_merged_sum(kernel: Kernel) -> Kernel:
    """The summed axes in the memory order of the right factor, without extents of one, and with axes merged that both
    factors walk together."""
    contract = contraction_of(kernel)
    assert contract is not None
    names = {axis.name for axis in kernel.rows + kernel.cols}
    if _sums_nothing(kernel, contract):  # one axis without a step, of factors that are read nowhere
        left, right = (Factor(each.buffer, replace(each.index, offset=0)) for each in contract.factors)
        empty = replace(contract, left=left, right=right)
        return _with(kernel, contract, _over(empty, (Axis(f"{contract.out}.none", 0),), names))
    indices = [index for factor in contract.factors for index in factor.indices]
    kept = merged_axes([axis for axis in contract.axes if axis.size != 1], indices)
    return _with(kernel, contract, _over(contract, kept, names.union(axis.name for axis in kept)))
