"""`AttentionProblem`: an attention kernel in the form that code is written from: queries, keys, and who reads what.

    rows(h:12, i:128) cols(j:128), s = contract (e:64) q[…], k[…], p = softmax …, weighted sum (d:64) y[…] = p * v[…]
    → outer (h:12)   query i:128   key j:128   scores (q by k, 64)   sums (y over keys, 64)

Queries are the last row axis, on which keys do not depend. Keys are the cols. The other axes number the attentions.
"""

from collections.abc import Iterable, Iterator
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
class Hidden:
    """Keys more than `beyond` positions `ahead` of a query, or behind it, have no weight: there the comparison `name`
    is `value`, and it is not for other keys."""

    ahead: bool
    beyond: int
    name: str
    value: bool


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
    hidden: "tuple[Hidden, ...]"  # keys that have no weight, whatever they are

    @property
    def dtype(self) -> torch.dtype:
        """The accumulator dtype."""
        return self.scores[0].contract.dtype

    @property
    def reach(self) -> int | None:
        """The smallest number n so that keys at positions query + n + 1 and further have no weight, as in causal
        attention."""
        return min((each.beyond for each in self.hidden if each.ahead), default=None)

    @property
    def window(self) -> int | None:
        """The smallest number n so that keys at positions query - n - 1 and before have no weight."""
        return min((each.beyond for each in self.hidden if not each.ahead), default=None)

    @property
    def body(self) -> tuple[_BODY, ...]:
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
    if any(f.quantized is not None for i in body if isinstance(i, Contract | WeightedSum) for f in i.factors):
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
    hidden = tuple(_hidden(kernel, query.name, key.name))
    return AttentionProblem(
        kernel, kernel.rows[:-1], query, key, tuple(scores), tuple(products), softmax, tuple(sums), hidden
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
    products = [i for i in kernel.instructions() if isinstance(i, Contract | WeightedSum)]
    return [factor for i in products for factor in i.factors if key in factor.index.axes]


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
_Known = str | bool
_Affine = dict[str, int]  # the steps of a position along axes; along "", its offset


def _hidden(kernel: Kernel, query: str, key: str) -> Iterator[Hidden]:
    """What comparisons of positions say: causal attention, windows."""
    body = kernel.stages[0].body
    positions = _positions(body)
    for each in body:
        if isinstance(each, Compute) and each.op in ("lt", "le", "gt", "ge") and positions.keys() >= {*each.args}:
            left, right = (positions[name] for name in each.args)
            apart = {name: left.get(name, 0) - right.get(name, 0) for name in left.keys() | right.keys()}
            offset = apart.pop("", 0)
            steps = {name: step for name, step in apart.items() if step}
            if steps not in ({key: 1, query: -1}, {key: -1, query: 1}):
                continue
            for value in (True, False):
                if _without_weight(body, each.out, value):
                    # The difference is more than `beyond`, or less than `-beyond`.
                    is_more = (each.op[0] == "g") is value
                    least = -1 if (each.op in ("ge", "lt")) else 0
                    beyond = least - offset if is_more else offset - 1 - least
                    yield Hidden((steps[key] == 1) is is_more, beyond, each.out, value)


def _positions(body: Iterable[Instruction]) -> dict[str, _Affine]:
    """The integers that are positions, sums and differences of such."""
    positions: dict[str, _Affine] = {}
    for each in body:
        match each:
            case Position(out, index):
                positions[out] = {name: int(step) for name, step in index.terms} | {"": int(index.offset)}
            case Const(out, value, dtype) if not dtype.is_floating_point and dtype is not torch.bool:
                positions[out] = {"": int(value)}
            case Compute(out, "add" | "sub" as op, (left, right), _) if left in positions and right in positions:
                sign, a, b = 1 if op == "add" else -1, positions[left], positions[right]
                positions[out] = {name: a.get(name, 0) + sign * b.get(name, 0) for name in a.keys() | b.keys()}
            case Compute(out, "neg", (value,), _) if value in positions:
                positions[out] = {name: -step for name, step in positions[value].items()}
            case Cast(out, value, dtype) if value in positions and dtype in (torch.int32, torch.int64):
                positions[out] = positions[value]
    return positions


def _without_weight(body: Iterable[Instruction], condition: str, value: bool) -> bool:
    """Whether all that is weighed is zero where a condition is `value`."""
    known: dict[str, _Known] = {condition: value}
    for each in body:
        match each:
            case Const(out, number, dtype) if dtype.is_floating_point and number in (-torch.inf, 0.0):
                known[out] = _ZERO if number == 0 else _NOTHING
            case Const(out, number, torch.bool):
                known[out] = bool(number)
            case Compute(out, "not", (one,), _) if isinstance(known.get(one), bool):
                known[out] = not known[one]
            case Compute(out, "and" | "or" as op, args, _) if (op == "or") in [known.get(arg) for arg in args]:
                known[out] = op == "or"
            case Compute(out, "where", (chosen, yes, no), _) if isinstance(known.get(chosen), bool):
                choice = yes if known[chosen] else no
                if choice in known:
                    known[out] = known[choice]
            case Compute(out, "where", (_, yes, no), _) if yes in known and known[yes] == known.get(no):
                known[out] = known[yes]
            case Compute(out, "add", args, _) if _NOTHING in map(known.get, args):
                known[out] = _NOTHING
            case Compute(out, "sub", (left, _), _) if known.get(left) == _NOTHING:
                known[out] = _NOTHING
            case Compute(out, "mul", args, _) if _ZERO in map(known.get, args):
                known[out] = _ZERO
            case Compute(out, "exp", (of,), _) | Softmax(out, of) if known.get(of) == _NOTHING:
                known[out] = _ZERO
            case Cast(out, of, _) if of in known:
                known[out] = known[of]
            case WeightedSum(value=weight) if known.get(weight) != _ZERO:
                return False
    return True
