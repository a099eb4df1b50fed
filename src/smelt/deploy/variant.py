"""One captured call as a variant of an artifact: its program over registers, what it relies on, what it returns.

    DescribedCall ── lower ──► Program ── inputs, results, state named by registers ──► Variant
"""

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.base.options import Options
from smelt.capture.replay.described import (
    Computed,
    Container,
    Counted,
    Described,
    DescribedCall,
    FromOutside,
    Given,
    Known,
    MadeBefore,
    OutputOf,
    ReadFrom,
)
from smelt.codegen.ahead_of_time import write_for
from smelt.deploy.errors import DecidesByState, ExportError
from smelt.deploy.numbers import number_of, origin_of
from smelt.deploy.postfix import refuse_unknown
from smelt.deploy.state.effects import SortedEffects
from smelt.deploy.state.registers import Registers
from smelt.device import Target
from smelt.ir.artifact.machine import (
    Binding,
    Check,
    Literal,
    NumberCheck,
    NumberOf,
    Raise,
    RegisterView,
    Return,
    Scalar,
    SizeCheck,
    Value,
    ValueCheck,
    Variant,
)
from smelt.ir.artifact.tree import LEAF, Tree
from smelt.ir.call_contract import FromResult, SameAsOutput
from smelt.ir.program import Launch, Operand, Place, Program
from smelt.ir.substitute_sizes import shape_env_of
from smelt.pipeline.sizes.open_graph import OpenGraph
from smelt.pipeline.whole_program import WholeProgram, whole_program
from smelt.symbolic.expressions import SMALLEST, ShapeEnv, SizeGuard, Symbol
from smelt.symbolic.symnode import Formula

PLAIN = (bool, int, float, str, type(None))
RELATIONS = {
    operator.eq: "==", operator.ne: "!=", operator.lt: "<", operator.le: "<=", operator.gt: ">", operator.ge: ">=",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class HowToLower:
    """What programs are made with, and the processors that there will be code for."""

    options: Options
    targets: tuple[Target, ...]


class VariantBuilder:
    """Builds one variant; registers are shared with the others of the artifact."""

    def __init__(
        self, call: DescribedCall, effects: SortedEffects, registers: Registers, how: HowToLower, name: str
    ) -> None:
        self._call, self._effects, self._registers = call, effects, registers
        self._options, self._targets, self._name = how.options, how.targets, name
        self._bindings: dict[str, Binding] = {}
        self._checks: dict[Check, None] = {}
        self._outputs: dict[int, int] = {}  # by number among the graph's outputs → its place among those wanted
        self._made: dict[int, Any] = {}  # by place among those wanted → the register
        self._returned: dict[int, Any] = {}
        self._updates: list[tuple[int, NumberOf]] = []
        self._required: list[tuple[int, Raise]] = []
        self._replaced: frozenset[int] = frozenset()  # registers of tensors that others take the place of

    def build(self) -> Variant:
        """The variant, with all that was said to the registers on the way."""
        call = self._call
        want = [*_outputs_in(call.result), *(state.output for state in self._effects.tensors)]
        self._outputs = {number: place for place, number in enumerate(dict.fromkeys(want))}
        numbers = [(self._registers.number(each.origin), each) for each in self._effects.numbers]
        for origin, value in self._effects.fixed:
            self._bindings[origin.text] = Binding(origin.text, self._registers.number(origin), None, value, value)
        program: Program | None = None
        inputs: tuple[RegisterView | NumberOf, ...] = ()
        results: tuple[int | None, ...] = ()
        written: tuple[int, ...] = ()
        if call.traced is not None:
            graph = OpenGraph(call.traced)
            lowered, shape_env = self._lowered(graph)
            inputs = self._inputs(graph, lowered)
            results, written = self._results(lowered, inputs)
            program, constants = without_constants(lowered.program, self._registers)
            inputs = (*inputs, *constants)
            rely_on_code(program, self._targets)
            self._rely_on(graph, shape_env)
        for register, state in numbers:
            self._registers.write(register)
            number = number_of(state.number, state.origin.text)
            self._updates.append((register, number))
            self._bind_leaves(number)
        self._refuse_relied_data()
        tree, values = self._value(call.result, "the result")
        self._check_arguments()
        return Variant(
            program, inputs, results, Return(tuple(values), tree), tuple(self._bindings.values()), tuple(self._checks),
            written, tuple(self._updates), tuple(self._required),
        )  # fmt: skip

    def _lowered(self, graph: OpenGraph) -> tuple[WholeProgram, ShapeEnv | None]:
        traced, shape_env = graph.over(graph.example) if graph.symbols else (graph.at(graph.example), None)
        for leaf in graph.fixed:
            if isinstance(leaf, Formula):
                raise ExportError(f"compiled code relies on {leaf.text} being {leaf.example}")
        numbers = len(graph.dynamic_scalars)
        return whole_program(traced, list(self._outputs), self._options, self._name, numbers), shape_env

    # Inputs.

    def _inputs(self, graph: OpenGraph, lowered: WholeProgram) -> tuple[RegisterView | NumberOf, ...]:
        program = lowered.program
        tensors = [each for each in self._call.inputs if not _is_number(each)]
        inputs: list[RegisterView | NumberOf] = []
        for name, each in zip(program.inputs, tensors, strict=False):
            spec = program.buffer(name).spec
            inputs.append(RegisterView(self._register_of(each), spec.shape, spec.stride))
        for what in graph.dynamic_scalars:
            number = NumberOf(what)
            self._bind_leaves(number)
            inputs.append(number)
        if lowered.draws:
            inputs += self._registers.generator()
        assert len(inputs) == len(program.inputs)
        return tuple(inputs)

    def _register_of(self, origin: Given | MadeBefore) -> int:
        if isinstance(origin, Given):
            return self._registers.tensor(origin)
        args = [each.real if isinstance(each, Given) else each for each in origin.args]
        kwargs = {name: each.real if isinstance(each, Given) else each for name, each in origin.kwargs.items()}
        tensor = origin.function(*args, **kwargs)
        whole = Given((("value", tensor),), f"made by {origin.function.__name__}", tensor)
        return self._registers.kept_at(self._effects.new_homes.get(origin.number), tensor, whole)

    # Results.

    def _results(self, lowered: WholeProgram, inputs: Any) -> tuple[tuple[int | None, ...], tuple[int, ...]]:
        """Where each output of the program goes: wanted outputs to registers, new values to what they are of."""
        program, plan, registers = lowered.program, lowered.plan, self._registers
        results: list[int | None] = [None] * len(program.outputs)
        written: list[Any] = []
        indices = [self._result_of(plan.outputs, place) for place in range(len(plan.outputs))]
        for state in self._effects.tensors:
            index = indices[self._outputs[state.output]]
            if results[index] is not None:
                raise ExportError(f"{state.origin.text} is the same tensor as another that is kept", hint="keep a copy")
            results[index] = self._state(state.origin, program.outputs[index], program)
            written.append(results[index])
        self._replaced = frozenset(written)
        for place, index in enumerate(indices):
            operand = program.outputs[index]
            if not isinstance(operand, Operand):
                raise ExportError(f"output {place} of the graph is {operand!r}, no tensor")
            if results[index] is None:
                results[index] = registers.local(program.buffer(operand.buffer).spec.dtype)
            self._made[place], self._returned[place] = results[index], operand
        for place, number in enumerate(plan.mutated_inputs, plan.results):
            view = inputs[number]
            assert isinstance(view, RegisterView)
            registers.write(view.register)
            results[place] = view.register
            written.append(view.register)
        self._refuse_ambiguous(written, [view.register for view in inputs if isinstance(view, RegisterView)])
        for place, text in enumerate(lowered.required, plan.forward_outputs):
            register = registers.local(torch.bool)
            results[place] = register
            self._required.append((register, Raise("IndexError", text)))
        return tuple(results), tuple(dict.fromkeys(written))

    def _result_of(self, outputs: Sequence[Any], place: int) -> int:
        """Which of the program's outputs an output of the graph is."""
        while isinstance(outputs[place], SameAsOutput):
            place = outputs[place].index
        assert isinstance(outputs[place], FromResult)
        return int(outputs[place].index)

    def _refuse_ambiguous(self, written: list[int], read: list[int]) -> None:
        """A program takes its inputs for separate memory, and writes each once."""
        registers = self._registers
        for number in written:
            if written.count(number) > 1:
                raise ExportError(f"{registers.name_of(number)} is written in place, and replaced by another tensor")
            for other in {*read, *written} - {number}:
                if registers.share_memory(number, other):
                    raise ExportError(
                        f"{registers.name_of(number)} is written, and shares memory with {registers.name_of(other)}",
                        hint="read and write it by one name",
                    )

    def _state(self, origin: Given, operand: Any, program: Program) -> int:
        """The register of a tensor that is replaced by another with each call: one that is as large."""
        assert isinstance(operand, Operand)
        old, spec = origin.real, program.buffer(operand.buffer).spec
        if tuple(old.shape) != operand.shape or old.dtype is not spec.dtype or not old.is_contiguous():
            raise ExportError(
                f"{origin.text} is replaced by a tensor of another shape, dtype or layout with each call: {spec}",
                hint="have it as large as it ever gets, and write into it",
            )
        register = self._registers.kept(old, origin)
        self._registers.write(register)
        return register

    def _value(self, what: Described, where: str) -> tuple[Tree, list[Value]]:
        if isinstance(what, Container):
            return self._container(what, where)
        return LEAF, [self._leaf(what, where)]

    def _leaf(self, what: Described, where: str) -> Value:
        registers = self._registers
        if isinstance(what, OutputOf):
            place = self._outputs[what.number]
            operand = self._returned[place]
            return RegisterView(self._made[place], operand.shape, operand.stride, operand.offset)
        if isinstance(what, Known) and isinstance(what.value, PLAIN):
            return Literal(what.value)
        if isinstance(what, FromOutside) and isinstance(what.value.real, torch.Tensor):
            real, register = what.value.real, registers.tensor(what.value)
            if register in self._replaced:
                raise ExportError(f"{where} is what {what.value.text} was before", hint="return a copy: x.clone()")
            return RegisterView(register, tuple(real.shape), tuple(real.stride()))
        if isinstance(what, FromOutside) and isinstance(what.value.real, PLAIN):
            return Literal(what.value.real)
        if isinstance(what, ReadFrom) and _takes_item(what):
            return Scalar(self._made[self._outputs[_outputs_in(what)[0]]])
        if isinstance(what, Computed | Counted):
            number = number_of(what, where)
            self._bind_leaves(number)
            return Scalar(self._local_number(number))
        text = getattr(what, "text", None) or f"a {type(getattr(what, 'value', what)).__name__}"
        raise ExportError(f"{where} holds {text}", hint="results are tensors, numbers, strings, None and containers")

    def _local_number(self, number: NumberOf) -> int:
        register = self._registers.local(number.dtype)
        self._updates.append((register, number))
        return register

    def _container(self, what: Container, where: str) -> tuple[Tree, list[Value]]:
        parts = [self._value(item, where) for item in what.items]
        values = [value for _, part_values in parts for value in part_values]
        trees = tuple(tree for tree, _ in parts)
        if issubclass(what.kind, tuple) and hasattr(what.kind, "_fields"):
            return Tree("record", tuple(what.kind._fields), trees, what.kind.__name__), values
        if not what.keys and issubclass(what.kind, list | tuple):
            return Tree("list" if issubclass(what.kind, list) else "tuple", (), trees), values
        if not all(isinstance(key, str | int) for key in what.keys):
            raise ExportError(f"{where} is a dict with keys that are neither strings nor integers")
        if what.kind is dict:
            return Tree("dict", tuple(what.keys), trees), values
        return Tree("record", tuple(what.keys), trees, what.kind.__name__), values

    # What it relies on.

    def _rely_on(self, graph: OpenGraph, shape_env: ShapeEnv | None) -> None:
        for name, leaf in graph.symbols:
            self._bind(name, leaf)
        for guard in shape_env.guards if shape_env is not None else ():
            self._check_size(guard)

    def _check_size(self, guard: SizeGuard) -> None:
        self._checks[SizeCheck(guard)] = None

    def _check_arguments(self) -> None:
        for guard in self._call.shape_env.guards:
            for symbol in guard.expression.symbols():
                self._bind(symbol.text, symbol)
            self._check_size(guard)
        for function, sides, answer in self._call.shape_env.decisions.values():
            self._check_decision(function, sides, answer)
        for leaf in self._call.shape_env.fixed:
            number = self._registers.value_of(origin_of(self._call, leaf)[0])
            if number is None:
                raise ExportError(f"the code relies on {leaf.text} being {leaf.example}")
        for number, argument in enumerate(self._registers.arguments):
            if argument.choices:
                self._checks[ValueCheck(number, argument.choices[0])] = None

    def _refuse_relied_data(self) -> None:
        """What the elements of a tensor decided holds for good only if nothing writes it."""
        for origin in self._call.relied_data:
            if isinstance(origin, Given):
                self._registers.rely_on(origin.real, origin.text)
            if isinstance(origin, Given) and not self._registers.changes(self._registers.tensor(origin)):
                continue
            text = origin.text if isinstance(origin, Given) else "a tensor that its first call makes"
            raise DecidesByState(
                f"what the function does depends on the value of {text}, which changes",
                hint="outside of training, a branch on a tensor's value is exported both ways; a training step decides "
                "by Python numbers, or chooses by torch.where",
                code="SM060",
            )

    def _check_decision(self, function: Any, sides: tuple[Any, ...], answer: Any) -> None:
        """What was decided by a float that one number from outside makes."""
        relation = RELATIONS.get(function)
        if relation is None or len(sides) != 2:
            name = getattr(function, "__name__", function)
            raise ExportError(f"the code relies on what {name} yields of a number that changes")
        left, right = map(NumberOf, sides)
        self._bind_leaves(left)
        self._bind_leaves(right)
        self._checks[NumberCheck(relation, left, right, bool(answer))] = None

    def _bind_leaves(self, number: NumberOf) -> None:
        refuse_unknown(number.what)
        for leaf in number.leaves:
            self._bind(str(leaf.text), leaf)

    def _bind(self, name: str, leaf: Symbol | Formula) -> None:
        if name in self._bindings:
            return
        origin, dim = origin_of(self._call, leaf)
        if dim is not None:
            self._bindings[name] = Binding(name, self._registers.tensor(origin), dim, SMALLEST)
        elif isinstance(leaf, Symbol) and leaf.shape_env is not None:
            self._bindings[name] = Binding(name, self._registers.number(origin), None, SMALLEST)
        else:
            self._bindings[name] = Binding(name, self._registers.number(origin))


def without_constants(program: Program, registers: Registers) -> tuple[Program, list[RegisterView]]:
    """A program with tensors that were captured with the graph as inputs, and what those are."""
    views = []
    for name, tensor in program.constants:
        origin = Given((("value", tensor),), f"{program.name}.{name}", tensor)
        views.append(RegisterView(registers.kept(tensor, origin), tuple(tensor.shape), tuple(tensor.stride())))
    names = {name for name, _ in program.constants}
    buffers = [replace(each, place=Place.INPUT) if each.name in names else each for each in program.buffers]
    inputs = (*program.inputs, *(name for name, _ in program.constants))
    return replace(program, buffers=tuple(buffers), inputs=inputs, constants=()), views


def rely_on_code(program: Program, targets: Sequence[Target]) -> None:
    """Have guarded what the code of kernels relies on of symbols, for every target."""
    kernels = [kernel for step in program.steps if isinstance(step, Launch) for kernel, _ in step.parts]
    if any(shape_env_of(kernel) is not None for kernel in kernels):
        for target in targets:
            write_for(kernels, target)


def _outputs_in(what: Described) -> list[int]:
    """The graph's outputs that something is made of, in order."""
    if isinstance(what, OutputOf):
        return [what.number]
    parts = what.items if isinstance(what, Container) else what.parts if isinstance(what, ReadFrom) else ()
    return [number for part in parts for number in _outputs_in(part)]


def _takes_item(what: ReadFrom) -> bool:
    """Whether a number is what a tensor of one element holds, and no more is computed of it."""
    names = ("item", "float", "int", "bool")
    return len(what.parts) == 1 and isinstance(what.parts[0], OutputOf) and what.make.__name__ in names


def _is_number(origin: Given | MadeBefore) -> bool:
    return isinstance(origin, Given) and not isinstance(origin.real, torch.Tensor)
