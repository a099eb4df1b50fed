"""The reference interpreter: what a kernel or program means, by whole-tensor operations.

Every instruction is evaluated at all points of the grid at once, its value a tensor that broadcasts to the shape of
rows followed by cols; loads and stores go by flat position; floating sums and products are folded in float64. Slow and
memory-hungry on purpose: each target is held against it.

    tensors = [x, torch.empty_like(x)]
    run_kernel(softmax, tensors)      # tensors[1] now holds softmax(x)
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from smelt.codegen.axes import reindexed
from smelt.ir.kernel import (
    Accumulate,
    Axis,
    Cast,
    Compute,
    Const,
    Contract,
    Element,
    Factor,
    Gather,
    Index,
    Instruction,
    Kernel,
    Load,
    Position,
    Quantized,
    Reduce,
    Reduction,
    Role,
    Running,
    Scan,
    Scatter,
    Softmax,
    Stage,
    Store,
    WeightedSum,
    neutral,
)
from smelt.ir.program import Launch, Library, Operand, Place, Program, ProgramBuffer
from smelt.ir.scalar import SCALAR_OPS
from smelt.symbolic.shapes import Size, span


def run_kernel(kernel: Kernel, tensors: Sequence[Tensor]) -> None:
    """Run `kernel` on `tensors`, in the order of `kernel.parameters`; each starts at its buffer's first element."""
    if len(tensors) != len(kernel.parameters):
        raise ValueError(f"kernel {kernel.name} takes {len(kernel.parameters)} tensors, not {len(tensors)}")
    with torch.no_grad():
        run = Run(kernel)
        for buffer, tensor in zip(kernel.parameters, tensors, strict=True):
            if tensor.dtype is not buffer.dtype:
                raise ValueError(f"kernel {kernel.name}: buffer {buffer.name} is {buffer.dtype}, not {tensor.dtype}")
            run.memory[buffer.name] = tensor.detach().as_strided((buffer.size,), (1,))
        for stage in kernel.stages:
            run.stage(stage)


class Run:
    """One run: the memory of every buffer and the values so far."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.axes = kernel.rows + kernel.cols
        self.values: dict[str, Tensor] = {}
        self.memory: dict[str, Tensor] = {}
        self.seen = self.memory  # as instructions read it
        self.scratch = [buffer.name for buffer in kernel.buffers if buffer.role is Role.SCRATCH]
        for buffer in kernel.buffers:
            if buffer.role is Role.SCRATCH:
                self.memory[buffer.name] = torch.zeros(kernel.row_count * buffer.size, dtype=buffer.dtype)

    def stage(self, stage: Stage) -> None:
        """All its steps, if it has any; what one stores to scratch is seen by the next."""
        steps = stage.steps
        if steps is None:
            for instruction in stage.body:
                self.step(instruction, stage.loop)
            return
        for number in range(int(steps.size)):
            self.seen = {**self.memory, **{name: self.memory[name].clone() for name in self.scratch}}
            for instruction in stage.body:
                self.step(reindexed(instruction, partial(_fixed, axis=steps.name, number=number)), stage.loop)
        self.seen = self.memory

    def grid(self, loop: bool) -> tuple[Size, ...]:
        """The extents a stage runs over; cols count one in a row stage."""
        return tuple(axis.size for axis in self.kernel.rows) + tuple(
            axis.size if loop else 1 for axis in self.kernel.cols
        )

    def spread(self, index: Index) -> Tensor:
        """Positions over the axes the index names; the others have extent one."""
        return _spread(index, self.axes)

    def positions(self, index: Index, loop: bool) -> Tensor:
        return self.spread(index).expand(self.grid(loop))

    def buffer_positions(self, name: str, index: Index, loop: bool) -> Tensor:
        """As `positions`, with a copy of a scratch buffer for every row."""
        found = self.positions(index, loop)
        buffer = self.kernel.buffer(name)
        if buffer.role is not Role.SCRATCH:
            return found
        return found + self.row_starts(name, len(self.axes))

    def row_starts(self, scratch: str, rank: int) -> Tensor:
        """Where the copy of each row begins."""
        rows = tuple(axis.size for axis in self.kernel.rows)
        starts = torch.arange(self.kernel.row_count) * self.kernel.buffer(scratch).size
        return starts.reshape(rows + (1,) * (rank - len(rows)))

    def step(self, instruction: Instruction, loop: bool) -> None:
        match instruction:
            case Const(out, value, dtype):
                self.values[out] = torch.tensor(value, dtype=dtype).expand((1,) * len(self.axes))
            case Load(out, name, index):
                self.values[out] = self.seen[name][self.buffer_positions(name, index, loop)]
            case Gather(out, name, index, by):
                where = self.buffer_positions(name, index, loop)
                for source, stride, extent in by:
                    place = self.values[source]
                    inside = (place >= 0) & (place < extent)
                    where = where + torch.where(inside, place, extent - 1) * stride
                self.values[out] = self.memory[name][where]
            case Position(out, index):
                self.values[out] = self.positions(index, loop)
            case Compute(out, op, args, dtype):
                self.values[out] = SCALAR_OPS[op].reference(*(self.values[arg] for arg in args)).to(dtype)
            case Cast(out, source, dtype):
                self.values[out] = self.values[source].to(dtype)
            case Store(name, index, source):
                where = self.buffer_positions(name, index, loop)
                self.memory[name][where.reshape(-1)] = self.values[source].expand(where.shape).reshape(-1)
            case Reduce(out, op, source):
                dims = tuple(range(len(self.kernel.rows), len(self.axes)))
                spread = self.values[source].expand(self.grid(loop))
                self.values[out] = fold(op, spread, dims, spread.dtype)
            case Scan(out, op, source, axis, backwards):
                dim = [each.name for each in self.axes].index(axis)
                self.values[out] = scan(op, self.values[source].expand(self.grid(loop)), dim, backwards)
            case Accumulate(name, op, index, source):
                self.accumulate(name, op, index, self.values[source].expand(self.grid(loop)))
            case Scatter(name, op, index, by, source):
                where, inside = self.positions(index, loop), torch.ones(self.grid(loop), dtype=torch.bool)
                for put, stride, extent in by:
                    inside = inside & (self.values[put] >= 0) & (self.values[put] < extent)
                    where = where + self.values[put] * stride
                scatter(op, self.memory[name], where[inside], self.values[source].expand(where.shape)[inside])
            case Contract(out):
                wide = self.contracted(instruction, lambda read: read.to(instruction.dtype).double())
                self.values[out] = wide.to(instruction.dtype)
            case Softmax(out, source, sums, nan):
                spread, cols = self.values[source].expand(self.grid(loop)), range(len(self.kernel.rows), len(self.axes))
                self.values[out], self.values[sums] = softmax(spread, cols)
                if nan:
                    is_empty = (spread == -math.inf).all(dim=tuple(cols), keepdim=True)
                    self.values[out] = self.values[out].masked_fill(is_empty, math.nan)
            case WeightedSum():
                self.weigh(instruction)

    def accumulate(self, name: str, op: Reduction, index: Index, value: Tensor) -> None:
        dims = tuple(number for number, axis in enumerate(self.axes) if axis.name not in index.axes)
        total = fold(op, value, dims, self.memory[name].dtype)
        where = self.spread(index)
        self.memory[name][where.reshape(-1)] = total.expand(where.shape).reshape(-1)


    def weigh(self, instruction: WeightedSum) -> None:
        axes, rank = self.axes + instruction.axes, len(self.axes) + len(instruction.axes)
        value = self.values[instruction.value].expand(self.grid(loop=True)).double()
        factor = self.factor(instruction.factor, axes).to(instruction.dtype).double()
        named = [number for number, axis in enumerate(axes) if axis.name in instruction.index.axes]
        total = torch.einsum(value, list(range(len(self.axes))), factor, list(range(rank)), named)
        memory, where = self.memory[instruction.buffer], _spread(instruction.index, axes)
        total = total.to(instruction.dtype).to(memory.dtype).expand([axes[number].size for number in named])
        memory[where.reshape(-1)] = total.reshape(-1)

    def contracted(self, instruction: Contract, convert: Callable[[Tensor], Tensor]) -> Tensor:
        """The sum of products of what is read, converted; each factor has extent one along axes it does not name."""
        axes = self.axes + instruction.axes
        left, right = (convert(self.factor(each, axes)) for each in instruction.factors)
        dims, kept = list(range(len(axes))), list(range(len(self.axes)))
        found = torch.einsum(left, dims, right, dims, kept)
        for dim, axis in enumerate(instruction.axes, len(self.axes)):
            if left.shape[dim] == right.shape[dim] == 1:  # along an axis that neither depends on all products are equal
                found = found * axis.size if axis.size else torch.zeros_like(found)
        return found

    def factor(self, factor: Factor, axes: Sequence[Axis]) -> Tensor:
        if factor.quantized is not None:
            return self.dequantized(factor, factor.quantized, axes)
        where, memory = _spread(factor.index, axes), self.seen[factor.buffer]
        if factor.buffer in self.scratch:
            where = where + self.row_starts(factor.buffer, len(axes))
        inside = torch.ones((), dtype=torch.bool)
        for position, extent in factor.bounds:
            at = _spread(position, axes)
            inside = inside & (at >= 0) & (at < extent)
        where, inside = torch.broadcast_tensors(where, inside)
        if any(axis.size == 0 for axis in axes):  # no point reads anything
            return memory.new_zeros(where.shape)
        return memory.new_zeros(where.shape).masked_scatter(inside, memory[where[inside]])


    def dequantized(self, factor: Factor, quantized: Quantized, axes: Sequence[Axis]) -> Tensor:
        """In float64."""
        where, memory = _spread(factor.index, axes), self.memory[factor.buffer]
        if quantized.is_packed:
            halves = memory.view(torch.uint8).to(torch.int64)[where // 2] >> 4 * (where % 2) & 15
            integers = (halves ^ 8) - 8 if quantized.kind == "i4" else halves
        else:
            integers = memory[where].to(torch.int64)

        def element(read: Element) -> Tensor:
            return self.memory[read.buffer][_spread(read.index, axes)].double()

        numbers = integers.double() - quantized.offset
        if quantized.zero is not None:
            numbers = numbers - element(quantized.zero)
        numbers = numbers * element(quantized.scale)
        return numbers if quantized.low is None else numbers + element(quantized.low)


def _spread(index: Index, axes: Sequence[Axis]) -> Tensor:
    """Positions over the axes the index names; the others have extent one."""
    total = torch.tensor(index.offset, dtype=torch.int64).reshape((1,) * len(axes))
    for number, axis in enumerate(axes):
        if index.stride(axis.name):
            total = total + _ramp(axis, number, len(axes)) * index.stride(axis.name)
    return total


def _fixed(index: Index, axis: str, number: int) -> Index:
    """An index at one point of an axis."""
    terms = tuple(term for term in index.terms if term[0] != axis)
    return Index(terms, index.offset + index.stride(axis) * number)


def _ramp(axis: Axis, number: int, rank: int) -> Tensor:
    shape = [1] * rank
    shape[number] = axis.size
    return torch.arange(axis.size, dtype=torch.int64).reshape(shape)


def fold(op: Reduction, value: Tensor, dims: Sequence[int], dtype: torch.dtype) -> Tensor:
    """`value` folded over `dims`, which stay with extent one."""
    work = value.double() if value.dtype.is_floating_point and op in ("sum", "prod") else value
    if any(value.shape[dim] == 0 for dim in dims):
        shape = [1 if dim in dims else size for dim, size in enumerate(value.shape)]
        return torch.full(shape, neutral(op, value.dtype), dtype=dtype)
    for dim in dims:
        match op:
            case "sum":
                work = work.sum(dim, keepdim=True)
            case "prod":
                work = work.prod(dim, keepdim=True)
            case "max":
                work = work.amax(dim, keepdim=True)
            case "min":
                work = work.amin(dim, keepdim=True)
            case "any":
                work = work.any(dim, keepdim=True)
            case "all":
                work = work.all(dim, keepdim=True)
    # A sum of f32 ends in f32 before it is rounded to a narrower buffer, as it is kept in a register of f32.
    return work.to(value.dtype).to(dtype)


def softmax(value: Tensor, dims: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Weights along `dims`, and the logarithm of what they were divided by: zeros where everything is -inf."""
    if any(value.shape[dim] == 0 for dim in dims):
        shape = [1 if dim in dims else size for dim, size in enumerate(value.shape)]
        return value, torch.zeros(shape, dtype=value.dtype)
    wide = value.double()
    top = wide.amax(tuple(dims), keepdim=True)
    nothing = top == -torch.inf
    top = torch.where(nothing, 0.0, top)
    powers = (wide - top).exp()
    total = torch.where(nothing, 1.0, powers.sum(tuple(dims), keepdim=True))
    return (powers / total).to(value.dtype), torch.where(nothing, 0.0, top + total.log()).to(value.dtype)


_SCATTERS = {"sum": "sum", "prod": "prod", "max": "amax", "min": "amin", "any": "amax", "all": "amin"}


def scatter(op: Reduction | None, memory: Tensor, where: Tensor, value: Tensor) -> None:
    """`memory[where]` folded with `value`, in order; without `op` the last of those that meet stays."""
    if op is None:
        turns = torch.full(memory.shape, -1).scatter_reduce(0, where, torch.arange(len(where)), "amax")
        memory.copy_(torch.where(turns < 0, memory, value[turns.clamp_min(0)] if len(value) else memory))
        return
    wide = torch.float64 if memory.dtype.is_floating_point else torch.int64
    memory.copy_(memory.to(wide).scatter_reduce(0, where, value.to(wide), _SCATTERS[op]))


def scan(op: Running, value: Tensor, dim: int, backwards: bool) -> Tensor:
    """Folds of `value` up to each point along `dim`, or from each on."""
    work = value.double() if value.dtype.is_floating_point and op in ("sum", "prod", "logaddexp") else value
    work = work.flip(dim) if backwards else work
    match op:
        case "sum" | "any":
            work = work.cumsum(dim)
        case "prod" | "all":
            work = work.cumprod(dim)
        case "max":
            work = work.cummax(dim).values
        case "min":
            work = work.cummin(dim).values
        case "logaddexp":
            work = work.logcumsumexp(dim)
    return (work.flip(dim) if backwards else work).to(value.dtype)


# Programs.


def run_program(program: Program, inputs: Sequence[Tensor]) -> list[object]:
    """Run every step, kernels by `run_kernel` and library calls by ATen, each buffer in memory of its own."""
    memory: dict[str, Tensor] = dict(zip(program.inputs, inputs, strict=True))
    memory.update(program.constants)
    for buffer in program.buffers:
        if buffer.place in (Place.ARENA, Place.FRESH):
            memory[buffer.name] = _allocate(buffer)
    with torch.no_grad():
        for step in program.steps:
            if isinstance(step, Launch):
                for kernel, args in step.parts:
                    run_kernel(kernel, [memory[name] for name in args])
            else:
                _call(step, memory)
    return [_view(output, memory) if isinstance(output, Operand) else output for output in program.outputs]


def _allocate(buffer: ProgramBuffer) -> Tensor:
    spec = buffer.spec
    flat = torch.empty(span(spec.shape, spec.stride), dtype=spec.dtype, device=spec.device)
    return flat.as_strided(spec.shape, spec.stride)


def _view(operand: Operand, memory: dict[str, Tensor]) -> Tensor:
    base = memory[operand.buffer]
    return base.as_strided(operand.shape, operand.stride, int(base.storage_offset()) + operand.offset)


def _resolve(value: Any, memory: dict[str, Tensor]) -> Any:
    if isinstance(value, Operand):
        return _view(value, memory)
    if isinstance(value, list | tuple):
        return type(value)(_resolve(item, memory) for item in value)
    return value


def _call(step: Library, memory: dict[str, Tensor]) -> None:
    if step.unless is not None and memory[step.unless].all():
        return
    args = [_resolve(arg, memory) for arg in step.args]
    kwargs = {name: _resolve(value, memory) for name, value in step.kwargs}
    if step.into:
        kwargs.update({name: memory[cast(str, out)] for name, out in zip(step.into, step.outs, strict=True)})
        step.op(*args, **kwargs)
        return
    results = step.op(*args, **kwargs)
    results = results if isinstance(results, list | tuple) else (results,)
    for name, result in zip(step.outs, results, strict=True):
        if name is not None:
            memory[name] = result
