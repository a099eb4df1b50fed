"""Exploring a function for export: every way it can go, without running any of it.

A call is captured from its first instruction, as far as one graph goes. Where a tensor's value decides a branch, both
states that may follow are explored; where a state is one that was explored before, there is an edge back to it, and
that is a loop. Tensors of a state are stand-ins, which nobody reads.

    while err > eps: …      state 0: graph of err       if true: state 1, else state 2
                            state 1: graph of the body and of err            the same
                            state 2: return

A number that differs from round to round (`i += 1`), or a size (`torch.cat` of a cache), would make a new state for
each round: the second time such a place is met, the number becomes a register, the size a symbol, and exploring begins
anew with what was learned (`Policy`). Where the program needs the number itself, to index a list of layers say, it
stays as it was, and the loop is unrolled, as long as there are not more than `max_states`.
"""

import contextlib
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from types import FunctionType
from typing import Any

import torch

from smelt import _native
from smelt.base.errors import SmeltError
from smelt.base.fast_dataclass import dataclass
from smelt.capture.driver.capture_frame import capture
from smelt.capture.driver.closing import Captured
from smelt.capture.driver.run_plan import store_result
from smelt.capture.explore.abstraction import NEGATED, STAND_IN, Abstraction, Known, Path, Policy, standing_in
from smelt.capture.explore.arguments import Arguments
from smelt.capture.explore.flow import TracedMachine
from smelt.capture.explore.graphs import (
    GraphRecorder,
    append_output,
    each_by,
    in_ambient,
    make_own,
    marks_of,
    own_written,
    stand_in_for,
)
from smelt.capture.explore.numbers import EXAMPLES, holds, name_of, some_numbers
from smelt.capture.explore.registers import with_registers
from smelt.capture.explore.sizes import Case, SizeGroup, covers, other_examples, sizes_of, small_cases
from smelt.capture.explore.ssa import Edge, Ends, Goes, Node, SsaValue, Step
from smelt.capture.explore.state_values import Values
from smelt.capture.explore.successors import NeedsNumber, Raises, Splits, what_follows
from smelt.capture.explore.writes import rebuilt
from smelt.capture.guards.dynamic_sizes import History
from smelt.capture.model.breaks import SkipFrame
from smelt.capture.model.bytecode import decode
from smelt.capture.model.open_numbers import DTYPES, OpenNumber
from smelt.capture.model.state import LiveFrame, flat
from smelt.capture.replay.graph_facts import GraphFacts
from smelt.capture.replay.plan import Return, Stop
from smelt.ir.artifact.machine import Check, Dimension, Literal, Raise, RegisterKind, SizeCheck
from smelt.ir.artifact.tree import tree_of
from smelt.ir.nodes.ambient import Ambient
from smelt.ir.tensorspec import TensorSpec, tensor_spec
from smelt.symbolic.expressions import SMALLEST, Expression, ShapeEnv, SizeGuard
from smelt.torch_abi.tensor_layout import install_tensor_layout

MAX_STATES = 256
_MAX_STARTS = 64
_MOST_VARIANTS = 7
_MOST_LOOKED_AT = 16
_ENTRY = "entry"
_MOST_SPLIT = 2  # of how many numbers 0, 1 and negative ones are explored by themselves
_OF_POSITIVE = (math.sqrt, math.log, math.log2, math.log10)


SOME_SIZES = "it has code for some sizes only"
SOME_NUMBERS = "it has code for some numbers only"


def explore(
    function: Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    choices: Mapping[str, Sequence[Any]] | None = None,
    sizes: Mapping[str, Mapping[int, Dimension]] | None = None,
    name: str | None = None,
    max_states: int = MAX_STATES,
) -> TracedMachine:
    """`function(*args, **kwargs)` as a machine, for all that its tensors may hold and its Python arguments may be.

    `choices`: the values that a Python argument may have, by its name or its place (`args[1]`); a bool may be both,
    an `Enum`, a `Literal` or None what its annotation says, and a number any, unless the program needs to know it.
    `sizes`: dimensions of tensors that differ from call to call, beside those that are marked dynamic.
    Raises `SmeltError` (SM060, SM061) with the user's line for what cannot be exported.
    """
    install_tensor_layout()
    arguments = Arguments(function, args, dict(kwargs or {}), choices or {}, sizes or {})
    machine: TracedMachine = _native.preserving_state(_explore, function, arguments, name, max_states)
    return machine


def _explore(function: Callable[..., Any], arguments: Arguments, name: str | None, max_states: int) -> TracedMachine:
    policy = Policy()
    title: str = name or getattr(function, "__name__", "") or type(function).__name__
    smallest = 0
    with torch.no_grad():
        for _ in range(_MAX_STARTS):
            try:
                return _Explorer(function, arguments, policy, title, max_states, smallest).machine()
            except _Learned:
                continue
            except SmeltError as error:
                if error.code != "SM061" or smallest or not arguments.has_small_sizes:
                    raise
                smallest = SMALLEST  # which takes fewer states
    raise SmeltError("SM061", f"exploring {title} learns something new each time it begins anew")


class _Learned(Exception):
    """The policy has changed: exploring begins anew."""


class _NotSo(Exception):
    """An instruction cannot be captured with numbers as the examples have them."""

    def __init__(self, error: SmeltError, paths: tuple[Path, ...]) -> None:
        super().__init__(str(error))
        self.error, self.paths = error, paths


Symbol = tuple[str, SsaValue, int | None]
"""Its name, and what it is: a number, or a size of a tensor in a dimension."""


@dataclass(frozen=True, slots=True)
class _Variant:
    """A state where some of its sizes and numbers are `known`, which `checks` on `symbols` make sure of.

    `done`: numbers whose cases 0 and 1 are explored separately.
    """

    node: Node
    frames: list[LiveFrame]
    checks: list[Check]
    symbols: list[Symbol] = field(default_factory=list)
    known: dict[Path, Known] = field(default_factory=dict)
    done: frozenset[Path] = frozenset()

    def where(
        self, known: dict[Path, Known], checks: Sequence[Check] = (), symbols: Sequence[Symbol] = ()
    ) -> "_Variant":
        """The part of it where more is known."""
        checks, symbols = [*self.checks, *checks], [*self.symbols, *symbols]
        return replace(self, checks=checks, symbols=symbols, known={**self.known, **known})


@dataclass(frozen=True, slots=True)
class _Explored:
    """A step, and the numbers that it makes sizes of."""

    step: Step
    numbers: dict[Path, SsaValue]


def _is_certain(env: ShapeEnv, formula: Any) -> bool:
    """Whether a float that is computed from sizes is one for all of them: the root of a size, say."""
    operands = formula.operands
    positive = len(operands) == 1 and isinstance(operands[0], Expression)
    return positive and formula.function in _OF_POSITIVE and bool(env.known(">", operands[0], Expression.of(0)))


def _examples(case: Case, *, always: bool) -> dict[Path, Known]:
    return {path: Known(size, always=always) for group, size in case for path, _, _ in group.places}


def make_call(target: Any, args: Any, kwargs: Any) -> Any:
    """The frame that is explored."""
    return target(*args, **kwargs)


@contextlib.contextmanager
def _entered(ambient: Ambient) -> Iterator[None]:
    before = Ambient.now()
    ambient.switch_from(before)
    try:
        yield
    finally:
        before.switch_from(ambient)


class _Explorer:
    """One attempt at a function, with what is known of it."""

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: Arguments,
        policy: Policy,
        name: str,
        max_states: int,
        smallest: int,
    ) -> None:
        self.function, self.arguments, self.policy, self.name = function, arguments, policy, name
        self.max_states, self.smallest = max_states, smallest
        self.nodes: list[Node] = []
        self.waiting: list[Node] = []
        self.by_key: dict[Any, Node] = {}
        self.by_form: dict[Any, Abstraction] = {}
        self.given: dict[int, SsaValue] = {}
        self.constants: dict[tuple[type, Any], SsaValue] = {}
        self.groups: dict[int, int] = {}  # tensors that share memory, by their ids
        self.notes: dict[str, None] = {}  # what a call may stop at
        self.groups_of_state: set[int] = set()  # those whose memory is that of a tensor of the program
        self.alive: list[Any] = []
        self.tentative = self.extra = self.is_small = False
        self.ambient = Ambient.now()
        self.inputs: dict[int, SsaValue] = {}
        self.dimensions: dict[tuple[SsaValue, int], Dimension] = {}  # of arguments whose sizes differ
        for leaf in arguments.leaves:
            if leaf.is_open(policy):
                sizes = leaf.sizes if isinstance(leaf.value, torch.Tensor) else ()
                is_number = not isinstance(leaf.value, torch.Tensor)
                value = SsaValue(RegisterKind.INPUT, leaf.name, leaf.dtype, sizes, leaf.device, is_given=is_number)
                self.inputs[leaf.number] = value
                self.dimensions |= {(value, dim): each for dim, each in leaf.dimensions.items()}

    def machine(self) -> TracedMachine:
        """All of it."""
        entry = Node(_ENTRY, [], self.ambient, [], {}, [])
        self.nodes.append(entry)
        for checks, leaves in self.arguments.variants(self.policy):
            frames, entry.values = self._called(leaves)
            entry.steps += self._for_all_sizes(entry, frames, list(checks))
        while self.waiting:
            node = self.waiting.pop()
            self.tentative, self.extra = node.tentative, False
            try:
                node.steps += self._for_all_sizes(node, node.frames, [])
            except SmeltError as error:
                if not node.tentative:
                    raise
                node.error = error
                end = Raise("NotImplementedError", error.message)
                node.steps = [Step(None, [], [], end, [], [], [])]
        self._return_alike()
        machine = with_registers(self.name, self.arguments, self.policy, self.inputs, self.nodes)
        return replace(machine, smallest=self.smallest, notes=(*machine.notes, *self.notes))

    def _return_alike(self) -> None:
        """Where the function returns a number that is known on one way and not on another, it is in a register."""
        ends = [step.next for node in self.nodes for step in node.steps if isinstance(step.next, Ends)]
        forms: dict[Any, list[Ends]] = {}
        for end in ends:
            forms.setdefault(end.tree, []).append(end)
        for alike in forms.values():
            for place in range(alike[0].tree.leaves):
                leaves = [end.leaves[place] for end in alike]
                kinds = {leaf[1].dtype for leaf in leaves if not isinstance(leaf, Literal) and leaf[0] == "number"}
                for end, leaf in zip(alike, leaves, strict=True):
                    known = leaf.value if isinstance(leaf, Literal) else None
                    if type(known) in DTYPES and DTYPES[type(known)] in kinds:
                        end.leaves[place] = ("number", self.constant(known), None)

    def constant(self, number: Any) -> SsaValue:
        """A register for a number that is known."""
        key = (type(number), number.hex() if type(number) is float else number)
        if key not in self.constants:
            tensor = torch.tensor(number, dtype=DTYPES[type(number)])
            name = str(number)
            self.constants[key] = SsaValue(RegisterKind.CONSTANT, name, tensor.dtype, (), tensor.device, tensor)
        return self.constants[key]

    def _called(self, leaves: list[Any]) -> tuple[list[LiveFrame], dict[int, SsaValue]]:
        """The state in which the function is called with these arguments."""
        values: dict[int, SsaValue] = {}
        replaced = []
        for leaf, value in zip(self.arguments.leaves, leaves, strict=True):
            stand_in = leaf.stand_in(self.policy, value)
            if leaf.number in self.inputs:
                values[id(stand_in.tensor if isinstance(stand_in, OpenNumber) else stand_in)] = self.inputs[leaf.number]
            replaced.append(stand_in)
        self.alive.append(replaced)
        args, kwargs = self.arguments.with_leaves(replaced)
        assert isinstance(make_call, FunctionType)
        return [LiveFrame(make_call, decode(make_call.__code__), 0, [self.function, args, kwargs], [])], values

    def _walk(self, variant: _Variant) -> Abstraction:
        walk = Abstraction(variant.frames, Policy(), self.groups, variant.known)
        self.alive.append(walk)
        return walk

    def _for_all_sizes(self, node: Node, frames: list[LiveFrame], checks: list[Check]) -> list[Step]:
        """What a state does: where some sizes are 0 or 1, in the example, and where others are needed for what the code
        relies on."""
        variant = _Variant(node, frames, checks)
        groups = sizes_of(self._walk(variant), node.values, self.dimensions)
        steps: list[Step] = []
        for case in small_cases(groups) if self.smallest == 0 else ():
            small = variant.where(_examples(case, always=True), *self._equal(case))
            if node.frames:
                with self._tentatively(), contextlib.suppress(SmeltError):
                    steps += self._steps(small)
            else:
                self.is_small = True  # for which operators raise that do not for others, in eager too
                steps += self._steps(small)
                self.is_small = False
        steps += self._steps(variant)
        most = len(steps) + _MOST_VARIANTS
        for case in other_examples(groups, steps):
            if len(steps) < most and not any(covers(step, groups, case) for step in steps):
                with self._tentatively() if node.frames else contextlib.nullcontext(), contextlib.suppress(SmeltError):
                    steps += self._steps(variant.where(_examples(case, always=False)))
        if not self.tentative:
            self._note_sizes_left_out(node, groups, steps)
        return steps

    def _note_sizes_left_out(self, node: Node, groups: list[SizeGroup], steps: list[Step]) -> None:
        """Say for which sizes there is no step: there were too many, or eager raises for them."""
        for case in other_examples(groups, steps):
            if not any(covers(step, groups, case) for step in steps):
                places = ((*group.places[0], size) for group, size in case)
                sizes = ", ".join(f"{value.name}.shape[{dim}] = {size}" for _, value, dim, size in places)
                where = f" at {node.name}" if node.frames else ""
                self.notes[f"{SOME_SIZES}: a call with {sizes} stops{where}"] = None
                return

    def _equal(self, case: Case) -> tuple[list[Check], list[Symbol]]:
        """Checks that sizes are what they are in a case, and the symbols of those."""
        checks: list[Check] = []
        symbols: list[Symbol] = []
        for group, size in case:
            for _, value, dim in group.places:
                symbol = ShapeEnv().reading(f"size {len(symbols)}", size)
                checks.append(SizeCheck(SizeGuard("==", Expression.of(symbol) - Expression.of(size))))
                symbols.append((symbol.text, value, dim))
        return checks, symbols

    def _steps(self, variant: _Variant) -> list[Step]:
        """What a state does: one step, or several where it makes sizes of numbers, of which 0, 1 and negative ones are
        like no others, and others may be told apart too."""
        first = self._first_that_goes_on(variant)
        steps: list[Step] = []
        split = list(first.numbers)[: _MOST_SPLIT if len(first.numbers) <= _MOST_SPLIT else 1]
        others = {path: value for path, value in first.numbers.items() if path not in variant.done}
        for path in (path for path in split if path in others):
            value = others[path]
            for number in (0, 1):
                steps += self._where_it_is(variant, path, value, number)
            variant = replace(variant, done=variant.done | {path})
            if value.is_given and path[-1] != NEGATED:
                steps += self._where_negative(variant, path, value)
        steps.append(first.step)
        is_given = any(first.numbers[path].is_given for path in split)
        sizes, tried = self._example_sizes(variant) if is_given else {}, 0
        for examples in itertools.product(EXAMPLES[:_MOST_VARIANTS], repeat=len(split)):
            numbers = {(first.numbers[path], None): example for path, example in zip(split, examples, strict=True)}
            if tried < _MOST_VARIANTS * len(split) and not any(holds(step, sizes | numbers) for step in steps):
                tried += 1
                taken = {path: Known(example, always=False) for path, example in zip(split, examples, strict=True)}
                with self._tentatively(), contextlib.suppress(SmeltError, _NotSo):
                    steps.append(self._step(variant.where(taken)).step)
        self._note_numbers_left_out(variant, others, steps)
        return steps

    def _example_sizes(self, variant: _Variant) -> dict[tuple[SsaValue, int | None], int]:
        """The dynamic sizes of a state as it is explored."""
        leaves = self._walk(variant).leaves
        shapes = [(variant.node.values[id(leaf.original)], leaf.stand_in.shape) for leaf in leaves]
        return {(value, dim): size for value, shape in shapes for dim, size in enumerate(shape)}

    def _where_negative(self, variant: _Variant, path: Path, value: SsaValue) -> list[Step]:
        """What a state does where a number is negative: it goes on in one that has the negative of it, a symbol."""
        walk, node = self._walk(variant), variant.node
        values = {id(leaf.stand_in): node.values[id(leaf.original)] for leaf in walk.leaves}
        negated = SsaValue(RegisterKind.LOCAL, f"-{value.name}", value.dtype, (), value.device, is_given=True)
        stand_in = walk.opened[path].negated = standing_in((), value.dtype, value.device)
        values[id(stand_in)] = negated
        self._keep_groups(walk)
        symbol = ShapeEnv().reading(name_of(value, variant.symbols), -1)
        check = SizeCheck(SizeGuard("<", Expression.of(symbol)))
        with self._tentatively():
            edge = self._edge(walk.frames, node.ambient, Values(self, values), settle=False)
            graph = each_by(torch.neg, [TensorSpec.of(stand_in)])
            symbols, checks = [*variant.symbols, (symbol.text, value, None)], [*variant.checks, check]
            return [Step(graph, [value], [negated], Goes([edge]), symbols, checks, [], self.extra)]

    def _note_numbers_left_out(self, variant: _Variant, numbers: dict[Path, SsaValue], steps: list[Step]) -> None:
        """Say for which number that the caller may give there is no step, unless eager raises for it."""
        arguments = {path: value for path, value in numbers.items() if value.is_given}
        if not arguments:
            return
        sizes, looked_at = self._example_sizes(variant), 0
        for case in some_numbers(list(arguments)):
            numbers_here = {(arguments[path], None): number for path, number in case.items()}
            if any(holds(step, sizes | numbers_here) for step in steps):
                continue
            looked_at += 1
            taken = {path: Known(number, always=True) for path, number in case.items()}
            if looked_at > _MOST_LOOKED_AT or self._raises(variant.where(taken)):
                continue
            where = "" if variant.node.name == _ENTRY else f" at {variant.node.name}"
            shown = [
                f"{arguments[path].name.removeprefix('-')} = {-number if path[-1] == NEGATED else number}"
                for path, number in case.items()
            ]
            self.notes[f"{SOME_NUMBERS}: a call with {', '.join(shown)} stops{where}"] = None
            return

    def _raises(self, variant: _Variant) -> bool:
        """Whether a state raises where numbers are these."""
        before, self.is_small = self.is_small, True
        try:
            with self._tentatively():
                return isinstance(self._step(variant).step.next, Raise)
        except (SmeltError, _NotSo):
            return False
        finally:
            self.is_small = before

    def _where_it_is(self, variant: _Variant, path: Path, value: SsaValue, number: int) -> list[Step]:
        """What a state does where a number is this one; nothing, where that cannot be explored."""
        symbol = ShapeEnv().reading(name_of(value, variant.symbols), number)
        check = SizeCheck(SizeGuard("==", Expression.of(symbol) - Expression.of(number)))
        known = {path: Known(number, always=True)}
        with self._tentatively(), contextlib.suppress(SmeltError):
            return self._steps(variant.where(known, [check], [(symbol.text, value, None)]))
        return []

    @contextlib.contextmanager
    def _tentatively(self) -> Iterator[None]:
        """States that are met here may be none that the program comes to: what fails there fails when it is run."""
        before = self.tentative, self.extra
        self.tentative = self.extra = True
        try:
            yield
        finally:
            self.tentative, self.extra = before

    def _first_that_goes_on(self, variant: _Variant) -> "_Explored":
        """A step, with examples of numbers for which there is one."""
        try:
            return self._step(variant)
        except _NotSo as refused:
            for example in EXAMPLES[1:]:
                paths = [path for path in refused.paths if path not in variant.known]
                try:
                    return self._step(variant.where({path: Known(example, always=False) for path in paths}))
                except _NotSo:
                    continue
            raise refused.error from None

    def _step(self, variant: _Variant) -> "_Explored":
        walk, node = self._walk(variant), variant.node
        values = {id(leaf.stand_in): node.values[id(leaf.original)] for leaf in walk.leaves}
        self._keep_groups(walk)
        recorder = GraphRecorder()
        with _entered(node.ambient):
            captured, collected = self._captured(walk.frames, recorder)
        plan, facts = captured.plan, captured.facts
        assert facts is not None
        computation = plan.computation
        if computation.preallocated or facts.own_generators or facts.defers:
            where = plan.record.where if isinstance(plan, Stop) else ""
            raise self.error("it changes state that an optimizer, a scheduler or a torch.Generator keeps", where=where)
        value_of = Values(self, values)
        inputs = [value_of(collected[place]) for place in computation.arguments]
        symbols, checks, end = [*variant.symbols], [*variant.checks], Ends([], tree_of(())[0])
        step = Step(recorder.traced, inputs, [], end, symbols, checks, [], self.extra)
        numbers = self._bind_symbols(step, facts, collected, value_of, walk)
        after = self._own_what_is_written(step, facts, recorder, collected, computation.arguments, values)
        results = recorder.outputs()[: len(facts.views)]
        outputs = [stand_in_for(node, facts.open_symbols, facts.shape_env) for node in results]
        value_of.now(after)
        for place, (tensor, view) in enumerate(zip(outputs, facts.views, strict=True)):
            output = SsaValue(RegisterKind.LOCAL, "", tensor.dtype, marks_of(tensor), tensor.device)
            step.outputs.insert(place, output)
            value_of.add(tensor, output)
            self._note_alias(tensor, view, collected, computation.arguments, outputs)
            if isinstance(plan, Stop):
                assert recorder.traced is not None
                make_own(recorder.traced, place, shared=view is not None)
        if recorder.traced is not None:
            in_ambient(recorder.traced, node.ambient, self.ambient)
        registers = rebuilt(plan, collected, tuple(outputs), walk.objects)
        ambient = computation.final or computation.entry
        if isinstance(plan, Return):
            step.next = self._ends(registers[plan.result], value_of, recorder)
        else:
            stopped = [each.materialize(registers) for each in plan.frames]
            step.next = self._follow(plan, stopped, ambient, value_of, node, numbers)
        return _Explored(step, numbers)

    def _captured(self, frames: list[LiveFrame], recorder: GraphRecorder) -> tuple[Captured, tuple[Any, ...]]:
        try:
            captured = capture(frames, recorder, fullgraph=False, dynamic=None, history=History(), explores=True)
        except SkipFrame as reason:
            frame = frames[-1]
            where = f"{frame.info.code.co_filename}:{frame.instruction.line}"
            hint = "rewrite this part with tensors, lists, dicts and plain loops"
            raise self.error(str(reason), hint, where) from None
        collected = captured.guards.check(flat(frames))
        assert collected is not None
        return captured, collected

    def _own_what_is_written(
        self,
        step: Step,
        facts: GraphFacts,
        recorder: GraphRecorder,
        collected: tuple[Any, ...],
        arguments: tuple[int, ...],
        values: dict[int, SsaValue],
    ) -> dict[int, SsaValue]:
        """Values of what the graph has written: of the program's own tensors, those are state; of others, new ones."""
        after = dict(values)
        for place in facts.written:
            value, tensor = step.inputs[place], collected[arguments[place]]
            self._refuse_shared_write(tensor, values)
            if value.tensor is not None:
                value.kind = RegisterKind.STATE
                step.written.append(value)
                continue
            if value.kind is RegisterKind.INPUT:
                hint = "clone the argument first, or keep the tensor as a buffer of the module"
                raise self.error(f"it writes to its argument {value.name} in place", hint)
            assert recorder.traced is not None
            append_output(recorder.traced, own_written(recorder.traced, place))
            new = SsaValue(RegisterKind.LOCAL, value.name, value.dtype, value.sizes, value.device)
            step.outputs.append(new)
            after[id(tensor)] = new
        return after

    def _refuse_shared_write(self, tensor: torch.Tensor, values: dict[int, SsaValue]) -> None:
        group = self.groups.get(id(tensor))
        if group is None:
            return
        is_of_state = group in self.groups_of_state and STAND_IN in tensor.__dict__
        if is_of_state or any(self.groups.get(other) == group for other in values if other != id(tensor)):
            hint = "clone the view, or make it after the branch"
            raise self.error("it writes to a tensor, of which it made a view before a branch", hint)

    def _note_alias(
        self,
        tensor: torch.Tensor,
        view: tuple[str, int] | None,
        collected: tuple[Any, ...],
        arguments: tuple[int, ...],
        outputs: list[torch.Tensor],
    ) -> None:
        self.alive.append(tensor)
        if view is None:
            return
        kind, place = view
        other = collected[arguments[place]] if kind == "input" else outputs[place]
        group = self.groups.setdefault(id(other), len(self.groups) + 1)
        self.alive.append(other)
        if STAND_IN not in other.__dict__ and kind == "input":
            self.groups_of_state.add(group)
        self.groups[id(tensor)] = group

    def _bind_symbols(
        self, step: Step, facts: GraphFacts, collected: tuple[Any, ...], value_of: Values, walk: Abstraction
    ) -> dict[Path, SsaValue]:
        """Note what symbols of the graph are; those that are numbers are returned, by where they stand."""
        env, numbers = facts.shape_env, {}
        for formula in env.fixed or [each for each in env.computed if not _is_certain(env, each)]:
            raise self.error(f"it relies on {formula.text}, a number")
        for symbol in env.symbols:
            source, what, dim = symbol.origin
            if what == "stride":
                raise self.error(f"it relies on {symbol.text}")
            held = collected[source.index]
            if what != "size":
                held = held.tensor if held.negated is None else held.negated
                numbers[next(leaf.path for leaf in walk.leaves if leaf.stand_in is held)] = value_of(held)
            value = value_of(held)
            step.symbols.append((symbol.text, value, dim if what == "size" else None))
            step.checks.append(SizeCheck(SizeGuard(">", Expression.of(symbol) - Expression.of(1))))
        step.checks += [SizeCheck(guard) for guard in env.guards]
        return numbers

    def _ends(self, result: Any, value_of: Values, recorder: GraphRecorder) -> Ends:
        tree, leaves = tree_of(result)
        ends: list[Any] = []
        nodes = recorder.outputs()
        for leaf in leaves:
            if isinstance(leaf, OpenNumber):
                ends.append(("number", value_of(leaf), None))
            elif isinstance(leaf, torch.Tensor):
                place = value_of.place_of(leaf)
                ends.append(("tensor", value_of(leaf), None if place is None else tensor_spec(nodes[place])))
            elif leaf is None or type(leaf) in (bool, int, float, str):
                ends.append(Literal(leaf))
            else:
                hint = "return tensors, numbers and strings, in tuples, lists and dicts"
                raise self.error(f"it returns a {type(leaf).__qualname__}", hint)
        return Ends(ends, tree)

    def _follow(
        self,
        plan: Stop,
        frames: list[LiveFrame],
        ambient: Ambient,
        value_of: Values,
        node: Node,
        numbers: dict[Path, SsaValue],
    ) -> Any:
        following = what_follows(plan, frames)
        if isinstance(following, Splits):
            edges = [self._edge(each, ambient, value_of) for each in (following.if_true, following.if_false)]
            return Goes(edges, value_of(following.condition))
        if isinstance(following, Raises) and (following.certain or node.frames or self.is_small):
            return following.end
        if isinstance(following, NeedsNumber):
            return self._with_number(plan, frames, ambient, value_of, node, numbers)
        raise self.error(plan.record.reason, plan.record.hint, plan.record.where)

    def _with_number(
        self,
        plan: Stop,
        frames: list[LiveFrame],
        ambient: Ambient,
        value_of: Values,
        node: Node,
        numbers: dict[Path, SsaValue],
    ) -> Any:
        """An instruction needs to know a number: as a register of the next state it may be a size; where that does not
        do, numbers that were opened are left as they are."""
        at = [(each.info.code, each.index) for each in frames]
        if at != [(each.info.code, each.index) for each in node.frames]:
            return Goes([self._edge(frames, ambient, value_of, settle=False)])
        error = self.error(plan.record.reason, plan.record.hint, plan.record.where)
        if numbers:
            raise _NotSo(error, tuple(numbers))
        opened = {place for place in self.policy.open if place not in self.policy.closed}
        opened = opened or self._arguments_on(frames[-1].stack, value_of) or self.arguments.open_numbers(self.policy)
        if not opened:
            raise error
        self.policy.close(opened, f"{plan.record.reason} ({plan.record.where})")
        raise _Learned

    def _arguments_on(self, stack: list[Any], value_of: Values) -> set[tuple[Any, Path]]:
        """Numbers among the arguments that an instruction works with."""
        values = [value_of(each) for each in stack if isinstance(each, OpenNumber)]
        numbers = [number for number, value in self.inputs.items() if any(value is each for each in values)]
        return {self.arguments.leaves[number].place for number in numbers}

    def error(self, reason: str, hint: str = "", where: str = "") -> SmeltError:
        """Why the function cannot be exported."""
        return SmeltError("SM060", f"{self.name} cannot be exported: {reason}", where=where, hint=hint)

    def _edge(self, frames: list[LiveFrame], ambient: Ambient, value_of: Values, settle: bool = True) -> Edge:
        """The way to a state, which is explored if it is new."""
        if settle:
            store_result(frames[-1])
        for frame in frames:
            frame.clear_dead()
        walk = Abstraction(frames, self.policy, self.groups)
        if self._part_alone(walk):
            walk = Abstraction(frames, self.policy, self.groups)
        self.alive.append(walk)
        key = (walk.key, ambient)
        target = self.by_key.get(key)
        if target is None:
            self._learn(walk, ambient)
            target = self._new_node(walk, ambient, key, value_of)
        if target.tentative and not self.tentative:
            self._expect(target)
        arguments = [value_of(leaf.original) for leaf in walk.leaves]
        for leaf, argument, parameter in zip(walk.leaves, arguments, target.parameters, strict=True):
            is_negative = type(leaf.original) is int and leaf.original < 0
            if (argument.is_given or is_negative) and not parameter.is_given:
                self.policy.given.add((walk.site, leaf.path))
                raise _Learned
        return Edge(target, arguments)

    def _expect(self, node: Node) -> None:
        """The program does come to a state, and to those that follow it."""
        waiting = [node]
        while waiting:
            expected = waiting.pop()
            if expected.error is not None:
                raise expected.error
            if expected.tentative:
                expected.tentative = False
                following = [step.next for step in expected.steps if not step.extra]
                waiting += [edge.target for each in following if isinstance(each, Goes) for edge in each.edges]

    def _new_node(self, walk: Abstraction, ambient: Ambient, key: Any, value_of: Values) -> Node:
        if len(self.nodes) >= self.max_states:
            frame = walk.frames[-1]
            raise SmeltError(
                "SM061",
                f"{self.name} has more than {self.max_states} states",
                where=f"{frame.info.code.co_filename}:{frame.instruction.line}",
                hint="a loop with a branch on a tensor is unrolled where a list grows or is indexed by its counter; "
                "keep what it collects in a tensor",
            )
        parameters = []
        for leaf in walk.leaves:
            source, held = value_of(leaf.original), leaf.stand_in
            name = source.name if isinstance(leaf.original, torch.Tensor) else ""
            parameter = SsaValue(RegisterKind.LOCAL, name, held.dtype, marks_of(held), held.device)
            parameter.is_given = source.is_given or (walk.site, leaf.path) in self.policy.given
            parameters.append(parameter)
        frame = walk.frames[-1]
        name = f"{frame.info.code.co_qualname}:{frame.instruction.line}"
        if frame.function is make_call:
            name = _ENTRY
        values = {id(leaf.stand_in): each for leaf, each in zip(walk.leaves, parameters, strict=True)}
        node = Node(name, walk.frames, ambient, parameters, values, [], self.tentative)
        self.by_key[key] = node
        self.nodes.append(node)
        self.waiting.append(node)
        self._keep_groups(walk)
        return node

    def _part_alone(self, walk: Abstraction) -> bool:
        """Forget that a tensor shares memory, where no other that does is left. Returns whether there is such a one."""
        leaves = [leaf.original for leaf in walk.leaves if id(leaf.original) in self.groups]
        members = Counter(self.groups[id(tensor)] for tensor in leaves)
        alone = {group for group, count in members.items() if count == 1} - self.groups_of_state
        for tensor in leaves:
            if self.groups[id(tensor)] in alone:
                del self.groups[id(tensor)]
        return bool(alone)

    def _keep_groups(self, walk: Abstraction) -> None:
        """What stands for tensors that share memory shares it."""
        for leaf in walk.leaves:
            if isinstance(leaf.original, torch.Tensor) and id(leaf.original) in self.groups:
                self.groups[id(leaf.stand_in)] = self.groups[id(leaf.original)]

    def _learn(self, walk: Abstraction, ambient: Ambient) -> None:
        """Compare a new state with the last one of its form: what differs from round to round is opened."""
        before = self.by_form.get((walk.form, ambient))
        self.by_form[walk.form, ambient] = walk
        if before is None:
            return
        differing = {path for path, number in walk.numbers.items() if before.numbers.get(path, number) != number}
        differing |= {
            path
            for path, size in walk.sizes.items()
            if before.sizes.get(path, size) != size and min(size, before.sizes[path]) >= 2
        }
        new = {(walk.site, path) for path in differing} - self.policy.open - self.policy.closed
        if new:
            self.policy.open |= new
            raise _Learned
