"""Machines as text.

    machine scaled(x) dimensions batch 2..64
      r0 input x: f32[batch, 4]
      r1 constant weight: f32[4, 4] in storage 0 at 0
      r2 local: f32
      state 0 entry
        variant batch = r0.shape[0] if batch - 64 <= 0
          program forward(r0[batch, 4:4, 1], r1[4, 4:4, 1]) -> r2
            …
          return r2[batch, 4:4, 1]
"""

from collections.abc import Iterator

from smelt.ir.artifact.machine import (
    Argument,
    Binding,
    Branch,
    Check,
    Dimension,
    Jump,
    Literal,
    Machine,
    Next,
    NumberCheck,
    NumberOf,
    Raise,
    Register,
    RegisterView,
    Return,
    Scalar,
    SizeCheck,
    Value,
    Variant,
)
from smelt.ir.tensorspec import short_name
from smelt.ir.text import program_lines
from smelt.symbolic.expressions import LARGEST
from smelt.symbolic.symnode import Formula


def format_machine(machine: Machine, programs: bool = True) -> str:
    """The whole machine, without a final newline. `programs`: with the steps of each."""
    return "\n".join(line for _, line in machine_lines(machine, programs))


def machine_lines(machine: Machine, programs: bool = True) -> Iterator[tuple[object, str]]:
    """The text line by line, each with the register, variant or end that it shows."""
    named = ", ".join(map(_format_dimension, machine.dimensions))
    arguments = ", ".join(map(_format_argument, machine.arguments))
    yield machine, f"machine {machine.name}({arguments}){' dimensions ' if named else ''}{named}"
    for number, register in enumerate(machine.registers):
        yield register, f"  r{number} {format_register(register)}"
    for number, state in enumerate(machine.states):
        yield state, f"  state {number} {state.name}"
        for variant in state.variants:
            yield variant, f"    variant{_format_conditions(machine, variant)}"
            yield from _program_lines(variant, programs)
            for condition, failure in variant.required:
                yield variant, f"      unless r{condition} {_format_next(failure)}"
            for target, value in variant.numbers:
                yield variant, f"      r{target} = {format_value(value)}"
            yield variant.next, f"      {_format_next(variant.next)}"


def _program_lines(variant: Variant, whole: bool) -> Iterator[tuple[object, str]]:
    if variant.program is None:
        return
    results = ", ".join("_" if result is None else f"r{result}" for result in variant.results)
    written = f" writes {', '.join(f'r{number}' for number in variant.written)}" if variant.written else ""
    inputs = ", ".join(map(format_value, variant.inputs))
    yield variant, f"      program {variant.program.name}({inputs}) -> {results or 'nothing'}{written}"
    if whole:
        lines = list(program_lines(variant.program))
        yield from ((variant, f"      {line}") for _, line in lines[1:])


def _format_dimension(dimension: Dimension) -> str:
    most = "" if dimension.most == LARGEST else str(dimension.most)
    return f"{dimension.name} {dimension.least}..{most}"


def _format_argument(argument: Argument) -> str:
    return f"{argument.name} in {list(argument.choices)}" if argument.choices else argument.name


def format_register(register: Register) -> str:
    """`input x: f32[batch, 4]`."""
    name = f" {register.name}" if register.name else ""
    shape = "" if register.shape is None else f"[{', '.join(map(str, register.shape))}]"
    stride = "" if register.stride is None else f":({', '.join(map(str, register.stride))})"
    place = "" if register.storage is None else f" in storage {register.storage} at {register.offset}"
    return f"{register.kind}{name}: {short_name(register.dtype)}{shape}{stride}{place}"


def _format_conditions(machine: Machine, variant: Variant) -> str:
    bound = ", ".join(map(_format_binding, variant.symbols))
    checks = " and ".join(_format_check(machine, check) for check in variant.checks)
    return f"{' ' if bound else ''}{bound}{' if ' if checks else ''}{checks}"


def _format_binding(binding: Binding) -> str:
    size = f"r{binding.register}" if binding.dim is None else f"r{binding.register}.shape[{binding.dim}]"
    low = "" if binding.least == -LARGEST - 1 else str(binding.least)
    high = "" if binding.most == LARGEST else str(binding.most)
    return f"{binding.symbol} = {size}{f' in {low}..{high}' if low or high else ''}"


def _format_check(machine: Machine, check: Check) -> str:
    if isinstance(check, SizeCheck):
        return str(check.guard)
    if isinstance(check, NumberCheck):
        relation = f"{format_value(check.left)} {check.relation} {format_value(check.right)}"
        return relation if check.holds else f"not {relation}"
    known = 0 <= check.argument < len(machine.arguments)
    return f"{machine.arguments[check.argument].name if known else check.argument} is {check.value!r}"


def format_value(value: Value | NumberOf) -> str:
    """`r2[batch, 4:4, 1]`, `number r3`, `None`."""
    if isinstance(value, RegisterView):
        place = f" at {value.offset}" if value.offset else ""
        return f"r{value.register}[{', '.join(map(str, value.shape))}:{', '.join(map(str, value.stride))}{place}]"
    if isinstance(value, NumberOf):
        return value.what.text if isinstance(value.what, Formula) else str(value.what)
    return f"number r{value.register}" if isinstance(value, Scalar) else _format_literal(value)


def _format_literal(literal: Literal) -> str:
    return repr(literal.value) if isinstance(literal.value, str) else str(literal.value)


def _format_next(end: Next) -> str:
    match end:
        case Return(values, _):
            return f"return {', '.join(map(format_value, values)) or 'nothing'}"
        case Branch(register, if_true, if_false):
            return f"if r{register} go to state {if_true} else {if_false}"
        case Jump(state):
            return f"go to state {state}"
        case Raise(kind, message):
            return f"raise {kind}: {message}"
