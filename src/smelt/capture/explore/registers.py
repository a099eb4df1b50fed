"""Values of an explored machine become registers.

A parameter that is given the same value on every edge is that value. Each other parameter is a register of its own, and
so is each output of a graph, unless it goes to a parameter whose register is free by then: the usual loop writes its
new value over the old one. Where an edge has to move values, there is a state between that copies them.

    loop(x): y = graph(x); loop(y)      →   r1 = graph(r1)
"""

import itertools
from collections.abc import Callable, Iterator, Mapping

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.capture.explore.abstraction import Policy
from smelt.capture.explore.arguments import Arguments
from smelt.capture.explore.circles import circles
from smelt.capture.explore.flow import (
    Held,
    Leaf,
    Returned,
    TracedMachine,
    TracedNext,
    TracedRegister,
    TracedState,
    TracedVariant,
)
from smelt.capture.explore.graphs import each_by
from smelt.capture.explore.ssa import Edge, Ends, Goes, Node, SsaValue, Step
from smelt.ir.artifact.machine import (
    Argument,
    ArgumentKind,
    Binding,
    Branch,
    Check,
    Jump,
    Literal,
    Scalar,
    SizeCheck,
)
from smelt.ir.tensorspec import TensorSpec
from smelt.symbolic.expressions import Expression, ShapeEnv, SizeGuard
from smelt.symbolic.shapes import contiguous_stride
from smelt.symbolic.symnode import as_number


def with_registers(
    name: str, arguments: Arguments, policy: Policy, inputs: dict[int, SsaValue], nodes: list[Node]
) -> TracedMachine:
    """The machine of explored states; the first is where a call begins."""
    nodes = _reached(nodes)
    _join_parameters(nodes)
    return _Allocation(nodes).machine(name, arguments, policy, inputs)


def _edges(node: Node) -> Iterator[tuple[Step, Edge]]:
    for step in node.steps:
        for edge in step.next.edges if isinstance(step.next, Goes) else ():
            yield step, edge


def _reached(nodes: list[Node]) -> list[Node]:
    """Those states that a call may come to."""
    reached, waiting = {id(nodes[0])}, [nodes[0]]
    while waiting:
        for _, edge in _edges(waiting.pop()):
            if id(edge.target) not in reached:
                reached.add(id(edge.target))
                waiting.append(edge.target)
    return [node for node in nodes if id(node) in reached]


def _join_parameters(nodes: list[Node]) -> None:
    """Put the one value in the place of each parameter that is never another."""
    incoming: dict[SsaValue, list[SsaValue]] = {}
    for node in nodes:
        for _, edge in _edges(node):
            for parameter, argument in zip(edge.target.parameters, edge.arguments, strict=True):
                incoming.setdefault(parameter, []).append(argument)
    same: dict[SsaValue, SsaValue] = {}

    def joined(value: SsaValue) -> SsaValue:
        return same.get(value, value)

    def join(among: Mapping[SsaValue, None]) -> None:
        for circle in circles(among, lambda each: (argument for argument in incoming[each] if argument in among)):
            inside = dict.fromkeys(circle)
            outside = {joined(argument) for each in circle for argument in incoming[each]} - inside.keys()
            if len(outside) == 1:
                same.update(dict.fromkeys(circle, outside.pop()))
            elif outside:  # each of those that only others of the circle are given to may be one of these
                join(
                    {
                        each: None
                        for each in circle
                        if {joined(argument) for argument in incoming[each]} <= inside.keys()
                    }
                )

    join(dict.fromkeys(incoming))
    for node in nodes:
        for step in node.steps:
            _substitute(step, joined)
        for _, edge in _edges(node):
            kept = [place for place, each in enumerate(edge.target.parameters) if each not in same]
            edge.arguments = [joined(edge.arguments[place]) for place in kept]
    for node in nodes:
        node.parameters = [each for each in node.parameters if each not in same]


def _substitute(step: Step, joined: "object") -> None:
    assert callable(joined)
    step.inputs = [joined(value) for value in step.inputs]
    step.symbols = [(name, joined(value), dim) for name, value, dim in step.symbols]
    step.written = [joined(value) for value in step.written]
    if isinstance(step.next, Ends):
        step.next.leaves = [
            leaf if isinstance(leaf, Literal) else (leaf[0], joined(leaf[1]), leaf[2]) for leaf in step.next.leaves
        ]
    if isinstance(step.next, Goes) and step.next.condition is not None:
        step.next.condition = joined(step.next.condition)


@dataclass(slots=True, eq=False)
class _Register:
    """Values that share a register: a parameter and outputs that become it, or one output."""

    values: list[SsaValue]


@dataclass(frozen=True, slots=True)
class _Move:
    """A value that an edge gives to a parameter in another register."""

    value: SsaValue
    parameter: SsaValue

    @property
    def sizes(self) -> list[int | None]:
        """Those that are known: where the edge leads to, more may be than of the value itself."""
        both = zip(self.value.sizes, self.parameter.sizes, strict=True)
        return [theirs if ours is None else ours for ours, theirs in both]


class _Allocation:
    """Which register each value is in."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.needed = self._needed()
        self.live: dict[int, set[SsaValue]] = {id(node): set() for node in nodes}
        self._flow()
        self.makers = {id(output): step for node in nodes for step in node.steps for output in step.outputs}
        self.of: dict[SsaValue, _Register] = {}
        for node in nodes:
            for parameter in node.parameters:
                if parameter in self.needed:
                    self.of[parameter] = _Register([parameter])
        for node in nodes:
            for step, edge in _edges(node):
                self._coalesce(step, edge)
        for node in nodes:
            for step in node.steps:
                for output in step.outputs:
                    if output not in self.of and output in self.needed:
                        self.of[output] = _Register([output])
        self.states: list[TracedState] = []
        self.numbers: dict[int, int] = {}
        self.registers: list[TracedRegister] = []

    def _needed(self) -> set[SsaValue]:
        """Values that something other than a parameter nobody needs is made of."""
        needed: set[SsaValue] = set()
        for node in self.nodes:
            for step in node.steps:
                read = set(step.reads())
                if isinstance(step.next, Goes):
                    read -= {value for edge in step.next.edges for value in edge.arguments}
                    read |= set(step.inputs) | {value for _, value, _ in step.symbols}
                    read |= {step.next.condition} if step.next.condition is not None else set()
                needed |= read
        changed = True
        while changed:
            before = len(needed)
            for node in self.nodes:
                for _, edge in _edges(node):
                    needed |= set(self._arguments(edge, needed))
            changed = len(needed) != before
        return needed

    def _arguments(self, edge: Edge, needed: set[SsaValue]) -> list[SsaValue]:
        pairs = zip(edge.target.parameters, edge.arguments, strict=True)
        return [argument for parameter, argument in pairs if parameter in needed]

    def _after(self, edge: Edge) -> set[SsaValue]:
        """What has to be there when an edge is taken."""
        return self.live[id(edge.target)] | set(self._arguments(edge, self.needed))

    def _out(self, step: Step) -> set[SsaValue]:
        if isinstance(step.next, Goes):
            return set().union(*[self._after(edge) for edge in step.next.edges])
        return set()

    def _flow(self) -> None:
        """What each state reads that it is not given as a parameter."""
        changed = True
        while changed:
            changed = False
            for node in reversed(self.nodes):
                read: set[SsaValue] = set()
                for step in node.steps:
                    here = set(step.inputs) | {value for _, value, _ in step.symbols}
                    after = self._out(step)
                    if isinstance(step.next, Goes) and step.next.condition is not None:
                        after.add(step.next.condition)
                    if isinstance(step.next, Ends):
                        after |= {leaf[1] for leaf in step.next.leaves if not isinstance(leaf, Literal)}
                    read |= here | (after - set(step.outputs))
                read -= set(node.parameters)
                if read != self.live[id(node)]:
                    self.live[id(node)], changed = read, True

    def _coalesce(self, step: Step, edge: Edge) -> None:
        for parameter, argument in zip(edge.target.parameters, edge.arguments, strict=True):
            if parameter in self.needed and argument not in self.of and self.makers.get(id(argument)) is step:
                register = self.of[parameter]
                if not self._interferes(step, edge.target, argument, register):
                    register.values.append(argument)
                    self.of[argument] = register

    def _interferes(self, step: Step, target: Node, candidate: SsaValue, register: _Register) -> bool:
        """Whether a value cannot share a register: one of those in it is read after the value is made, or it after one
        of those."""
        if candidate in self.live[id(target)] or not _alike(candidate, register.values[0]):
            return True
        after = self._out(step)
        if any(value in after for value in register.values):
            return True
        makers = [self.makers.get(id(value)) for value in register.values]
        return any(maker is step or candidate in self._out(maker) for maker in makers if maker is not None)

    def machine(self, name: str, arguments: Arguments, policy: Policy, inputs: dict[int, SsaValue]) -> TracedMachine:
        described = []
        for leaf in arguments.leaves:
            if leaf.number not in inputs:
                values = tuple(getattr(each, "value", each) for each in leaf.values(policy))
                described.append(Argument(leaf.name, ArgumentKind.VALUE, None, values))
                continue
            kind = ArgumentKind.TENSOR if isinstance(leaf.value, torch.Tensor) else ArgumentKind.NUMBER
            described.append(Argument(leaf.name, kind, self._number(inputs[leaf.number])))
        numbers = {id(node): number for number, node in enumerate(self.nodes)}
        self.states = [TracedState(node.name, ()) for node in self.nodes]
        for number, node in enumerate(self.nodes):
            variants = tuple(self._variant(step, numbers) for step in node.steps)
            self.states[number] = TracedState(node.name, variants)
        states, notes = tuple(self.states), arguments.fixed(policy)
        return TracedMachine(name, arguments.tree, tuple(described), tuple(self.registers), states, notes)

    def _number(self, value: SsaValue) -> int:
        """The number of a value's register."""
        register = self.of.get(value)
        owner = value if register is None else register.values[0]
        if id(owner) not in self.numbers:
            self.numbers[id(owner)] = len(self.registers)
            self.registers.append(_described(owner))
        return self.numbers[id(owner)]

    def _variant(self, step: Step, numbers: dict[int, int]) -> TracedVariant:
        symbols = tuple(Binding(name, self._number(value), dim) for name, value, dim in step.symbols)
        inputs = tuple(self._number(value) for value in step.inputs)
        results = tuple(self._number(value) if value in self.of else None for value in step.outputs)
        written = tuple(dict.fromkeys(self._number(value) for value in step.written))
        end = self._next(step, numbers)
        return TracedVariant(step.traced, inputs, results, end, symbols, tuple(step.checks), written)

    def _next(self, step: Step, numbers: dict[int, int]) -> TracedNext:
        end = step.next
        if isinstance(end, Ends):
            leaves: list[Leaf] = []
            for leaf in end.leaves:
                if isinstance(leaf, Literal):
                    leaves.append(leaf)
                else:
                    kind, value, spec = leaf
                    number = self._number(value)
                    leaves.append(Scalar(number) if kind == "number" else Held(number, spec))
            return Returned(tuple(leaves), end.tree)
        if not isinstance(end, Goes):
            return end
        targets = [self._target(edge, numbers) for edge in end.edges]
        if end.condition is None:
            return Jump(targets[0])
        return Branch(self._number(end.condition), *targets)

    def _target(self, edge: Edge, numbers: dict[int, int]) -> int:
        """The state that an edge leads to: one that moves values first, where some are in other registers."""
        moves = [
            _Move(argument, parameter)
            for parameter, argument in zip(edge.target.parameters, edge.arguments, strict=True)
            if parameter in self.needed and self._number(argument) != self._number(parameter)
        ]
        number = numbers[id(edge.target)]
        if not moves:
            return number
        for together in reversed(_one_after_another(moves, self._number)):
            variants = tuple(self._moving(together, case, number) for case in _cases(together))
            self.states.append(TracedState(f"to {edge.target.name}", variants))
            number = len(self.states) - 1
        return number

    def _moving(self, moves: list[_Move], case: tuple[int | None, ...], target: int) -> TracedVariant:
        """Copies of values into other registers, where the sizes that are not known are these, or 2 and more."""
        env, bindings, checks, specs, wanted = ShapeEnv(), [], list[Check](), [], iter(case)
        for place, move in enumerate(moves):
            sizes = []
            for dim, size in enumerate(move.sizes):
                if size is None:
                    size, text = next(wanted), f"given_{place}.shape[{dim}]"
                    symbol = env.symbol(text, 3) if size is None else env.reading(text, size)
                    bindings.append(Binding(symbol.text, self._number(move.value), dim))
                    if size is not None:
                        checks.append(SizeCheck(SizeGuard("==", Expression.of(symbol) - Expression.of(size))))
                sizes.append(as_number(env, Expression.of(symbol)) if size is None else size)
            shape = tuple(sizes)
            specs.append(TensorSpec(shape, contiguous_stride(shape), move.value.dtype, move.value.device))
        inputs = tuple(self._number(move.value) for move in moves)
        results = tuple(self._number(move.parameter) for move in moves)
        return TracedVariant(each_by(torch.clone, specs), inputs, results, Jump(target), tuple(bindings), tuple(checks))


_MOST_OPEN_SIZES = 2  # of what one state moves: each is 0, 1 or more in a variant of its own


def _one_after_another(moves: list[_Move], number: Callable[[SsaValue], int]) -> list[list[_Move]]:
    """Moves in groups, of which none overwrites what a later one reads; each has few sizes that are not known."""
    groups: list[list[_Move]] = []
    while moves:
        taken: list[_Move] = []
        for each in moves:
            is_read = any(number(other.value) == number(each.parameter) for other in moves if other is not each)
            if not is_read and (not taken or _open_sizes([*taken, each]) <= _MOST_OPEN_SIZES):
                taken.append(each)
        taken = taken or moves  # in a circle: at once
        groups.append(taken)
        moves = [each for each in moves if each not in taken]
    return groups


def _cases(moves: list[_Move]) -> Iterator[tuple[int | None, ...]]:
    """What sizes that are not known may be: 2 and more (None), 1, 0."""
    return itertools.product((None, 1, 0), repeat=_open_sizes(moves))


def _open_sizes(moves: list[_Move]) -> int:
    return sum(size is None for move in moves for size in move.sizes)


def _described(value: SsaValue) -> TracedRegister:
    return TracedRegister(value.kind, value.name, value.dtype, value.sizes, value.device, value.tensor)


def _alike(one: SsaValue, other: SsaValue) -> bool:
    return one.dtype is other.dtype and one.device == other.device
