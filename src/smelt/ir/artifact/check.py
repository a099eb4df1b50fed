"""The rules of machines, as code: `check_machine` raises on the first one broken. What a table has too, states that
follow each other and alignment for example, is checked there (csrc/executor/check.c).

A rule yields `(place, fault)` pairs, the place being the register, variant or end at fault; `MACHINE_RULES` lists them.

    SM022: machine step breaks rule "registers": r7 is not there
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from smelt.base.errors import SpecError
from smelt.ir.artifact.machine import (
    ArgumentKind,
    Branch,
    Literal,
    Machine,
    NumberCheck,
    NumberOf,
    Register,
    RegisterKind,
    RegisterView,
    Return,
    Scalar,
    SizeCheck,
    Value,
    ValueCheck,
    Variant,
)
from smelt.ir.artifact.text import format_value, machine_lines
from smelt.ir.check_kernel import check_program
from smelt.ir.program import Library, Place
from smelt.ir.table.records import span_bytes, successors
from smelt.ir.text import excerpt
from smelt.symbolic.symsize import is_symsize

Fault = tuple[object, str]

_KEPT = (RegisterKind.STATE, RegisterKind.CONSTANT)


def _variants(machine: Machine) -> Iterator[Variant]:
    for state in machine.states:
        yield from state.variants


def _rule_registers(machine: Machine) -> Iterator[Fault]:
    """Values that are kept between calls are inside a storage; inputs have shapes."""
    names = {dimension.name for dimension in machine.dimensions}
    for register in machine.registers:
        if (register.storage is not None) != (register.kind in _KEPT):
            yield register, f"{register.name} is {register.kind} and has {_place(register)}"
        elif register.storage is not None:
            yield from _storage_faults(machine, register)
        if (register.shape is None) != (register.kind is RegisterKind.LOCAL):
            yield register, f"{register.name} is {register.kind} and has the shape {register.shape}"
        for size in register.shape or ():
            if isinstance(size, str) and (register.kind is not RegisterKind.INPUT or size not in names):
                yield register, f"{register.name} has a size {size} that is none of the dimensions"


def _rule_storages(machine: Machine) -> Iterator[Fault]:
    """What registers show of a storage is all state or all constant: constants are mapped read-only."""
    kinds: dict[int, RegisterKind] = {}
    for register in machine.registers:
        if register.storage is not None and kinds.setdefault(register.storage, register.kind) is not register.kind:
            yield register, f"{register.name} is {register.kind} in a storage that is not"
    for storage in machine.storages:
        if storage.data.dtype is not torch.uint8 or storage.data.dim() != 1:
            yield storage, f"{storage.name} is not a row of bytes"


def _place(register: Register) -> str:
    return "no storage" if register.storage is None else "a storage"


def _storage_faults(machine: Machine, register: Register) -> Iterator[Fault]:
    assert register.storage is not None
    if not 0 <= register.storage < len(machine.storages):
        yield register, f"there is no storage {register.storage}"
        return
    sizes = [size for size in register.shape or () if isinstance(size, int)]
    end = register.offset + span_bytes(str(register.dtype).removeprefix("torch."), sizes, register.stride or ())
    if register.offset < 0 or end > machine.storages[register.storage].data.numel():
        yield register, f"{register.name} reaches outside its storage"


def _rule_arguments(machine: Machine) -> Iterator[Fault]:
    """There is an argument for each leaf; tensors and numbers are in input registers, each in its own."""
    if machine.parameters.leaves != len(machine.arguments):
        yield machine, f"{machine.parameters.leaves} leaves and {len(machine.arguments)} arguments"
    inputs = [number for number, each in enumerate(machine.registers) if each.kind is RegisterKind.INPUT]
    used = [each.register for each in machine.arguments if each.register is not None]
    if sorted(used) != inputs:
        yield machine, f"arguments are in registers {used}, inputs are {inputs}"
    for argument in machine.arguments:
        if (argument.kind is ArgumentKind.VALUE) != (argument.register is None):
            yield machine, f"{argument.name} is a {argument.kind.value} in {argument.register}"


def _rule_programs(machine: Machine) -> Iterator[Fault]:
    """Programs get an input for each of theirs, of its dtype, and call no library; their outputs go to registers that
    may be written."""
    for variant in _variants(machine):
        program = variant.program
        if program is None:
            if variant.inputs or variant.results:
                yield variant, "inputs or results without a program"
            continue
        if len(variant.inputs) != len(program.inputs) or len(variant.results) != len(program.outputs):
            yield variant, "not as many inputs or results as the program has"
            continue
        if any(isinstance(step, Library) for step in program.steps):
            yield variant, "a program that calls a library"
        for buffer in program.buffers:
            if buffer.place is Place.LIBRARY:
                yield variant, f"{buffer.name} would be allocated by a library"
        yield from _register_faults(machine, variant)


def _register_faults(machine: Machine, variant: Variant) -> Iterator[Fault]:
    assert variant.program is not None
    for view, name in zip(variant.inputs, variant.program.inputs, strict=True):
        source = view if isinstance(view, NumberOf) else _register(machine, view.register)
        if source is None:
            yield variant, f"there is no register {format_value(view)}"
        elif source.dtype is not variant.program.buffer(name).spec.dtype:
            yield variant, f"{format_value(view)} has another dtype than {name}"
    for number in (*variant.results, *variant.written, *(register for register, _ in variant.numbers)):
        target = None if number is None else _register(machine, number)
        if number is not None and target is None:
            yield variant, f"there is no register r{number}"
        elif target is not None and target.kind in (RegisterKind.INPUT, RegisterKind.CONSTANT):
            yield variant, f"r{number} is {target.kind} and is written"


def _register(machine: Machine, number: int) -> Register | None:
    return machine.registers[number] if 0 <= number < len(machine.registers) else None


def _rule_symbols(machine: Machine) -> Iterator[Fault]:
    """Symbols are bound once, from registers that have such a size; checks and sizes have no others."""
    for variant in _variants(machine):
        names = [binding.symbol for binding in variant.symbols]
        if len(set(names)) != len(names):
            yield variant, "a symbol that is bound twice"
        for binding in variant.symbols:
            source = _register(machine, binding.register)
            short = source is not None and source.shape is not None and (binding.dim or 0) >= max(len(source.shape), 1)
            if source is None or short:
                yield variant, f"{binding.symbol} is bound to a size that is not there"
        for name in _symbols_used(variant):
            if name not in names:
                yield variant, f"{name} is not bound"
        for check in variant.checks:
            if isinstance(check, ValueCheck) and not 0 <= check.argument < len(machine.arguments):
                yield variant, f"there is no argument {check.argument}"


def _symbols_used(variant: Variant) -> Iterator[str]:
    for check in variant.checks:
        if isinstance(check, SizeCheck):
            yield from (symbol.text for symbol in check.guard.expression.symbols())
        elif isinstance(check, NumberCheck):
            yield from (str(leaf.text) for side in (check.left, check.right) for leaf in side.leaves)
    for number in (*variant.inputs, *(number for _, number in variant.numbers)):
        if isinstance(number, NumberOf):
            yield from (str(leaf.text) for leaf in number.leaves)
    sizes: list[Any] = [size for view in variant.inputs for size in _sizes(view)]
    if isinstance(variant.next, Return):
        sizes += [size for value in variant.next.values for size in _sizes(value)]
    if variant.program is not None:
        for buffer in variant.program.buffers:
            sizes += [*buffer.spec.shape, *buffer.spec.stride, buffer.offset]
    for size in sizes:
        if is_symsize(size):
            yield from (symbol.text for symbol in size.expression.symbols())


def _sizes(value: Value | NumberOf) -> tuple[object, ...]:
    if isinstance(value, RegisterView):
        return (*value.shape, *value.stride, value.offset)
    return (value.value,) if isinstance(value, Literal) else ()


def _rule_results(machine: Machine) -> Iterator[Fault]:
    """A call returns a value for each leaf, from registers that are there."""
    for variant in _variants(machine):
        end = variant.next
        if isinstance(end, Branch) and _register(machine, end.register) is None:
            yield end, f"there is no register r{end.register}"
        if not isinstance(end, Return):
            continue
        if end.tree.leaves != len(end.values):
            yield end, f"{len(end.values)} values for {end.tree.leaves} leaves"
        for value in end.values:
            if isinstance(value, RegisterView | Scalar) and _register(machine, value.register) is None:
                yield end, f"there is no register r{value.register}"


def _rule_filled(machine: Machine) -> Iterator[Fault]:
    """No local register is read before something on every way there has filled it."""
    kept = {number for number, each in enumerate(machine.registers) if each.kind is not RegisterKind.LOCAL}
    filled: dict[int, set[int]] = {0: kept}
    waiting = [0] if machine.states else []
    while waiting:
        state = waiting.pop()
        for variant in machine.states[state].variants:
            after = filled[state] | _filled_by(variant)
            for target in successors(variant.next):
                known = filled.get(target)
                joined = after if known is None else known & after
                if joined != known and 0 <= target < len(machine.states):
                    filled[target] = joined
                    waiting.append(target)
    for number, state_filled in filled.items():
        for variant in machine.states[number].variants:
            yield from _unfilled(variant, state_filled)


def _filled_by(variant: Variant) -> set[int]:
    results = {result for result in variant.results if result is not None}
    return results | {register for register, _ in variant.numbers}


def _unfilled(variant: Variant, filled: set[int]) -> Iterator[Fault]:
    for view in variant.inputs:
        if isinstance(view, RegisterView) and view.register not in filled:
            yield variant, f"r{view.register} is read before anything fills it"
    for binding in variant.symbols:
        if binding.register not in filled:
            yield variant, f"r{binding.register} is read before anything fills it"
    after = filled | _filled_by(variant)
    end = variant.next
    read = [register for register, _ in variant.required]
    read += [end.register] if isinstance(end, Branch) else []
    if isinstance(end, Return):
        read += [value.register for value in end.values if isinstance(value, RegisterView | Scalar)]
    for register in read:
        if register not in after:
            yield end, f"r{register} is read before anything fills it"


MACHINE_RULES: dict[str, Callable[[Machine], Iterable[Fault]]] = {
    "registers": _rule_registers,
    "storages": _rule_storages,
    "arguments": _rule_arguments,
    "programs": _rule_programs,
    "symbols": _rule_symbols,
    "results": _rule_results,
    "filled": _rule_filled,
}


def check_machine(machine: Machine) -> None:
    """Raise `SpecError` on the first rule that `machine`, or a program of it, breaks.

    Programs in symbols were checked as they were made: asking about their sizes would add guards.
    """
    for variant in _variants(machine):
        if variant.program is not None and not variant.symbols:
            check_program(variant.program, after="export")
    for name, rule in MACHINE_RULES.items():
        for place, fault in rule(machine):
            lines = list(machine_lines(machine, programs=False))
            raise SpecError("SM022", f'machine {machine.name} breaks rule "{name}": {fault}\n{excerpt(lines, place)}')
