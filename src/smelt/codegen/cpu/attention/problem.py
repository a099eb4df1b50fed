"""`AttentionProblem`: an attention kernel in the form that code is written from: queries, keys, and who reads what.

    rows(h:12, i:128) cols(j:128), s = contract (e:64) q[…], k[…], p = softmax …, weighted sum (d:64) y[…] = p * v[…]
    → outer (h:12)   query i:128   key j:128   scores (q by k, 64)   sums (y over keys, 64)

Queries are the last row axis, on which keys do not depend. Keys are the cols. The other axes number the attentions.
"""

from collections.abc import Iterable
from dataclasses import replace

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.axes import indices, merged, without_axes
from smelt.ir.check_kernel import is_attention
from smelt.ir.kernel import (
    Axis,
    Cast,
    Compute,
    Const,
    Contract,
    Factor,
    Index,
    Instruction,
    Kernel,
    Load,
    Position,
    Softmax,
    Store,
    WeightedSum,
)
from smelt.symbolic.shapes import product
from smelt.symbolic.symsize import is_symsize

_BODY = Const | Load | Position | Compute | Cast


@dataclass(frozen=True, slots=True)
class Score:
    """A contraction: what queries bring, what keys bring, and the axis that is summed over."""

    contract: Contract
    query: Factor
    key: Factor
    axis: Axis


@dataclass(frozen=True, slots=True)
class RowProduct:
    """A contraction of two things that queries bring: one number for each query."""

    contract: Contract
    axis: Axis


@dataclass(frozen=True, slots=True)
class Weighed:
    """A weighted sum, over keys or over queries, and the axis along which its results are contiguous."""

    sum: WeightedSum
    over_keys: bool
    axis: Axis


@dataclass(frozen=True, slots=True)
class AttentionProblem:
    kernel: Kernel  # with the axes that code is written for
    outer: tuple[Axis, ...]
    query: Axis
    key: Axis
    scores: tuple[Score, ...]
    products: tuple[RowProduct, ...]
    softmax: Softmax | None
    sums: tuple[Weighed, ...]
    reach: int | None  # keys that far behind a query, and further, have no weight: see `_reach`

    @property
    def dtype(self) -> torch.dtype:
        """The accumulator dtype."""
        return self.scores[0].contract.dtype

    @property
    def body(self) -> tuple[Instruction, ...]:
        """The operations on the scores at each point: the input of the softmax, if there is one."""
        return tuple(i for i in self.kernel.stages[0].body if isinstance(i, _BODY))

    @property
    def last(self) -> tuple[Instruction, ...]:
        """The operations at the end of each query."""
        return self.kernel.stages[1].body if len(self.kernel.stages) > 1 else ()

    @property
    def packed(self) -> tuple[Load, ...]:
        """Loads that differ between queries."""
        return tuple(i for i in self.body if isinstance(i, Load) and self.query.name in i.index.axes)

    @property
    def queries(self) -> int:
        return int(self.query.size)

    @property
    def keys(self) -> int:
        return int(self.key.size)

    @property
    def count(self) -> int:
        """How many attentions there are."""
        return int(product(axis.size for axis in self.outer))

    @property
    def multiplications(self) -> int:
        each = sum(int(score.axis.size) for score in self.scores) + sum(int(each.axis.size) for each in self.sums)
        points = self.queries * self.keys
        return self.count * each * (points // 2 if self.reach is not None else points)


def why_no_problem(kernel: Kernel) -> str | None:
    """Why no code is written for a kernel that weighs its scores."""
    if not is_attention(kernel):
        return "it weighs nothing"
    if len(kernel.cols) != 1:
        return "keys are not one axis"
    sizes = [axis.size for axis in kernel.rows + kernel.cols] + [buffer.size for buffer in kernel.buffers]
    sizes += [step for index in indices(kernel) for _, step in index.terms] + [i.offset for i in indices(kernel)]
    if any(is_symsize(size) for size in sizes):
        return "its sizes vary"
    body = kernel.stages[0].body
    if any(isinstance(i, Store) or not isinstance(i, _BODY | Contract | Softmax | WeightedSum) for i in body):
        return "something is stored beside what is weighed"
    if any(factor.quantized is not None for i in body for factor in _factors_of(i)):
        return "a factor is quantized"
    normal = _normal(kernel)
    query, key = normal.rows[-1], normal.cols[0]
    for each in normal.instructions():
        if isinstance(each, Contract | WeightedSum) and sum(axis.size != 1 for axis in each.axes) > 1:
            return "a sum is over several axes"
        if isinstance(each, Contract) and not _is_of_rows(each, key):
            by_query, by_key = _sides(each, key)
            mixed = key.name in by_query.index.axes or query.name in by_key.index.axes
            if mixed or any(side.bounds for side in each.factors):
                return "scores are not products of a query and a key"
        if isinstance(each, WeightedSum) and _kept(each, query, key) in each.factor.index.axes:
            return "what is weighed is not one for all queries, or one for all keys"
    if not any(isinstance(i, Contract) and not _is_of_rows(i, key) for i in body):
        return "it has no scores"
    if len({i.dtype for i in body if isinstance(i, Contract | WeightedSum)}) != 1:
        return "it sums in several dtypes"
    return None


def _factors_of(instruction: Instruction) -> tuple[Factor, ...]:
    if isinstance(instruction, Contract):
        return instruction.factors
    return (instruction.factor,) if isinstance(instruction, WeightedSum) else ()


def problem_of(kernel: Kernel) -> AttentionProblem:
    """What `kernel` computes; `why_no_problem` has nothing against it."""
    kernel = _normal(kernel)
    query, key = kernel.rows[-1], kernel.cols[0]
    body = kernel.stages[0].body
    contracts = [each for each in body if isinstance(each, Contract)]
    scores = [Score(each, *_sides(each, key), _only(each.axes)) for each in contracts if not _is_of_rows(each, key)]
    products = [RowProduct(each, _only(each.axes)) for each in contracts if _is_of_rows(each, key)]
    sums = [
        Weighed(each, key.name not in each.index.axes, _only(each.axes))
        for each in body
        if isinstance(each, WeightedSum)
    ]
    softmax = next((i for i in body if isinstance(i, Softmax)), None)
    reach = _reach(kernel, query.name, key.name)
    return AttentionProblem(
        kernel, kernel.rows[:-1], query, key, tuple(scores), tuple(products), softmax, tuple(sums), reach
    )


def _only(axes: Iterable[Axis]) -> Axis:
    """The one axis that has more than one point; if none has, any."""
    axes = tuple(axes)
    return next((axis for axis in axes if axis.size != 1), axes[0] if axes else Axis("none", 1))


def _normal(kernel: Kernel) -> Kernel:
    """Without row axes of one point, neighbours merged, and an axis of queries at the end, which keys do not name."""
    gone = {axis.name for axis in kernel.rows if axis.size == 1}
    rows = [axis for axis in kernel.rows if axis.name not in gone]
    kernel = merged(without_axes(kernel, gone, rows, kernel.cols), cols=False)
    key = kernel.cols[0].name
    last = kernel.rows[-1].name if kernel.rows else ""
    if not kernel.rows or any(last in factor.index.axes for factor in _of_keys(kernel, key)):
        kernel = replace(kernel, rows=(*kernel.rows, Axis("one.query", 1)))
    return kernel


def _of_keys(kernel: Kernel, key: str) -> list[Factor]:
    """The factors that depend on keys."""
    factors = [side for i in kernel.instructions() if isinstance(i, Contract) for side in i.factors]
    factors += [i.factor for i in kernel.instructions() if isinstance(i, WeightedSum)]
    return [factor for factor in factors if key in factor.index.axes]


def _is_of_rows(contract: Contract, key: Axis) -> bool:
    """Whether keys have no part in a contraction."""
    return not any(key.name in factor.index.axes for factor in contract.factors)


def _sides(contract: Contract, key: Axis) -> tuple[Factor, Factor]:
    """What queries bring to a score, and what keys bring."""
    left, right = contract.factors
    return (right, left) if key.name in left.index.axes else (left, right)


def _kept(each: WeightedSum, query: Axis, key: Axis) -> str:
    """The axis it does not sum over."""
    return key.name if key.name in each.index.axes else query.name


# Which keys have no weight, whatever they are.

_NOTHING, _ZERO = "-inf", "zero"  # what a value is known to be
_AHEAD = {"gt": (1, 0), "ge": (1, 1), "lt": (-1, 0), "le": (-1, 1)}  # a > b: a - b > 0; a >= b: a - b > -1


def _reach(kernel: Kernel, query: str, key: str) -> int | None:
    """The largest number n so that keys at positions query + n + 1 and behind have no weight, as in causal attention;
    None if there is none."""
    body = kernel.stages[0].body
    positions = {i.out: i.index for i in body if isinstance(i, Position)}
    for each in body:
        if isinstance(each, Compute) and each.op in _AHEAD and all(arg in positions for arg in each.args):
            ahead = _ahead(each, positions, query, key)
            if ahead is not None and _without_weight(body, each.out):
                return ahead
    return None


def _ahead(compare: Compute, positions: dict[str, Index], query: str, key: str) -> int | None:
    """Of a comparison that says key - query > n: that n."""
    sign, less = _AHEAD[compare.op]
    left, right = (positions[name] for name in (compare.args if sign > 0 else reversed(compare.args)))
    names = left.axes | right.axes
    apart = {name: left.stride(name) - right.stride(name) for name in names}
    if {name: step for name, step in apart.items() if step} != {key: 1, query: -1}:
        return None
    return int(right.offset - left.offset - less)


def _without_weight(body: Iterable[Instruction], condition: str) -> bool:
    """Whether all that is weighed is zero where a condition holds."""
    known: dict[str, str] = {}
    for each in body:
        match each:
            case Const(out, value, dtype) if dtype.is_floating_point and value in (-torch.inf, 0.0):
                known[out] = _ZERO if value == 0 else _NOTHING
            case Compute(out, "where", (chosen, yes, _), _) if chosen == condition and yes in known:
                known[out] = known[yes]
            case Compute(out, "add", args, _) if _NOTHING in map(known.get, args):
                known[out] = _NOTHING
            case Compute(out, "sub", (left, _), _) if known.get(left) == _NOTHING:
                known[out] = _NOTHING
            case Compute(out, "mul", args, _) if _ZERO in map(known.get, args):
                known[out] = _ZERO
            case Compute(out, "exp", (value,), _) | Softmax(out, value) if known.get(value) == _NOTHING:
                known[out] = _ZERO
            case WeightedSum(value=value) if known.get(value) != _ZERO:
                return False
    return True
