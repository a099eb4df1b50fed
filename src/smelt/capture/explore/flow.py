"""`TracedMachine`: what exploring gives, a state machine of torch-level graphs over registers.

The form of `ir.artifact.machine` before its graphs are lowered: where that has programs, this has `Traced` graphs, and
a register a real tensor in the place of a storage.

    r0 input x: f32[4]     r1 local: f32[4]     r2 local: bool[]
    state 0    graph(r0) -> r1, r2              if r2 go to state 1 else 2
    state 1    graph(r1) -> r1, r2              if r2 go to state 1 else 2        a loop
    state 2                                     return r1
"""

from collections.abc import Iterator

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.ir.artifact.machine import (
    Argument,
    Binding,
    Branch,
    Check,
    Jump,
    Literal,
    Raise,
    RegisterKind,
    Scalar,
    SizeCheck,
    ValueCheck,
)
from smelt.ir.artifact.tree import Tree
from smelt.ir.graph import Traced, format_graph
from smelt.ir.tensorspec import TensorSpec, short_name


@dataclass(frozen=True, slots=True)
class TracedRegister:
    """A tensor, or a number as a tensor without dimensions. One of state or constant has the `tensor` of the program;
    `sizes` of an input are None where they may be any."""

    kind: RegisterKind
    name: str
    dtype: torch.dtype
    sizes: tuple[int | None, ...]
    device: torch.device
    tensor: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """The tensor that a register holds. `spec`: its spec in the graph that made it, None for one of another state."""

    register: int
    spec: TensorSpec | None = None


Leaf = Held | Scalar | Literal


@dataclass(frozen=True, slots=True)
class Returned:
    """The call ends: `tree` is made of `leaves`."""

    leaves: tuple[Leaf, ...]
    tree: Tree


TracedNext = Returned | Branch | Jump | Raise


@dataclass(frozen=True, slots=True)
class TracedVariant:
    """What a state does where the checks hold: `inputs` are the registers of the graph's placeholders, `results` those
    that its outputs go to (None for one that nobody needs), `written` registers of state that it writes in place.
    `symbols` are those of the graph, and of the checks."""

    traced: Traced | None
    inputs: tuple[int, ...]
    results: tuple[int | None, ...]
    next: TracedNext
    symbols: tuple[Binding, ...] = ()
    checks: tuple[Check, ...] = ()
    written: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TracedState:
    """Variants in the order they are tried. `name`: the user's line it begins at."""

    name: str
    variants: tuple[TracedVariant, ...]


@dataclass(frozen=True, slots=True)
class TracedMachine:
    """An explored function. `parameters` and `arguments` are as in `ir.artifact.machine.Machine`; dynamic sizes of its
    arguments are `smallest` at least."""

    name: str
    parameters: Tree
    arguments: tuple[Argument, ...]
    registers: tuple[TracedRegister, ...]
    states: tuple[TracedState, ...]
    notes: tuple[str, ...] = ()
    smallest: int = 0


def _lines(machine: TracedMachine, graphs: bool) -> Iterator[str]:
    yield f"machine {machine.name}({', '.join(argument.name for argument in machine.arguments)})"
    for number, register in enumerate(machine.registers):
        sizes = ", ".join("any" if size is None else str(size) for size in register.sizes)
        yield f"  r{number} {register.kind.value} {register.name}: {short_name(register.dtype)}[{sizes}]"
    for number, state in enumerate(machine.states):
        yield f"  state {number} {state.name}"
        for variant in state.variants:
            yield f"    variant{_conditions(machine, variant)}"
            if variant.traced is not None:
                taken = [f"r{each}" for each in variant.inputs]
                results = ["_" if each is None else f"r{each}" for each in variant.results]
                yield f"      graph({', '.join(taken)}) -> {', '.join(results) or 'nothing'}"
                if graphs:
                    yield from (f"      {line}" for line in format_graph(variant.traced.graph).splitlines()[1:])
            yield f"      {_next_text(variant.next)}"


def _conditions(machine: TracedMachine, variant: TracedVariant) -> str:
    bound = [
        f"{each.symbol} = r{each.register}" + ("" if each.dim is None else f".shape[{each.dim}]")
        for each in variant.symbols
    ]
    checks = [_check_text(machine, check) for check in variant.checks]
    return (f" {', '.join(bound)}" if bound else "") + (f" if {' and '.join(checks)}" if checks else "")


def _check_text(machine: TracedMachine, check: Check) -> str:
    if isinstance(check, ValueCheck):
        return f"{machine.arguments[check.argument].name} is {check.value!r}"
    return str(check.guard if isinstance(check, SizeCheck) else check)


def _next_text(end: TracedNext) -> str:
    if isinstance(end, Returned):
        return f"return {', '.join(map(_leaf_text, end.leaves)) or 'nothing'}"
    if isinstance(end, Branch):
        return f"if r{end.register} go to state {end.if_true} else {end.if_false}"
    return f"go to state {end.state}" if isinstance(end, Jump) else f"raise {end.error}: {end.message}"


def _leaf_text(leaf: Leaf) -> str:
    if isinstance(leaf, Held):
        return f"r{leaf.register}"
    return f"number r{leaf.register}" if isinstance(leaf, Scalar) else repr(leaf.value)
