"""Attention written by hand, in a program of kernels: products of matrices with a softmax between them.

    bmm(q, k) → s · launch p = softmax(f(s, …)) · bmm(p, v) → y      →      launch y = attention(q, k, v, …)

The kernel keeps no scores in memory. What the program computes of a score, `f`, is part of it. Applies where the target
has a schedule for that, and the scores and their softmax are read by nothing else.
"""

from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from itertools import pairwise
from typing import Any

import torch

from smelt.base import events
from smelt.base.fast_dataclass import dataclass
from smelt.device import contraction_cycles, find
from smelt.device.product_costs import FAST_ATTENTION_WIDTH, MANY_QUERIES, is_measured
from smelt.ir.kernel import (
    Axis,
    Buffer,
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
    Reduce,
    Role,
    Softmax,
    Stage,
    Store,
    WeightedSum,
)
from smelt.ir.program import Launch, Library, Operand, Place, Program, touched, writes
from smelt.symbolic.shapes import contiguous_stride, product, span
from smelt.symbolic.symsize import is_symsize

_BMM = torch.ops.aten.bmm.out
_NARROW = (torch.bfloat16, torch.float16)
_TERM, _COL, _OUT = "term", "col", "out"


def attend_directly(program: Program, products: str) -> Program:
    """The program with a kernel for each attention. `products`: as the option says."""
    if products == "library":
        return program
    for number, step in enumerate(program.steps):
        if isinstance(step, Launch) and isinstance(step.kernel, Kernel) and find(step.target).multiplies_matrices:
            three = _around(program, number)
            launch = None if three is None else _Attention(program, *three).launch(products)
            if three is not None and launch is not None:
                events.emit("fusion", f"{launch.kernel.name} attends without scores in memory, as the program wrote it")
                return attend_directly(_replaced(program, number, three, launch), products)
    return program


def _around(program: Program, number: int) -> tuple[Library, Launch, Library] | None:
    """The products before and after a kernel, if only those three touch what is between them."""
    launch = program.steps[number]
    assert isinstance(launch, Launch)
    uses: dict[str, list[int]] = {}
    for place, step in enumerate(program.steps):
        for name in set(touched(step)):
            uses.setdefault(name, []).append(place)
    private = {name for name in launch.args if len(uses[name]) == 2 and program.buffer(name).place is Place.ARENA}
    private -= {each.buffer for each in program.outputs if isinstance(each, Operand)}
    others = [(uses[name][0] + uses[name][1] - number) for name in launch.args if name in private]
    products = [program.steps[place] for place in sorted(others)]
    if len(products) != 2 or not min(others) < number < max(others):
        return None
    before, after = products
    if not all(isinstance(each, Library) and each.op is _BMM for each in products):
        return None
    assert isinstance(before, Library) and isinstance(after, Library)
    written = {name for step in program.steps[min(others) : max(others)] for name in writes(step)}
    read = {each.buffer for each in (*before.args, after.args[1])} | {*launch.args} - private
    return None if written & read else (before, launch, after)


def _replaced(program: Program, number: int, three: Sequence[Any], launch: Launch) -> Program:
    before, middle, after = three
    gone = {before.outs[0], after.args[0].buffer}
    steps = tuple(
        launch if step is after else step for step in program.steps if step is not before and step is not middle
    )
    buffers = tuple(buffer for buffer in program.buffers if buffer.name not in gone)
    return replace(program, steps=steps, buffers=buffers)


@dataclass(slots=True)
class _Expressions:
    """The values of a kernel by number, equal ones only once; `parts` has each with the numbers it is computed from."""

    kernel: Kernel
    parts: list[tuple[Instruction, tuple[int, ...]]] = field(default_factory=list)
    stores: list[tuple[Store, int]] = field(default_factory=list)
    _known: dict[Any, int] = field(default_factory=dict)

    def read(self) -> bool:
        """Whether all instructions are understood."""
        values: dict[str, int] = {}
        scratch: dict[tuple[str, Index], int] = {}
        roles = {buffer.name: buffer.role for buffer in self.kernel.buffers}
        for i in self.kernel.instructions():
            match i:
                case Load(out, name, index) if roles[name] is Role.SCRATCH:
                    if (name, index) not in scratch:
                        return False
                    values[out] = scratch[name, index]
                case Load(out, name, index) if roles[name] is Role.INPUT:
                    values[out] = self._number(i, (Load, name, index))
                case Const(out, value, dtype):
                    values[out] = self._number(i, (Const, repr(value), dtype))
                case Position(out, index):
                    values[out] = self._number(i, (Position, index))
                case Compute(out, op, args, dtype):
                    values[out] = self._number(i, (op, dtype), *[values[arg] for arg in args])
                case Cast(out, value, dtype):
                    values[out] = self._number(i, (Cast, dtype), values[value])
                case Reduce(out, op, value):
                    values[out] = self._number(i, (Reduce, op), values[value])
                case Store(name, index, value) if roles[name] is Role.SCRATCH:
                    scratch[name, index] = values[value]
                case Store(_, _, value):
                    self.stores.append((i, values[value]))
                case _:
                    return False
        return True

    def _number(self, i: Instruction, what: Any, *operands: int) -> int:
        number = self._known.setdefault((what, operands), len(self.parts))
        if number == len(self.parts):
            self.parts.append((i, operands))
        return number

    def is_op(self, number: int, *ops: str) -> tuple[int, ...] | None:
        """The operands of a value, if one of some operations computes it."""
        i, operands = self.parts[number]
        return operands if isinstance(i, Compute | Reduce) and i.op in ops else None

    def reached(self, number: int) -> Iterator[int]:
        """A value and all that it is computed from."""
        seen, left = set[int](), [number]
        while left:
            each = left.pop()
            if each not in seen:
                seen.add(each)
                left += self.parts[each][1]
                yield each

    def under_softmax(self, number: int) -> int | None:
        """The value whose softmax another one is."""
        i, operands = self.parts[number]
        if isinstance(i, Cast):
            number = operands[0]
        of_share = self.is_op(number, "mul", "div")
        for power, total in (of_share, of_share[::-1]) if of_share else ():
            is_divided = self.is_op(number, "div") is not None
            if is_divided and (power, total) != of_share:
                continue
            sums = (total,) if is_divided else self.is_op(total, "reciprocal")
            if sums is None or self.is_op(sums[0], "sum") != (power,):
                continue
            apart = self.is_op(power, "exp")
            pair = None if apart is None else self.is_op(apart[0], "sub")
            if pair is not None and self.is_op(pair[1], "max") == (pair[0],):
                return pair[0]
        return None


class _Attention:
    """Three steps as one kernel."""

    def __init__(self, program: Program, before: Library, middle: Launch, after: Library) -> None:
        self.program, self.before, self.middle, self.after = program, before, middle, after
        assert isinstance(middle.kernel, Kernel)
        self.softmax = middle.kernel
        self.names = dict(zip((buffer.name for buffer in self.softmax.parameters), middle.args, strict=False))
        self.buffers: dict[str, Buffer] = {}

    def launch(self, products: str) -> Launch | None:
        left, right, weights, values = (*self.before.args, *self.after.args)
        kernel, (scores,), (result,) = self.softmax, writes(self.before), writes(self.after)
        (count, queries, depth), keys, width = left.shape, right.shape[2], values.shape[2]
        steps = [each for operand in (left, right, weights, values) for each in (*operand.stride, operand.offset)]
        sizes = [count, queries, depth, keys, width, *steps, *(axis.size for axis in kernel.rows + kernel.cols)]
        if any(is_symsize(size) for size in sizes) or queries < MANY_QUERIES or len(kernel.cols) != 1:
            return None
        specs = [self.program.buffer(name).spec for name in (left.buffer, right.buffer, values.buffer, scores, result)]
        if specs[0].dtype not in _NARROW or any(spec.dtype is not specs[0].dtype for spec in specs):
            return None
        dense = contiguous_stride((count, queries, keys))
        if (weights.shape, weights.stride, weights.offset) != ((count, queries, keys), dense, 0):
            return None
        if specs[3].stride != dense:
            return None
        if kernel.cols[0].size != keys or product(axis.size for axis in kernel.rows) != count * queries:
            return None
        self.count, self.queries = int(count), int(queries)
        axes = self._rows()
        body = None if axes is None else self._scored(scores, weights.buffer)
        if body is None:
            return None
        scored, value = body
        of_query = self._factor(left, {"n": left.stride[0], "i": left.stride[1], _TERM: left.stride[2]})
        of_key = self._factor(right, {"n": right.stride[0], _TERM: right.stride[1], _COL: right.stride[2]})
        of_value = self._factor(values, {"n": values.stride[0], _COL: values.stride[1], _OUT: values.stride[2]})
        spec = specs[4]
        place = self._index({"n": spec.stride[0], "i": spec.stride[1], _OUT: spec.stride[2]}, 0)
        self.buffers[result] = Buffer("y", spec.dtype, span(spec.shape, spec.stride), Role.OUTPUT)
        f32 = torch.float32
        instructions = (
            Contract("s", (Axis(_TERM, depth),), of_query, of_key, f32),
            *scored,
            Softmax("p", value, nan=True),
            WeightedSum("y", place, (Axis(_OUT, width),), "p", of_value, f32),
        )
        attention = Kernel(
            f"{kernel.name}_attention", tuple(self.axes.values()), (Axis(_COL, keys),), tuple(self.buffers.values()),
            (Stage(True, instructions),), kernel.target,
        )  # fmt: skip
        if products == "auto" and (not is_measured(kernel.target) or max(depth, width) > FAST_ATTENTION_WIDTH):
            return None
        if isinstance(contraction_cycles(kernel.target, attention), str):
            return None
        return Launch(attention, tuple(self.buffers))

    def _rows(self) -> dict[int, Axis] | None:
        """Axes that both the products' rows and the kernel's are made of, by how many rows a step along each is."""
        starts, rows = {1, self.queries, self.count * self.queries}, 1
        self.spans: dict[str, tuple[int, int]] = {}  # of the kernel's axes: rows of a step, and in all
        for axis in reversed(self.softmax.rows):
            self.spans[axis.name] = rows, rows * int(axis.size)
            rows *= int(axis.size)
            starts.add(rows)
        ordered = sorted(starts)
        pairs = list(pairwise(ordered))
        if any(further % start for start, further in pairs):
            return None
        self.axes = {start: Axis(f"row{start}", further // start) for start, further in reversed(pairs)}
        return self.axes

    def _index(self, steps: dict[str, Any], offset: Any) -> Index:
        """Over the new axes, of steps along the products' matrices `n` and rows `i`, and other axes."""
        terms = []
        for start, axis in self.axes.items():
            step = steps.get("n", 0) * (start // self.queries) if start >= self.queries else steps.get("i", 0) * start
            terms.append((axis.name, step))
        terms += [(name, steps[name]) for name in (_COL, _TERM, _OUT) if name in steps]
        return Index(tuple(term for term in terms if term[1]), offset)

    def _rewritten(self, index: Index) -> Index:
        """An index of the kernel over the new axes."""
        terms = []
        for start, axis in self.axes.items():
            (old,) = (name for name, (first, end) in self.spans.items() if first <= start < end)
            terms.append((axis.name, index.stride(old) * (start // self.spans[old][0])))
        terms.append((_COL, index.stride(self.softmax.cols[0].name)))
        return Index(tuple(term for term in terms if term[1]), index.offset)

    def _parameter(self, name: str) -> str:
        spec = self.program.buffer(name).spec
        if name not in self.buffers:
            size = span(spec.shape, spec.stride)
            self.buffers[name] = Buffer(f"in{len(self.buffers)}", spec.dtype, size, Role.INPUT)
        return self.buffers[name].name

    def _factor(self, operand: Operand, steps: dict[str, Any]) -> Factor:
        return Factor(self._parameter(operand.buffer), self._index(steps, operand.offset))

    def _inverse(self, expressions: _Expressions, number: int) -> float | None:
        """Of a constant: eager multiplies by it on GPUs, too."""
        i, _ = expressions.parts[number]
        if not isinstance(i, Const) or i.dtype is not torch.float32 or is_symsize(i.value) or not i.value:
            return None
        return float(1 / torch.tensor(i.value, dtype=torch.float32))

    def _scored(self, scores: str, weights: str) -> tuple[list[Instruction], str] | None:
        """What the kernel computes of a score, and the name of the value whose softmax it stores."""
        expressions = _Expressions(self.softmax)
        if not expressions.read() or len(expressions.stores) != 1:
            return None
        ((store, stored),) = expressions.stores
        top = expressions.under_softmax(stored)
        if top is None or self.names[store.buffer] != weights:
            return None
        keys = int(self.softmax.cols[0].size)
        dense = self._index({"n": self.queries * keys, "i": keys, _COL: 1}, 0)
        if self._rewritten(store.index) != dense:
            return None
        body: list[Instruction] = []
        names: dict[int, str] = {}
        reached = sorted(expressions.reached(top))
        raw = [
            number for number in reached
            if isinstance(i := expressions.parts[number][0], Load) and self.names[i.buffer] == scores
        ]  # fmt: skip
        for number in reached:
            i, operands = expressions.parts[number]
            name = names[number] = f"v{number}"
            if number in raw:
                assert isinstance(i, Load)
                if self._rewritten(i.index) != dense:
                    return None
                continue
            if any(each in raw for each in operands):
                if not isinstance(i, Cast) or i.dtype is not torch.float32:
                    return None
                names[number] = "s"  # which is not rounded before
                continue
            match i:
                case Load(_, buffer, index):
                    if self.softmax.buffer(buffer).on_host:
                        return None
                    body.append(Load(name, self._parameter(self.names[buffer]), self._rewritten(index)))
                case Position(_, index):
                    body.append(Position(name, self._rewritten(index)))
                case Const(_, value, dtype):
                    body.append(Const(name, value, dtype))
                case Compute(_, "div", _, dtype) if (inverse := self._inverse(expressions, operands[1])) is not None:
                    body.append(Const(f"by{number}", inverse, dtype))
                    body.append(Compute(name, "mul", (names[operands[0]], f"by{number}"), dtype))
                case Compute(_, op, _, dtype):
                    body.append(Compute(name, op, tuple(names[each] for each in operands), dtype))
                case Cast(_, _, dtype):
                    body.append(Cast(name, names[operands[0]], dtype))
                case _:
                    return None
        return (body, names[top]) if len(raw) == 1 else None
