"""The rules of a whole program: buffers defined before use, arguments that fit, an arena without overlaps.

Used through `ir.check_kernel.check_program`. Each rule yields `(place, fault)` pairs.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from smelt.ir.kernel import SIZES
from smelt.ir.program import (
    Launch,
    Library,
    Place,
    Program,
    ProgramBuffer,
    arena_bytes,
    operands_in,
    reads,
    touches,
    writes,
)
from smelt.ir.tensorspec import short_name
from smelt.symbolic.shapes import span

Fault = tuple[object, str]


def _rule_buffers(program: Program) -> Iterator[Fault]:
    """Names are unique; inputs and constants have the places they claim."""
    seen: set[str] = set()
    for buffer in program.buffers:
        if buffer.name in seen:
            yield buffer, f"two buffers are named {buffer.name}"
        seen.add(buffer.name)
    constants = {name for name, _ in program.constants}
    for buffer in program.buffers:
        if (buffer.place is Place.INPUT) != (buffer.name in program.inputs):
            yield buffer, f"{buffer.name} is an input by place or by list, not by both"
        if (buffer.place is Place.CONSTANT) != (buffer.name in constants):
            yield buffer, f"{buffer.name} is a constant by place or by list, not by both"


def _rule_defined(program: Program) -> Iterator[Fault]:
    """Each buffer exists and is filled before it is read; each output is filled at the end."""
    known = {buffer.name for buffer in program.buffers}
    filled = {buffer.name for buffer in program.buffers if buffer.place in (Place.INPUT, Place.CONSTANT)}
    for step in program.steps:
        for name in reads(step) + writes(step):
            if name not in known:
                yield step, f"there is no buffer {name}"
        for name in reads(step):
            if name in known and name not in filled:
                yield step, f"{name} is read before anything fills it"
        filled.update(writes(step))
    for operand in operands_in(program.outputs):
        if operand.buffer not in filled:
            yield program.outputs, f"output {operand.buffer} is never filled"


def _rule_arguments(program: Program) -> Iterator[Fault]:
    """Kernels get as many buffers as they have parameters, of their dtypes, at least as long."""
    buffers = {buffer.name: buffer for buffer in program.buffers}
    for step in program.steps:
        if not isinstance(step, Launch):
            continue
        parameters = step.kernel.parameters
        if len(parameters) != len(step.args):
            yield step, f"{step.kernel.name} takes {len(parameters)} buffers, not {len(step.args)}"
            continue
        for parameter, name in zip(parameters, step.args, strict=True):
            if name not in buffers:
                continue
            spec = buffers[name].spec
            if spec.dtype is not parameter.dtype:
                yield step, f"{name} is {short_name(spec.dtype)}, {parameter.name} wants {short_name(parameter.dtype)}"
            if span(spec.shape, spec.stride) < parameter.size:
                yield step, f"{name} has fewer than the {parameter.size} elements of {parameter.name}"


def _rule_distinct(program: Program) -> Iterator[Fault]:
    """A buffer that a kernel writes is passed to it once."""
    for step in program.steps:
        if isinstance(step, Launch):
            for kernel, args in step.parts:
                for name in writes(Launch(kernel, args)):
                    if args.count(name) > 1:
                        yield step, f"{name} is written and passed twice"


def _rule_groups(program: Program) -> Iterator[Fault]:
    """Kernels that are launched as one are for one target, and none writes what another reads or writes."""
    for step in program.steps:
        if not isinstance(step, Launch):
            continue
        parts = [Launch(kernel, args) for kernel, args in step.parts]
        if len({part.target for part in parts}) > 1:
            yield step, "its kernels are for different targets"
        writer = {name: number for number, part in enumerate(parts) for name in writes(part)}
        for number, part in enumerate(parts):
            for name in part.args:
                if writer.get(name, number) != number:
                    yield step, f"{name} is written by one of its kernels and passed to another"


def _rule_views(program: Program) -> Iterator[Fault]:
    """Operands are inside their buffers."""
    buffers = {buffer.name: buffer for buffer in program.buffers}
    places: list[tuple[object, Any]] = [(program.outputs, program.outputs)]
    places += [(step, [step.args, [v for _, v in step.kwargs]]) for step in program.steps if isinstance(step, Library)]
    for place, values in places:
        for operand in operands_in(values):
            if operand.buffer not in buffers:
                continue
            spec = buffers[operand.buffer].spec
            length = span(operand.shape, operand.stride)
            if operand.offset < 0 or (length and operand.offset + length > span(spec.shape, spec.stride)):
                yield place, f"a view reaches outside {operand.buffer}"


def _rule_results(program: Program) -> Iterator[Fault]:
    """Library calls without `into` fill library buffers; with it, buffers that exist already. Constants stay."""
    places = {buffer.name: buffer.place for buffer in program.buffers}
    for step in program.steps:
        for name in writes(step):
            if places.get(name) is Place.CONSTANT:
                yield step, f"constant {name} is written"
            owned = isinstance(step, Library) and not step.into
            if isinstance(step, Library) and step.unless is not None:
                yield step, f"{name} is filled only if {step.unless} is false"
            if name in places and (places[name] is Place.LIBRARY) != owned:
                yield step, f"{name} is {places[name].value}, which this step cannot fill"


def _rule_arena(program: Program) -> Iterator[Fault]:
    """Arena buffers are inside the arena, on its device, aligned, and apart from every other one alive at the same
    step."""
    planned = [buffer for buffer in program.buffers if buffer.place is Place.ARENA]
    for buffer in planned[1:]:
        if buffer.spec.device != planned[0].spec.device:
            yield buffer, f"{buffer.name} is on {buffer.spec.device}, the arena on {planned[0].spec.device}"
    lives = touches(program)
    for buffer in planned:
        if buffer.offset < 0 or buffer.offset + arena_bytes(buffer) > program.arena_bytes:
            yield buffer, f"{buffer.name} reaches outside the arena"
        if buffer.offset % buffer.spec.dtype.itemsize:
            yield buffer, f"{buffer.name} is not aligned"
    alive = [buffer for buffer in planned if buffer.name in lives and arena_bytes(buffer)]
    for number, first in enumerate(alive):
        for second in alive[number + 1 :]:
            apart = _apart(lives[first.name], lives[second.name])
            if not apart and _overlap(first, second):
                yield second, f"{second.name} shares memory with {first.name} while both are alive"


def _rule_one_device(program: Program) -> Iterator[Fault]:
    """A kernel's buffers are on one device, but for numbers that the host has."""
    device = {buffer.name: buffer.spec.device for buffer in program.buffers}
    numbers = {buffer.name for buffer in program.buffers if buffer.spec.is_number}
    for step in program.steps:
        if not isinstance(step, Launch):
            continue
        pairs = [pair for pair in zip(step.args, step.kernel.parameters, strict=False) if pair[0] in device]
        kept = {name for name, buffer in pairs if buffer.name == SIZES or buffer.on_host} | numbers
        devices = {device[name] for name, _ in pairs if name not in kept}
        for name, buffer in pairs:
            if buffer.on_host and device[name] in devices and name not in numbers:
                yield step, f"{name} is on {device[name]} as the kernel is, and is read on the host"
        if len(devices) > 1:
            yield step, f"a kernel on {' and '.join(sorted(map(str, devices)))}"


def _apart(first: tuple[int, int], second: tuple[int, int]) -> bool:
    return first[1] < second[0] or second[1] < first[0]


def _overlap(first: ProgramBuffer, second: ProgramBuffer) -> bool:
    return (
        first.offset < second.offset + arena_bytes(second) and second.offset < first.offset + arena_bytes(first)
    )


def _rule_outputs_leave(program: Program) -> Iterator[Fault]:
    """No output is in the arena, which the next call overwrites."""
    places = {buffer.name: buffer.place for buffer in program.buffers}
    for operand in operands_in(program.outputs):
        if places.get(operand.buffer) is Place.ARENA:
            yield program.outputs, f"output {operand.buffer} is in the arena"


PROGRAM_RULES: dict[str, Callable[[Program], Iterable[Fault]]] = {
    "buffers": _rule_buffers,
    "defined": _rule_defined,
    "arguments": _rule_arguments,
    "distinct": _rule_distinct,
    "groups": _rule_groups,
    "views": _rule_views,
    "results": _rule_results,
    "arena": _rule_arena,
    "one device": _rule_one_device,
    "outputs leave": _rule_outputs_leave,
}
