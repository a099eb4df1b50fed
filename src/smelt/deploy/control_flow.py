"""A function with branches and loops as the machine of an artifact: each graph of an explored one becomes a program.

    TracedMachine: states of torch-level graphs   ── lower each ──►   Machine: states of programs, the same registers

`smelt.capture.explore` says how a function becomes the one; here it gets programs, storages and dimensions.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from smelt.autograd.joint.functional_trace import CannotTrace
from smelt.base import events
from smelt.capture.explore.arguments import Arguments
from smelt.capture.explore.explore import explore
from smelt.capture.explore.flow import Held, Leaf, Returned, TracedMachine, TracedVariant
from smelt.capture.explore.graphs import make_own
from smelt.capture.replay.described import Given
from smelt.deploy.call_form import CallForm
from smelt.deploy.errors import ExportError
from smelt.deploy.state.registers import Registers
from smelt.deploy.state.sharing import EntryState
from smelt.deploy.variant import HowToLower, rely_on_code, without_constants
from smelt.ir.artifact.check import check_machine
from smelt.ir.artifact.machine import (
    ArgumentKind,
    Binding,
    Branch,
    Literal,
    Machine,
    Next,
    NumberOf,
    Raise,
    RegisterKind,
    RegisterView,
    Return,
    Scalar,
    SizeCheck,
    State,
    Value,
    Variant,
)
from smelt.ir.call_contract import FromResult, SameAsOutput
from smelt.ir.graph import Traced, placeholders
from smelt.ir.program import Operand, Program
from smelt.ir.tensorspec import NumberSpec, spec_of
from smelt.pipeline.sizes.open_graph import OpenGraph, SymbolValues
from smelt.pipeline.whole_program import WholeProgram, whole_program
from smelt.symbolic.expressions import SMALLEST, Expression, ShapeEnv, SizeGuard, Symbol
from smelt.symbolic.shapes import Size, contiguous_stride
from smelt.symbolic.symnode import Formula, as_number
from smelt.symbolic.symsize import from_symbolic


def has_choices(form: CallForm) -> bool:
    """Whether a Python argument may have one of several values: it is a number, say."""
    args, kwargs = form.arguments(form.example_sizes)
    leaves = Arguments(form.target, args, kwargs, _choices(form), {}).leaves
    numbers = [leaf for leaf in leaves if not isinstance(leaf.value, torch.Tensor)]
    return any(leaf.choices is None or len(leaf.choices) > 1 for leaf in numbers)


def _choices(form: CallForm) -> dict[str, tuple[Any, ...]]:
    return {leaf.name: leaf.choices for leaf in form.leaves if leaf.choices}


def flow_machine(form: CallForm, name: str, how: HowToLower, shared: EntryState) -> Machine:
    """The machine of a function for all ways it can go. Raises `SmeltError` for what cannot be exported."""
    args, kwargs = form.arguments(_explored_sizes(form))
    sizes = {leaf.name: dict(leaf.sizes) for leaf in form.leaves if leaf.sizes}
    with events.timed("explore", name):
        traced = explore(form.target, args, kwargs, choices=_choices(form), sizes=sizes, name=name)
    shared.explores = True
    machine = _Lowering(traced, form, how, shared).machine()
    check_machine(machine)
    return machine


def _explored_sizes(form: CallForm) -> dict[str, int]:
    """Sizes to explore with: none is 0, 1 or another's, nor so small that parts of a tensor would be, where they may
    be others. Nothing of the example is read."""
    sizes: dict[str, int] = {}
    for each in form.dimensions:
        size = max(form.example_sizes[each.name], _EXPLORED)
        while size in sizes.values():
            size += 1
        sizes[each.name] = min(max(size, each.least), each.most)
    return sizes


class _Lowering:
    """One explored machine on its way to programs."""

    def __init__(self, traced: TracedMachine, form: CallForm, how: HowToLower, shared: EntryState) -> None:
        self._traced, self._how = traced, how
        kinds = {argument.name: argument.kind for argument in traced.arguments}
        leaves = [replace(leaf, is_open=kinds[leaf.name] is ArgumentKind.NUMBER) for leaf in form.leaves]
        self._form = replace(form, leaves=tuple(leaves))
        self._registers = Registers(self._form, shared=shared)
        self._numbers = {number: self._register(number) for number in range(len(traced.registers))}

    def _register(self, number: int) -> int:
        """The artifact's register for a register of the explored machine."""
        register = self._traced.registers[number]
        if register.kind is RegisterKind.INPUT:
            places = zip(self._traced.arguments, self._registers.arguments, strict=True)
            argument = next(ours.register for theirs, ours in places if theirs.register == number)
            assert argument is not None
            return argument
        if register.tensor is None:
            return self._registers.local(register.dtype)
        origin = Given((("value", register.tensor),), register.name, register.tensor)
        kept = self._registers.kept(register.tensor, origin)
        if register.kind is RegisterKind.STATE:
            self._registers.write(kept)
        return kept

    def machine(self) -> Machine:
        """All states with their programs."""
        traced, states = self._traced, []
        for number, state in enumerate(traced.states):
            variants = []
            for place, variant in enumerate(state.variants):
                name = f"{traced.name}_{number}" + (f"_{place}" if place else "")
                with events.timed("lower", f"{name}, {state.name}"):
                    variants += self._variants(variant, name)
            states.append(State(state.name, tuple(variants)))
        registers, storages = self._registers.finished()
        both = zip(self._registers.arguments, traced.arguments, strict=True)
        arguments = [replace(ours, choices=theirs.choices) for ours, theirs in both]
        dimensions = [replace(each, least=max(each.least, traced.smallest)) for each in self._form.dimensions]
        raised = [
            f"{ours.name} is {ours.least} or more: for {theirs.least} there would be too many states"
            for ours, theirs in zip(dimensions, self._form.dimensions, strict=True)
            if ours != theirs
        ]
        return Machine(
            traced.name, self._form.tree, tuple(arguments), tuple(dimensions), storages, registers, tuple(states),
            (*traced.notes, *raised),
        )  # fmt: skip

    def _variants(self, variant: TracedVariant, name: str) -> list[Variant]:
        """A program, and others for sizes and numbers for which what the first relies on does not hold."""
        variants: list[Variant] = []
        largest = min(max((each.most for each in self._form.dimensions), default=_MOST_SIZE), _MOST_SIZE)
        for values in _examples(variant, largest):
            if any(_covers(each, values) for each in variants):
                continue
            if len(variants) == _MOST_VARIANTS:
                shown = ", ".join(f"{name} = {value}" for name, value in values.items())
                raise ExportError(
                    f"{_MOST_VARIANTS} variants do not cover all sizes: none is for {shown}", hint="give tighter bounds"
                )
            title = f"{name}_for_{len(variants)}" if variants else name
            variants.append(self._variant(variant, title, values))
        return variants

    def _variant(self, variant: TracedVariant, name: str, values: Mapping[str, int]) -> Variant:
        lowering = _VariantLowering(self._traced, variant, self._registers, self._numbers, self._how, name, values)
        try:
            return lowering.variant()
        except CannotTrace as refused:
            raise ExportError(f"{self._traced.name} cannot be exported: {refused.reason}") from refused


_EXPLORED = 6
_MOST_VARIANTS = 8
_MOST_SIZE = 1 << 20
_SIZES = (
    *range(2, 14), 16, 17, 31, 32, 33, 64, 100, 1000,
    *(size for power in range(10, 21) for size in (1 << power, (1 << power) + 1)),
)  # fmt: skip


def _examples(variant: TracedVariant, largest: int) -> Iterator[dict[str, int]]:
    """Values of a variant's symbols that its checks hold for, the captured ones first; others are looked at one by
    one, and all moved by as much: sizes of several tensors are often equal, or one more."""
    graph = OpenGraph(variant.traced) if variant.traced is not None else None
    leaves = graph.example if graph is not None else {}
    first = {leaf.text: int(value) for leaf, value in leaves.items() if isinstance(leaf, Symbol)}
    yield first
    sizes = [size for size in (*_SIZES, largest) if size <= largest]
    steps = (*sizes, largest - max(first.values(), default=0))
    moved = [{name: value + by for name, value in first.items()} for by in steps]
    alone = [{**first, name: value} for name in first for value in sizes]
    guards = [check.guard for check in variant.checks if isinstance(check, SizeCheck)]
    for values in (*moved, *alone):
        if values and all(guard.holds(lambda symbol: values[symbol.text]) for guard in _about(guards, values)):  # noqa: B023
            yield values


def _about(guards: list[SizeGuard], values: Mapping[str, int]) -> list[SizeGuard]:
    """Guards of which all symbols are known."""
    return [guard for guard in guards if all(symbol.text in values for symbol in guard.expression.symbols())]


def _covers(variant: Variant, values: Mapping[str, int]) -> bool:
    """Whether the checks of a variant hold for these values, by what its symbols are bound to."""
    places = {(each.register, each.dim): values[each.symbol] for each in variant.symbols if each.symbol in values}
    known = {
        each.symbol: places[each.register, each.dim]
        for each in variant.symbols
        if (each.register, each.dim) in places
    }
    guards = [check.guard for check in variant.checks if isinstance(check, SizeCheck)]
    return all(guard.holds(lambda symbol: known[symbol.text]) for guard in _about(guards, known))


class _VariantLowering:
    """One variant on its way to a program."""

    def __init__(
        self,
        machine: TracedMachine,
        variant: TracedVariant,
        registers: Registers,
        numbers: Mapping[int, int],
        how: HowToLower,
        name: str,
        values: Mapping[str, int],
    ) -> None:
        self._values = values
        self._machine, self._traced, self._registers, self._numbers = machine, variant, registers, numbers
        self._how, self._name = how, name
        self._bindings = {
            each.symbol: replace(each, register=numbers[each.register]) for each in variant.symbols
        }
        self._checks = dict.fromkeys(variant.checks)
        self._made: dict[int, Operand] = {}  # what the program returns, by the explored register it goes to
        self._required: list[tuple[int, Raise]] = []
        self._offset: int | None = None  # of a generator that is moved

    def variant(self) -> Variant:
        program: Program | None = None
        inputs: tuple[RegisterView | NumberOf, ...] = ()
        results: tuple[int | None, ...] = ()
        if self._traced.traced is not None:
            graph = OpenGraph(self._traced.traced)
            lowered, shape_env = self._lowered(graph)
            inputs = self._inputs(graph, lowered)
            results = self._results(lowered)
            program, constants = without_constants(lowered.program, self._registers)
            inputs = (*inputs, *constants)
            rely_on_code(program, self._how.targets)
            for guard in shape_env.guards if shape_env is not None else ():
                self._checks[SizeCheck(guard)] = None
        end = self._next()
        moved = () if self._offset is None else (self._offset,)
        written = tuple(dict.fromkeys((*(self._numbers[each] for each in self._traced.written), *moved)))
        return Variant(
            program, inputs, results, end, tuple(self._bindings.values()), tuple(self._checks), written, (),
            tuple(self._required),
        )  # fmt: skip

    def _lowered(self, graph: OpenGraph) -> tuple[WholeProgram, ShapeEnv | None]:
        wanted = [place for place, register in enumerate(self._traced.results) if register is not None]
        while True:
            lowered, shape_env = self._program(graph, wanted)
            same = [wanted[place] for place, each in enumerate(lowered.plan.outputs) if isinstance(each, SameAsOutput)]
            if not same:
                break
            original: Any = self._traced.traced
            for place in same:  # each register has memory of its own
                make_own(original, place, shared=True)
            graph = OpenGraph(original)
        for name, leaf in graph.symbols:
            known = self._bindings[leaf.text]
            self._bindings[name] = Binding(name, known.register, known.dim, SMALLEST)
        return lowered, shape_env

    def _program(self, graph: OpenGraph, wanted: list[int]) -> tuple[WholeProgram, ShapeEnv | None]:
        try:
            return self._program_of(graph, wanted)
        except CannotTrace:
            if not graph.dynamic_scalars:
                raise
            graph.take_numbers_as_sizes()  # where a number is an index, bounds are asked of it
            return self._program_of(graph, wanted)

    def _program_of(self, graph: OpenGraph, wanted: list[int]) -> tuple[WholeProgram, ShapeEnv | None]:
        for leaf in graph.fixed:
            if isinstance(leaf, Formula):
                raise ExportError(f"compiled code relies on {leaf.text} being {leaf.example}")
        example = SymbolValues((leaf, self._values.get(leaf.text, value)) for leaf, value in graph.example.items())
        traced, shape_env = graph.over(example) if graph.symbols else (graph.at(example), None)
        numbers = len(graph.dynamic_scalars)
        return whole_program(traced, wanted, self._how.options, self._name, numbers), shape_env

    def _inputs(self, graph: OpenGraph, lowered: WholeProgram) -> tuple[RegisterView | NumberOf, ...]:
        program = lowered.program
        inputs: list[RegisterView | NumberOf] = []
        for name, register in zip(program.inputs, self._tensors(), strict=False):
            spec = program.buffer(name).spec
            inputs.append(RegisterView(self._numbers[register], spec.shape, spec.stride))
        inputs += [NumberOf(what) for what in graph.dynamic_scalars]
        if lowered.draws:
            inputs += self._registers.generator()
        assert len(inputs) == len(program.inputs)
        return tuple(inputs)

    def _tensors(self) -> list[int]:
        """The explored registers of the program's inputs, which come before numbers there."""
        traced: Traced | None = self._traced.traced
        assert traced is not None
        nodes = zip(placeholders(traced.graph), self._traced.inputs, strict=True)
        return [register for node, register in nodes if not isinstance(spec_of(node), NumberSpec)]

    def _results(self, lowered: WholeProgram) -> tuple[int | None, ...]:
        """Where each output of the program goes."""
        program, plan = lowered.program, lowered.plan
        results: list[int | None] = [None] * len(program.outputs)
        wanted = [register for register in self._traced.results if register is not None]
        for register, output in zip(wanted, plan.outputs, strict=True):
            assert isinstance(output, FromResult)
            operand = program.outputs[output.index]
            if not isinstance(operand, Operand):
                raise ExportError(f"an output of the graph is {operand!r}, no tensor")
            results[output.index] = self._numbers[register]
            self._made[register] = operand
        own = plan.mutated_inputs[:-1] if lowered.draws else plan.mutated_inputs
        for place, index in enumerate(own, plan.results):
            results[place] = self._numbers[self._tensors()[index]]
        if lowered.draws:
            self._offset = results[plan.forward_outputs - 1] = self._registers.generator()[1].register
        for place, text in enumerate(lowered.required, plan.forward_outputs):
            register = self._registers.local(torch.bool)
            results[place] = register
            self._required.append((register, Raise("IndexError", text)))
        return tuple(results)

    def _next(self) -> Next:
        end = self._traced.next
        if isinstance(end, Branch):
            return replace(end, register=self._numbers[end.register])
        if isinstance(end, Returned):
            return Return(tuple(map(self._value, end.leaves)), end.tree)
        return end

    def _value(self, leaf: Leaf) -> Value:
        if isinstance(leaf, Literal):
            return leaf
        if isinstance(leaf, Scalar):
            return Scalar(self._numbers[leaf.register])
        assert isinstance(leaf, Held)
        operand = self._made.get(leaf.register)
        if operand is not None:
            return RegisterView(self._numbers[leaf.register], operand.shape, operand.stride, operand.offset)
        return self._whole(leaf.register)

    def _whole(self, register: int) -> RegisterView:
        """A register that another state filled, or that was given."""
        described, number = self._machine.registers[register], self._numbers[register]
        if described.tensor is not None:
            return RegisterView(number, tuple(described.tensor.shape), tuple(described.tensor.stride()))
        shape_env, shape = ShapeEnv(), list[Size]()
        for dim, size in enumerate(described.sizes):
            if size is None:
                symbol = shape_env.symbol(f"r{register}.shape[{dim}]", SMALLEST)
                self._bindings[symbol.text] = Binding(symbol.text, number, dim)
                shape.append(from_symbolic(as_number(shape_env, Expression.of(symbol))))
            else:
                shape.append(size)
        return RegisterView(number, tuple(shape), contiguous_stride(tuple(shape)))
