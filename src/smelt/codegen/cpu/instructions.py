"""Writes the instructions of a kernel at one point of its loops: `lanes` points as one vector.

    t = load x[100*i + j]      %3 = load <8 x float>, ptr %2        one instruction of the kernel → a few of LLVM's

In a last vector that overlaps the previous one, `mask` says which lanes count.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import field
from functools import reduce
from typing import TypeGuard

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.cpu import scans, scatters
from smelt.codegen.cpu.addresses import Addresses, Workspace
from smelt.codegen.cpu.contiguous_runs import FAR, Run, Span, near
from smelt.codegen.cpu.schedule import CONTIGUOUS_RUNS, Accumulator, LoopSchedule, loop_variant
from smelt.codegen.loops import reductions
from smelt.codegen.loops.builder import SIGNED_LESS, TRUE, Builder
from smelt.codegen.loops.math import OF_NEGATIVE
from smelt.codegen.loops.scalars import cast, compute, constant, from_memory, to_memory
from smelt.ir.check_kernel import value_dtypes
from smelt.ir.kernel import (
    Accumulate,
    Cast,
    Compute,
    Const,
    Gather,
    Index,
    Instruction,
    Kernel,
    Load,
    Position,
    Reduce,
    Running,
    Scan,
    Scatter,
    Store,
)
from smelt.ir.loops import Value
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import is_symsize

_FEW_LANES = 4


@dataclass(slots=True)
class LoopReduction:
    """A reduction in progress: partial results in lanes, and the float64 they are added to now and then, if any. Or a
    scan along lanes: its running value."""

    instruction: Reduce | Scan
    dtype: torch.dtype
    partial: Value
    f64_accumulator: Value | None = None


@dataclass(slots=True)
class InstructionWriter:
    """Writes instructions at the current loop position, and keeps the values of earlier ones."""

    b: Builder
    plan: LoopSchedule
    at: Addresses
    dtypes: dict[str, torch.dtype]
    below: frozenset[str] = frozenset()  # values that are never above zero
    values: dict[str, Value] = field(default_factory=dict)
    read: dict[Load, Value] = field(default_factory=dict)  # loads that were done one vector before
    products: dict[str, tuple[str, ...]] = field(default_factory=dict)  # of the loop being written: name → factors
    iotas: dict[str, tuple[Value, int]] = field(default_factory=dict)  # positions: the first lane, and the step
    spans: dict[str, Span] = field(default_factory=dict)  # masks that are true from one lane to another
    nontemporal: bool = False  # whether what is stored now bypasses the cache
    mask: Value | None = None  # lanes that count, in a last vector that overlaps

    @classmethod
    def of(cls, b: Builder, plan: LoopSchedule, at: Addresses) -> "InstructionWriter":
        below = plan.never_positive | ({plan.online.distance} if plan.online else set())
        return cls(b, plan, at, value_dtypes(plan.kernel), below)

    def begin_row(self) -> None:
        """Forget the addresses and values of the row before."""
        self.at.rows.clear()
        self.values.clear()

    def vector(self, name: str) -> Value:
        return self.b.splat(self.values[name], self.at.lanes)

    def write(self, instruction: Instruction) -> None:
        b = self.b
        match instruction:
            case Const(out, value, dtype):
                self.values[out] = constant(b, value, dtype)
            case Load(out, buffer, index):
                raw = self.read.get(instruction) or self.load_raw(buffer, index)
                self.values[out] = from_memory(b, raw, self.dtypes[out])
            case Gather(out, buffer, index, by):
                self.values[out] = from_memory(b, self._gather_raw(buffer, index, by), self.dtypes[out])
            case Position(out, index):
                self.values[out] = self._position(out, index)
            case Compute(out, op, (left, right), _) if (mask := self._by_position(out, op, left, right)) is not None:
                self.values[out] = mask
            case Compute(out, op, args, _):  # comparisons give bools: what counts is the dtype they compare
                vectors = [self.vector(arg) for arg in args]
                short = OF_NEGATIVE.get(op) if self.below.issuperset(args) else None
                self.values[out] = short(b, *vectors) if short else compute(b, op, vectors, self.dtypes[args[-1]])
            case Cast(out, source, dtype):
                self.values[out] = cast(b, self.vector(source), self.dtypes[source], dtype)
            case Store(buffer, index, source):
                self._store(buffer, index, to_memory(b, self.vector(source), self.dtypes[source]))
            case Scan():
                self._scan(instruction)
            case Accumulate():
                self._accumulate(instruction)
            case Scatter():
                self._scatter(instruction)

    def hold_addresses(self, instructions: Sequence[Instruction]) -> None:
        """Compute the row part of each access before the loops."""
        for instruction in instructions:
            if isinstance(instruction, Load | Gather | Store | Scatter):
                self.at.of_row(instruction.buffer, instruction.index)
            elif isinstance(instruction, Scan) and not self.runs_along_lanes(instruction):
                state = self._state(instruction)
                self.at.of_row(state.name, state.index)
            elif isinstance(instruction, Accumulate):
                accumulator = self._accumulator(instruction)
                self.at.of_row(accumulator.arrays[-1][0], accumulator.index)

    def _position(self, out: str, index: Index) -> Value:
        total = self.at.offset(index)
        stride = index.stride(self.at.vector_axis)
        self.iotas.pop(out, None)
        if self.at.lanes == 1 or stride == 0:
            return total
        if is_symsize(stride):
            iota = self.b.mul(self.b.iota("i64", range(self.at.lanes)), stride)
        else:
            iota = self.b.iota("i64", [lane * stride for lane in range(self.at.lanes)])
            self.iotas[out] = (total, stride)
        return self.b.add(self.b.splat(total, self.at.lanes), iota)

    def _by_position(self, out: str, op: str, left: str, right: str) -> Value | None:
        """The mask of a position beside one number for all lanes, or of several such; None for anything else."""
        self.spans.pop(out, None)
        span = self._both(left, right) if op == "and" else None
        if op in SIGNED_LESS and left in self.iotas and self.values[right].lanes == 1:
            first, step = self.iotas[left]
            apart = near(self.b, self.b.sub(self.values[right], first))
            span = Span.of(self.b, op, apart) if step == 1 else None
            if span is None and abs(step) * self.at.lanes < FAR:
                return self.b.icmp(SIGNED_LESS[op], self.b.iota("i32", range(0, step * self.at.lanes, step)), apart)
        if span is None:
            return None
        self.spans[out] = span
        return span.mask(self.b, self.at.lanes)

    def _both(self, left: str, right: str) -> Span | None:
        """The lanes that two masks have in common, where one at least is a span and the other the same for all."""
        if left in self.spans and right in self.spans:
            return self.spans[left].both(self.b, self.spans[right])
        for one, other in ((left, right), (right, left)):
            if one in self.spans and self.values[other].lanes == 1:
                return self.spans[one].where(self.b, self.values[other])
        return None

    def load_raw(self, array: str, index: Index) -> Value:
        stride = self.at.lane_stride(index)
        if stride == 0:
            return self.at.of(array, index).load()
        if stride == 1:
            return self.at.of(array, index).load(0, self.at.lanes)
        if stride == -1:
            return self.b.reverse(self.at.of_last_lane(array, index).load(0, self.at.lanes))
        return self.b.gathered([place.load() for place in self.at.of_lanes(array, index, stride)])

    def _gather_raw(self, array: str, index: Index, by: Sequence[tuple[str, Size, Size]]) -> Value:
        """As a load whose row begins elsewhere, where the places are one for all lanes; otherwise lane by lane."""
        b, whole = self.b, self.at.arrays[array]
        base = self.at.offset(index)
        apart = [each for each in by if self.values[each[0]].lanes > 1]
        wanted: Value | None = None
        for name, step, extent in by:
            if self.values[name].lanes == 1:
                base = b.add(base, b.mul(self._held(self.values[name], extent), step))
                inside = b.icmp("ult", self.values[name], extent)
                wanted = inside if wanted is None else b.and_(wanted, inside)
        stride = self.at.lane_stride(index)
        alone = CONTIGUOUS_RUNS in self.plan.uses and stride == 0 and len(apart) == 1
        if alone and (run := Run.of(*apart[0], self.iotas)) is not None:
            return run.read(whole, self.plan.kernel.buffer(array).size, base, wanted, self.at.lanes)
        first = whole.at(base)
        if not apart and stride in (0, 1):
            return first.load(0, self.at.lanes if stride else 1)
        iota = b.mul(b.iota("i64", range(self.at.lanes)), stride)
        offsets = [b.mul(self._held(self.values[name], extent), step) for name, step, extent in apart]
        total = reduce(b.add, offsets, iota)
        places = [first.at(b.extract(total, lane)) for lane in range(self.at.lanes)]
        return b.gathered([place.load() for place in places])

    def _held(self, value: Value, extent: Size) -> Value:
        """A place within 0 … extent - 1: the last, for one outside, which as an unsigned number is above it."""
        return self.b.umin(value, extent - 1)

    def _store(self, array: str, index: Index, raw: Value) -> None:
        stride = self.at.lane_stride(index)
        if stride == 0:
            self.at.of(array, index).store(self.b.extract(raw, 0))
        elif stride == 1 and self.mask is None:
            write = self.b.store_nontemporal if self.nontemporal else self.b.store
            write(raw, self.at.of(array, index).pointer)
        elif stride == -1 and self.mask is None:
            value = self.b.reverse(raw)
            self.at.of_last_lane(array, index).store(value)
        elif stride == 1 and self.mask is not None and not self._has_few_fresh_lanes:
            place = self.at.of(array, index)
            place.store(self.b.select(self.mask, raw, place.load(0, raw.lanes)))
        elif self.mask is not None and is_symsize(self.plan.width % self.at.lanes):
            for lane, place in enumerate(self.at.of_lanes(array, index, stride)):
                old, new = place.load(), self.b.extract(raw, lane)
                place.store(self.b.select(self.b.extract(self.mask, lane), new, old))
        else:
            skipped = 0 if self.mask is None else self.at.lanes - self.plan.width % self.at.lanes
            for lane, place in enumerate(self.at.of_lanes(array, index, stride, skipped), skipped):
                place.store(self.b.extract(raw, lane))

    @property
    def _has_few_fresh_lanes(self) -> bool:
        """Whether the last vector is stored lane by lane: one load, choice and store of all of it is shorter, for LLVM
        too, unless a few lanes are new."""
        fresh = self.plan.width % self.at.lanes
        return not is_symsize(fresh) and fresh <= _FEW_LANES

    def _scatter(self, instruction: Scatter) -> None:
        b = self.b
        inside = TRUE
        for name, _, extent in instruction.by:
            inside = b.and_(inside, b.icmp("ult", self.values[name], self.b.const("i64", extent)))
        scatters.put(
            instruction.op,
            self.vector(instruction.value),
            self.dtypes[instruction.value],
            self.at.of(instruction.buffer, instruction.index),
            instruction.index.stride(self.at.vector_axis),
            scatters.offset(b, [(self.values[name], stride) for name, stride, _ in instruction.by]),
            inside,
            self.mask,
            self.at.arrays[scatters.nowhere(instruction.buffer)],
        )

    # Reductions up to a point.

    def runs_along_lanes(self, instruction: Instruction) -> TypeGuard[Scan]:
        return isinstance(instruction, Scan) and instruction.axis == self.at.vector_axis

    def scan_lanes(self, scan: Scan, fold: LoopReduction) -> None:
        dtype = self.dtypes[scan.value]
        value = self._counted(cast(self.b, self.vector(scan.value), dtype, fold.dtype), scan.op, fold.dtype)
        scanned, fold.partial = scans.run_lanes(self.b, scan.op, fold.dtype, fold.partial, value)
        self.values[scan.out] = cast(self.b, scanned, fold.dtype, dtype)

    def _scan(self, scan: Scan) -> None:
        """Combine the running value, which is neutral where the axis begins, with the value of this point."""
        b, state, dtype = self.b, self._state(scan), self.dtypes[scan.value]
        value = self._counted(cast(b, self.vector(scan.value), dtype, state.dtype), scan.op, state.dtype)
        place = self.at.of(state.name, state.index)
        kept = place.load_as(state.dtype, 0, self.at.lanes)
        begins = b.icmp("eq", self.at.axes[scan.axis], 0)
        before = b.select(begins, reductions.start(b, scan.op, state.dtype, self.at.lanes), kept)
        scanned = reductions.run_on(b, scan.op, state.dtype, before, value)
        after = scanned if self.mask is None else b.select(self.mask, scanned, kept)
        place.store(to_memory(b, after, state.dtype))
        self.values[scan.out] = cast(b, scanned, state.dtype, dtype)

    def _state(self, scan: Scan) -> scans.State:
        return scans.State.of(scan, self.dtypes[scan.value], self.plan.kernel.cols)

    def folded(self, instruction: Reduce | Accumulate, dtype: torch.dtype, partial: Value) -> Value:
        """Add one value to a reduction; a product is added to a sum by fma, rounded once."""
        factors = self.products.get(instruction.value)
        if instruction.op == "sum" and factors and dtype in (torch.float32, torch.float64) and self.mask is None:
            return self.b.fma(self.vector(factors[0]), self.vector(factors[1]), partial)
        value = self._counted(self.vector(instruction.value), instruction.op, dtype)
        return reductions.combine(self.b, instruction.op, dtype, partial, value)

    def _counted(self, value: Value, op: Running, dtype: torch.dtype) -> Value:
        """`value`, neutral in lanes that were seen before."""
        if self.mask is None:
            return value
        return self.b.select(self.mask, value, reductions.start(self.b, op, dtype, self.at.lanes))

    # Reductions over rows.

    def _accumulator(self, instruction: Accumulate) -> Accumulator:
        return next(a for a in self.plan.accumulators if a.instruction.buffer == instruction.buffer)

    def _accumulate(self, instruction: Accumulate) -> None:
        accumulator = self._accumulator(instruction)
        array, dtype = accumulator.arrays[-1]
        old = from_memory(self.b, self.load_raw(array, accumulator.index), dtype)
        if accumulator.index.stride(self.at.vector_axis) and dtype is accumulator.value_dtype:
            new = self.folded(instruction, dtype, old)
        else:
            value = self._counted(self.vector(instruction.value), instruction.op, accumulator.value_dtype)
            if accumulator.index.stride(self.at.vector_axis) == 0:
                value = reductions.reduce_lanes(self.b, instruction.op, accumulator.value_dtype, value)
            addend = cast(self.b, value, accumulator.value_dtype, dtype)
            new = reductions.combine(self.b, instruction.op, dtype, old, addend)
        mask, self.mask = self.mask, None
        self._store(array, accumulator.index, to_memory(self.b, new, dtype))
        self.mask = mask


class PointCode:
    """The instructions beside a kernel's contractions, at the points of loops that a schedule writes: given the vector
    of a contraction at some points, those for the rest. The writer of the loops sets the axes, except for the last of
    the cols, in `axes`. Values that do not change along cols are computed once per row."""

    __slots__ = ("at", "axes", "b", "code", "inside", "outside")

    def __init__(self, b: Builder, kernel: Kernel, body: Sequence[Instruction], lanes: int = 1) -> None:
        """Of `body`, which is of the kernel's first stage. Reads the buffers' addresses where it stands."""
        loops = LoopSchedule(kernel, lanes=lanes)
        self.b, self.at = b, Addresses.begin(b, kernel, Workspace.of_loops(loops))
        self.axes, self.code = self.at.axes, InstructionWriter.of(b, loops, self.at)
        moving = {id(i) for i in loop_variant(kernel, kernel.stages[0])}
        self.inside = tuple(i for i in body if id(i) in moving)  # what is done at every point
        self.outside = tuple(i for i in body if id(i) not in moving)  # and once per row

    def begin_row(self, packed: Container[Instruction] = ()) -> None:
        """Compute the row values at the current position of the row axes. `packed`: loads whose values `write` is
        given."""
        self.code.begin_row()
        self.at.lanes = 1
        for instruction in self.outside:
            self.code.write(instruction)
        self.code.hold_addresses([i for i in self.inside if i not in packed])

    def write(
        self, first: Value, lanes: int, values: Mapping[str, Value], mask: Value | None = None,
        packed: Mapping[Load, Callable[[], Value]] | None = None,
    ) -> None:  # fmt: skip
        """At `lanes` points from `first` of the last col axis on, given what others computed there, and what loads from
        elsewhere; with `mask`, at the last of them, where some were done before (see `loop_nest`)."""
        if self.at.vector_axis:
            self.at.axes[self.at.vector_axis] = first
        self.at.lanes, self.code.mask = lanes, mask
        self.code.values.update(values)
        for instruction in self.inside:
            if packed and isinstance(instruction, Load) and instruction in packed:
                self.code.values[instruction.out] = packed[instruction]()
            else:
                self.code.write(instruction)
        self.code.mask = None
