"""Kernels and programs as text.

    kernel add rows() cols(j:8)
      in x: f32[8]
      out y: f32[8]
      loop:
        a = load x[j]
        one = const 1.0 : f32
        b = add a, one : f32
        store y[j] = b

An index is written `1024*i + j - 3`; a stage is `loop:` or `row:`. Where sizes vary they are expressions over named
ones: `rows(i:s0)`, `x[(4*s0 + 1)*i + j]`. Nothing of a kernel is left out: tests read it back (`tests/kernel_text.py`).
Golden tests, `SMELT_LOGS=kernels` and the messages of `ir.check_kernel` all use this form.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from smelt.ir.kernel import (
    HOST,
    Accumulate,
    AnyKernel,
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
    KernelGroup,
    Load,
    Position,
    Reduce,
    Scan,
    Scatter,
    Softmax,
    Store,
    WeightedSum,
)
from smelt.ir.program import Library, Operand, Output, Place, Program, ProgramBuffer
from smelt.ir.tensorspec import short_name
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import is_symsize


def runs(numbers: Sequence[int]) -> list[list[int]]:
    """Numbers in order, those that follow each other in one list."""
    lists: list[list[int]] = []
    for number in numbers:
        if lists and number == lists[-1][-1] + 1:
            lists[-1].append(number)
        else:
            lists.append([number])
    return lists


def excerpt(lines: Sequence[tuple[object, str]], place: object) -> str:
    """Lines around the one that shows a place, each given with what it shows."""
    at = next((number for number, (owner, _) in enumerate(lines) if owner is place), 0)
    shown = range(max(0, at - 4), min(len(lines), at + 3))
    return "\n".join([f"{'>' if number == at else ' '} {lines[number][1]}" for number in shown])


def format_index(index: Index) -> str:
    """`Index((("i", 8), ("j", -1)), 3)` → `"8*i - j + 3"`."""
    text = ""
    for name, stride in index.terms:
        if is_symsize(stride):
            text += _signed(f"({stride})*{name}", negative=False, first=not text)
            continue
        size = name if abs(stride) == 1 else f"{abs(stride)}*{name}"
        text += _signed(size, negative=stride < 0, first=not text)
    if is_symsize(index.offset):
        text += _signed(f"({index.offset})", negative=False, first=not text)
    elif index.offset or not text:
        text += _signed(str(abs(index.offset)), negative=index.offset < 0, first=not text)
    return text


def _signed(text: str, *, negative: bool, first: bool) -> str:
    if first:
        return f"-{text}" if negative else text
    return f" - {text}" if negative else f" + {text}"


def format_constant(value: float | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value)


def format_instruction(instruction: Instruction) -> str:
    """One line, without indent."""
    match instruction:
        case Const(out, value, dtype):
            return f"{out} = const {format_constant(value)} : {short_name(dtype)}"
        case Load(out, buffer, index):
            return f"{out} = load {buffer}[{format_index(index)}]"
        case Gather(out, buffer, index, by):
            return f"{out} = gather {buffer}[{format_index(index)}] by {', '.join(map(_format_reach, by))}"
        case Position(out, index):
            return f"{out} = position {format_index(index)}"
        case Compute(out, op, args, dtype):
            return f"{out} = {op} {', '.join(args)} : {short_name(dtype)}"
        case Cast(out, source, dtype):
            return f"{out} = cast {source} : {short_name(dtype)}"
        case Store(buffer, index, source):
            return f"store {buffer}[{format_index(index)}] = {source}"
        case Reduce(out, op, source):
            return f"{out} = reduce {op} {source}"
        case Scan(out, op, source, axis, backwards):
            return f"{out} = scan {op} {source} along {axis}{' backwards' if backwards else ''}"
        case Accumulate(buffer, op, index, source):
            return f"accumulate {op} {buffer}[{format_index(index)}] = {source}"
        case Scatter(buffer, op, index, by, source, unordered):
            places, how = ", ".join(map(_format_reach, by)), " unordered" if unordered else ""
            return f"scatter {op or 'last'} {buffer}[{format_index(index)}] by {places} = {source}{how}"
        case Contract(out, axes, left, right, dtype):
            factors = f"{_format_factor(left)}, {_format_factor(right)}"
            return f"{out} = contract ({_format_axes(axes)}) {factors} : {short_name(dtype)}"
        case Softmax(out, source, sums, nan):
            return f"{out}{', ' if sums else ''}{sums} = softmax {source}{' or nan' if nan else ''}"
        case WeightedSum(buffer, index, axes, source, factor, dtype):
            summed = f"{buffer}[{format_index(index)}] = {source} * {_format_factor(factor)}"
            return f"weighted sum ({_format_axes(axes)}) {summed} : {short_name(dtype)}"


def _format_factor(factor: Factor) -> str:
    bounds = " and ".join(f"{format_index(position)} below {extent}" for position, extent in factor.bounds)
    bounds = f" where {bounds}" if bounds else ""
    read, quantized = f"{factor.buffer}[{format_index(factor.index)}]", factor.quantized
    if quantized is None:
        return read + bounds
    read = f"{quantized.kind} {read}"
    if quantized.offset:
        read += f" {'-' if quantized.offset > 0 else '+'} {abs(quantized.offset)}"
    if quantized.zero is not None:
        read += f" - {_format_element(quantized.zero)}"
    low = f" + {_format_element(quantized.low)}" if quantized.low is not None else ""
    return f"({read}) * {_format_element(quantized.scale)}{low}{bounds}"


def _format_element(element: Element) -> str:
    return f"{element.buffer}[{format_index(element.index)}]"


def _format_reach(reach: tuple[str, Size, Size]) -> str:
    value, stride, extent = reach
    return f"({stride})*{value} below {extent}" if is_symsize(stride) else f"{stride}*{value} below {extent}"


def _format_axes(axes: Iterable[Axis]) -> str:
    return ", ".join(f"{axis.name}:{axis.size}" for axis in axes)


def kernel_lines(kernel: Kernel) -> Iterator[tuple[object, str]]:
    """The text line by line, each with the buffer, stage or instruction it shows (the kernel itself for the first)."""
    where = "" if kernel.target == HOST else f" on {kernel.target}"
    where += "" if kernel.early is None else f" early({', '.join(kernel.early)})"
    yield kernel, f"kernel {kernel.name} rows({_format_axes(kernel.rows)}) cols({_format_axes(kernel.cols)}){where}"
    for buffer in kernel.buffers:
        place = " of the host" if buffer.on_host else ""
        yield buffer, f"  {buffer.role.value} {buffer.name}: {short_name(buffer.dtype)}[{buffer.size}]{place}"
    for stage in kernel.stages:
        steps = f"steps({_format_axes([stage.steps])}):" if stage.steps else ""
        yield stage, f"  {steps or ('loop:' if stage.loop else 'row:')}"
        for instruction in stage.body:
            yield instruction, f"    {format_instruction(instruction)}"


def _launched_lines(kernel: AnyKernel) -> Iterator[tuple[object, str]]:
    """The same of whatever a step launches."""
    if not isinstance(kernel, KernelGroup):
        yield from kernel_lines(kernel)
        return
    yield kernel, f"group {kernel.name} of {len(kernel.kernels)}"
    for each in kernel.kernels:
        yield from ((place, f"  {line}") for place, line in kernel_lines(each))


def format_kernel(kernel: AnyKernel) -> str:
    """The whole kernel, in the form of this module's docstring, without a final newline; or the kernels of a group."""
    return "\n".join(line for _, line in _launched_lines(kernel))


# Programs.


def format_program(program: Program) -> str:
    """Buffers, then steps in order with each kernel written out at its first launch, then outputs."""
    return "\n".join(line for _, line in program_lines(program))


def program_lines(program: Program) -> Iterator[tuple[object, str]]:
    """The text line by line, each with the buffer, step or output it shows."""
    yield program, f"program {program.name} ({', '.join(program.inputs)}) arena {program.arena_bytes}"
    for buffer in program.buffers:
        yield buffer, f"  {_format_program_buffer(buffer)}"
    shown: set[str] = set()
    for step in program.steps:
        if isinstance(step, Library):
            yield step, f"  {_format_library(step)}"
            continue
        yield step, f"  launch {step.kernel.name}({', '.join(step.args)})"
        if step.kernel.name not in shown:
            yield from ((step, f"    {line}") for _, line in _launched_lines(step.kernel))
        shown.add(step.kernel.name)
    yield program.outputs, f"  return {', '.join(_format_value(output) for output in program.outputs)}"


def _format_program_buffer(buffer: ProgramBuffer) -> str:
    place = f"{buffer.place.value}@{buffer.offset}" if buffer.place is Place.ARENA else buffer.place.value
    return f"{place} {buffer.name}: {buffer.spec}"


def _format_library(step: Library) -> str:
    parts = [_format_value(arg) for arg in step.args]
    parts += [f"{name}={_format_value(value)}" for name, value in step.kwargs]
    outs = ", ".join(name or "_" for name in step.outs)
    if step.unless is not None:
        return f"unless {step.unless}: call {step.op}({', '.join(parts)})"
    if step.into:
        parts += [f"{name}={out}" for name, out in zip(step.into, step.outs, strict=True)]
        return f"call {step.op}({', '.join(parts)})"
    return f"{outs} = call {step.op}({', '.join(parts)})"


def _format_value(value: Output | Any) -> str:
    if isinstance(value, Operand):
        place = f" at {value.offset}" if value.offset else ""
        return f"{value.buffer}[{', '.join(map(str, value.shape))}:{', '.join(map(str, value.stride))}{place}]"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_format_value(item) for item in value)}]"
    return str(value)
