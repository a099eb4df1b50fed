"""Splits a kernel with a contraction: a product that a library has, and a kernel for what follows it.

    loop:                                              k.product           k.rest
      p = contract (k:768) x[768*i + k], w[…]            p = contract …      v1 = load sums[3072*i + j]
      v0 = load b[j]                                     v0 = load b[j]      v2 = tanh v1
      v1 = add p, v0                                     v1 = add p, v0      store y[…] = v2
      v2 = tanh v1                                       store sums[…] = v1
      store y[3072*i + j] = v2

The product adds a bias and rounds once, as libraries do. Where its result is only stored there is no rest. It has grids
of its own too: code that is written ahead of time runs where the library is not installed.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.axes import dense_index
from smelt.codegen.gpu.kernel_slices import in_order, leading_to, with_buffers
from smelt.ir.check_kernel import operands, result
from smelt.ir.kernel import (
    Buffer,
    Cast,
    Compute,
    Contract,
    Index,
    Instruction,
    Kernel,
    Load,
    Role,
    Stage,
    Store,
)
from smelt.ir.products.library_product import LibraryProduct, Operand, is_library_product, library_product, sides
from smelt.symbolic.shapes import product
from smelt.symbolic.symsize import known_equal

_ADDS_BIAS = (torch.float16, torch.bfloat16, torch.float32)  # dtypes that libraries add a bias in


@dataclass(frozen=True, slots=True)
class LibraryParts:
    """A kernel that multiplies, what a library does in its place, and a kernel for the rest."""

    kernel: Kernel
    product: LibraryProduct
    rest: Kernel | None


@dataclass(frozen=True, slots=True)
class _Head:
    """What a library does: the contraction, a bias, a rounding. `values` are what comes of each."""

    code: tuple[Instruction, ...]
    values: tuple[str, ...]
    dtype: torch.dtype
    bias: Load | None

    @property
    def value(self) -> str:
        return self.values[-1]


def library_parts(kernel: Kernel, contract: Contract) -> LibraryParts | None:
    """The parts of a kernel with one contraction; None if no library has the product."""
    if not is_library_product(contract, kernel):
        return None
    heads = [_head(kernel, contract, with_bias=True), _head(kernel, contract, with_bias=False)]
    for head in heads if heads[0] != heads[1] else heads[:1]:
        parts = _stored(kernel, contract, head) or _with_rest(kernel, contract, head)
        if parts is not None:
            return parts
    return None


def _users(kernel: Kernel, value: str) -> list[Instruction]:
    return [i for i in kernel.instructions() if value in operands(i)]


def _head(kernel: Kernel, contract: Contract, *, with_bias: bool) -> _Head:
    """The longest beginning of what is done to the sums that a library does as well."""
    dtype = kernel.buffer(contract.left.buffer).dtype
    value, ends, bias = contract.out, [contract.out], None
    added = _bias(kernel, contract) if with_bias else None
    if added is not None:
        bias, value = added
        ends.append(value)
    users = _users(kernel, value)
    rounded = users[0] if len(users) == 1 and isinstance(users[0], Cast) and users[0].dtype is dtype else None
    if rounded is not None:
        value = rounded.out
        ends.append(value)
    stored = dtype if rounded is not None else contract.dtype
    if bias is not None and stored is not dtype:  # which libraries have no vector of such a dtype for
        return _head(kernel, contract, with_bias=False)
    code = leading_to(kernel.stages[0].body, ends)
    return _Head(tuple(code), tuple(ends), stored, bias)


def _bias(kernel: Kernel, contract: Contract) -> tuple[Load, str] | None:
    """The vector that is all that is done to the sums first, and the value of the addition."""
    users = _users(kernel, contract.out)
    dtype = kernel.buffer(contract.left.buffer).dtype
    if len(users) != 1 or not isinstance(users[0], Compute) or users[0].op != "add" or dtype not in _ADDS_BIAS:
        return None
    add = users[0]
    others = [name for name in add.args if name != contract.out]
    definitions = {result(i): i for i in kernel.instructions()}
    source = definitions.get(others[0]) if len(others) == 1 else None
    if isinstance(source, Cast):
        source = definitions.get(source.value)
    if not isinstance(source, Load) or len(source.index.terms) > 1:
        return None
    buffer = kernel.buffer(source.buffer)
    is_plain = buffer.dtype is dtype and buffer.role is Role.INPUT and not buffer.on_host
    return (source, add.out) if is_plain and source.index.terms else None


def _bias_operand(kernel: Kernel, multiplied: LibraryProduct, head: _Head, cols: Sequence[str]) -> Operand | None:
    """A vector along the lines of the result."""
    assert head.bias is not None
    ((axis, step),) = head.bias.index.terms
    is_along = known_equal(multiplied.result.col, 1) and [axis] == list(cols) and known_equal(step, 1)
    if not is_along or any(not known_equal(size, 1) for size in multiplied.batch):
        return None
    dtype = kernel.buffer(head.bias.buffer).dtype
    return Operand(head.bias.buffer, dtype, head.bias.index.offset, 0, 1, (0, 0))


def _product(kernel: Kernel, contract: Contract, head: _Head, buffer: str, at: Index) -> LibraryProduct | None:
    multiplied = library_product(contract, kernel, buffer, head.dtype, at)
    if multiplied is None or head.bias is None:
        return multiplied
    cols = [axis.name for axis in sides(contract, kernel.rows + kernel.cols)[1]]
    bias = _bias_operand(kernel, multiplied, head, cols)
    return None if bias is None else replace(multiplied, bias=bias)


def _stored(kernel: Kernel, contract: Contract, head: _Head) -> LibraryParts | None:
    """Where the result of the library is stored, and nothing else is done."""
    users = _users(kernel, head.value)
    body = kernel.stages[0].body
    if len(users) != 1 or not isinstance(users[0], Store) or len(body) != len(head.code) + 1:
        return None
    multiplied = _product(kernel, contract, head, users[0].buffer, users[0].index)
    return None if multiplied is None else LibraryParts(kernel, multiplied, None)


def _with_rest(kernel: Kernel, contract: Contract, head: _Head) -> LibraryParts | None:
    """With the result in the workspace."""
    rows, cols, batch = sides(contract, kernel.rows + kernel.cols)
    axes = kernel.rows + kernel.cols
    order = batch + rows + cols
    sums = Buffer(f"{contract.out}.sums", head.dtype, product(axis.size for axis in order), Role.OUTPUT)
    store = in_order(Store(sums.name, dense_index(order), head.value), axes)
    assert isinstance(store, Store)
    multiplied = _product(kernel, contract, head, sums.name, store.index)
    if multiplied is None:
        return None
    read = {each.buffer for each in multiplied.operands}
    kept = tuple(replace(each, role=Role.INPUT) for each in kernel.buffers if each.name in read)
    multiplying = replace(
        kernel, name=f"{kernel.name}.product", buffers=(*kept, sums), stages=(Stage(True, (*head.code, store)),)
    )
    loop = Stage(True, (Load(head.value, sums.name, store.index), *_left(kernel, head)))
    rest = with_buffers(kernel, [loop], [replace(sums, role=Role.INPUT)], f"{kernel.name}.rest")
    return LibraryParts(multiplying, multiplied, rest)


def _left(kernel: Kernel, head: _Head) -> list[Instruction]:
    """What the library leaves to do."""
    left = [i for i in kernel.stages[0].body if result(i) not in head.values]
    effects = [i for i in left if result(i) is None]
    needed = {id(i) for i in (*effects, *leading_to(left, (name for i in effects for name in operands(i))))}
    return [i for i in left if id(i) in needed]
