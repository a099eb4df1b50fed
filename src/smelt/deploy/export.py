"""`smelt.export`: a function or module as an artifact that runs without Python.

    smelt.export(model, (x,), dynamic={"x": {0: "batch"}})
      ── capture ──► a call as data ── one program for each set of sizes ──► Machine ── code ──► Artifact

Sizes that differ are symbols; 0 and 1 behave unlike all others, and what a program relies on may not hold for all sizes
within their bounds: for such sizes the call is captured again, and becomes another variant.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import torch

from smelt.autograd.joint.functional_trace import CannotTrace
from smelt.base import events
from smelt.base.errors import GraphBreakError, SmeltError, warn
from smelt.base.fast_dataclass import dataclass
from smelt.capture.driver.whole_call import described_call
from smelt.capture.explore.explore import SOME_NUMBERS, SOME_SIZES
from smelt.capture.guards.dynamic_sizes import History
from smelt.capture.model.breaks import SkipFrame
from smelt.capture.model.source import Source
from smelt.capture.replay.described import DescribedCall, given_of
from smelt.deploy.call_form import CallForm
from smelt.deploy.control_flow import flow_machine, has_choices
from smelt.deploy.coverage import (
    Following,
    argument_dims,
    candidate_sizes,
    covers,
    every_size,
    first_numbers,
    static_sizes,
    turning_points,
)
from smelt.deploy.errors import BreaksGraph, DecidesByState, ExportError
from smelt.deploy.state.effects import Reliance, SortedEffects, sorted_effects
from smelt.deploy.state.homes import Home, Homes
from smelt.deploy.state.registers import Registers
from smelt.deploy.state.sharing import EntryState
from smelt.deploy.variant import HowToLower, VariantBuilder
from smelt.ir.artifact.check import check_machine
from smelt.ir.artifact.machine import (
    Binding,
    Machine,
    SizeCheck,
    State,
    Variant,
)
from smelt.symbolic.expressions import LARGEST, Expression, SizeGuard, Symbol

MOST_VARIANTS = 16
"""How many sets of sizes one artifact is compiled for."""

MOST_ELEMENTS = 1 << 31
"""Of a tensor: larger ones are not looked for."""

_TOO_MANY_STATES = "there would be too many states"


def exported_machine(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    dynamic: Mapping[str, Any],
    name: str,
    how: HowToLower,
    shared: EntryState | None = None,
) -> Machine:
    """The machine of a function, for an example of its arguments: of one graph, or where branches depend on tensors or
    a Python argument may have several values, of all ways that it can go. `shared`: with other entry points."""
    shared = shared or EntryState()
    form = CallForm.of(function, args, kwargs, dynamic)
    refused: SmeltError | None = None
    if has_choices(form):
        try:
            return _without_fixed(form, flow_machine(form, name, how, shared))
        except SmeltError as error:
            if any(leaf.choices for leaf in form.leaves):
                raise
            refused = error  # it may be exported for the values of the example
    try:
        machine = _of_one_graph(form, name, how, shared)
    except BreaksGraph as broken:
        if refused is not None:
            raise refused from None
        try:
            machine = flow_machine(form, name, how, shared)
        except SmeltError as error:
            if isinstance(broken, DecidesByState):
                raise broken from None
            if "transformers/generation" in error.where:
                raise ExportError(
                    "generate() is a loop in Python round the model, which no artifact holds",
                    where=error.where,
                    hint="export one step, the model's forward for the tokens so far or with its cache as state; the "
                    "program that runs the file has the loop",
                ) from None
            raise
    else:
        machine = _with_fixed(form, machine, "" if refused is None else refused.message)
    return _without_fixed(form, machine)


def _with_fixed(form: CallForm, machine: Machine, why: str) -> Machine:
    """The machine of one graph, with a note for each number that it relies on."""
    relied = {
        symbol.text
        for variant in machine.states[0].variants
        for check in variant.checks
        if isinstance(check, SizeCheck)
        for symbol in check.guard.expression.symbols()
    }
    notes = []
    for leaf, argument in zip(form.leaves, machine.arguments, strict=True):
        bound = {
            binding.symbol
            for variant in machine.states[0].variants
            for binding in variant.symbols
            if leaf.is_open and binding.register == argument.register
        }
        if type(leaf.example) in (bool, int, float) and not leaf.choices and (not leaf.is_open or bound & relied):
            notes.append(f"{leaf.name} is fixed at {leaf.example!r}: {why or 'the function is one graph for it'}")
    return replace(machine, notes=(*machine.notes, *notes))


def _without_fixed(form: CallForm, machine: Machine) -> Machine:
    """Warn of arguments that are fixed and of sizes that are bounded, or raise where they were declared to differ."""
    for note in machine.notes:
        if note.endswith(_TOO_MANY_STATES) or note.startswith((SOME_SIZES, SOME_NUMBERS)):
            warn(f"{machine.name}: {note}")
        name, is_fixed, _ = note.partition(" is fixed at ")
        leaf = next((leaf for leaf in form.leaves if leaf.name == name), None) if is_fixed else None
        if leaf is not None and leaf.is_open:
            raise ExportError(f"{note}; dynamic says that it differs", code="SM060")
        if leaf is not None:
            hint = f"dynamic={{{name!r}: [...]}} lists the values that it may have"
            warn(f"{machine.name}: {note}. The artifact refuses other values; {hint}.")
    return machine


def _of_one_graph(form: CallForm, name: str, how: HowToLower, shared: EntryState) -> Machine:
    """The machine of a call that is captured as a whole: one state, with variants for all sizes and numbers."""
    homes, kept = Homes(form.target), KeptNumbers(frozenset(), frozenset())
    while True:
        variants = _Variants(form, name, how, homes, kept, shared)
        try:
            variants.build()
        except OthersAreKept as restart:  # another number is written than earlier captures were told of
            kept = restart.numbers
            continue
        return variants.machine()


@dataclass(frozen=True, slots=True)
class KeptNumbers:
    """`state`: homes of numbers that calls write and read. `symbolic`: those whose values decide what calls do."""

    state: frozenset[Home]
    symbolic: frozenset[Home]


class OthersAreKept(Exception):
    """The numbers of state are others than were supposed."""

    def __init__(self, numbers: KeptNumbers) -> None:
        super().__init__()
        self.numbers = numbers


class _Variants:
    """The variants of one call, captured for one set of sizes and numbers after another."""

    def __init__(
        self, form: CallForm, name: str, how: HowToLower, homes: Homes, kept: KeptNumbers, shared: EntryState
    ) -> None:
        self._form, self._name, self._how, self._homes, self._kept = form, name, how, homes, kept
        self._registers, self._shared = Registers(form, homes, shared), shared
        shared.homes.append(homes)
        self._notes: dict[str, None] = {}
        self._built: list[Variant] = []
        self._captured_sizes: list[dict[str, int]] = []
        self._reliances: list[Reliance] = []
        self._written: set[Home] = set()
        self._dropped: dict[Home, str] = {}
        self._stop: tuple[int, str] | None = None

    def build(self) -> None:
        form, built = self._form, self._built
        self._add(form.example_sizes, {})
        now = first_numbers(self._registers)
        usual = candidate_sizes(form.dimensions, form.example_sizes, lambda: turning_points(built))
        for sizes in chain(usual, every_size(form.dimensions, form.example_sizes, built)):
            if form.elements(sizes) > MOST_ELEMENTS:
                continue
            if not any(covers(form, variant, sizes, now) for variant in built):
                if len(built) == MOST_VARIANTS:
                    shown = ", ".join(f"{key} = {size}" for key, size in sizes.items())
                    raise ExportError(
                        f"{MOST_VARIANTS} variants do not cover all sizes: none is for {shown}",
                        hint="give tighter bounds",
                    )
                self._add(sizes, {})
        for sizes in list(self._captured_sizes):
            self._follow(sizes)

    def _add(self, sizes: dict[str, int], numbers: Mapping[int, float]) -> None:
        """One more variant, for these sizes and these numbers of state, by their registers."""
        built = self._built
        with events.timed("export", f"{self._name} for {len(built) + 1} sets of sizes" if built else self._name):
            call = self._captured(sizes, numbers)
            reliance = Reliance.of(call, self._homes)
            effects = sorted_effects(call, self._homes, reliance, self._kept.state)
            self._keep_consistent(reliance, effects)
            builder = VariantBuilder(call, effects, self._registers, self._how, f"{self._name}{len(built) or ''}")
            built.append(_lowered(builder, self._name))
        self._captured_sizes += [] if numbers else [sizes]
        self._notes |= dict.fromkeys(effects.notes)

    def _captured(self, sizes: dict[str, int], numbers: Mapping[int, float]) -> DescribedCall:
        """The call for these sizes, with numbers that decide as symbols."""
        form, history = self._form, History()
        for place, dim in form.open_places(sizes):
            history.mark(place, dim)

        def suppose(number: float, source: Source) -> tuple[float, bool]:
            home = self._homes.of(given_of(source).path)
            register = self._registers.number_at(home) if home in self._kept.state else None
            supposed = number if register is None else numbers.get(register, number)
            return supposed, home in self._kept.symbolic

        history.suppose = suppose
        args, kwargs = form.arguments(sizes)
        try:
            call = described_call(form.target, args, kwargs, history)
        except GraphBreakError as stop:
            reason = stop.message.removeprefix("graph break under fullgraph=True: ")
            raise BreaksGraph(f"not exported: {reason}", where=stop.where, hint=stop.hint, code="SM060") from None
        except SkipFrame as stop:
            raise BreaksGraph(f"not exported: {stop}", code="SM060") from None
        if _asserts(call):
            raise BreaksGraph("not exported as one graph: a branch leads to an exception", code="SM060")
        return call

    def _keep_consistent(self, reliance: Reliance, effects: SortedEffects) -> None:
        """What one variant changes and another relies on is kept, or cannot be exported."""
        self._reliances.append(reliance)
        self._written |= effects.written
        self._dropped |= effects.dropped
        read = frozenset().union(*(each.read for each in self._reliances))
        relied = frozenset().union(*(each.numbers for each in self._reliances))
        self._shared.read |= read
        self._shared.written |= {home: str(home[-1]) for home in self._written} | self._dropped
        state = self._kept.state | (read & self._written)
        symbolic = self._kept.symbolic | (relied & state)
        if (state, symbolic) != (self._kept.state, self._kept.symbolic):
            raise OthersAreKept(KeptNumbers(state, symbolic))
        for home, text in self._dropped.items():
            if home in read:
                raise ExportError(f"{text} changes with each call, and is neither a tensor nor a number")

    def _follow(self, sizes: dict[str, int]) -> None:
        """Go from call to call by what the variants make of the numbers of state, and add variants where there is none
        for them."""
        following = Following(self._form, sizes, self._built, self._registers)
        while (missing := following.first_uncovered()) is not None:
            why = ""
            if len(self._built) == MOST_VARIANTS:
                why = f"{MOST_VARIANTS} variants are not enough"
            else:
                try:
                    self._add(sizes, missing)
                except ExportError as error:
                    why = error.message.removeprefix("not exported: ")
                else:
                    why = "" if following.is_covered() else "the code relies on more than these numbers"
            if why:
                shown = ", ".join(f"{self._registers.name_of(each)} is {value}" for each, value in missing.items())
                stop = following.calls, f"where {shown}: {why}"
                self._stop = min(self._stop or stop, stop)
                return

    def machine(self) -> Machine:
        registers, storages = self._registers.finished()
        variants = [_with_dimensions(self._form, each) for each in self._built]
        machine = Machine(
            self._name, self._form.tree, self._registers.arguments, self._form.dimensions, storages, registers,
            (State("entry", tuple(variants)),), tuple(self._notes),
        )  # fmt: skip
        check_machine(machine)
        if self._stop is not None:
            calls, why = self._stop
            hint = "Export again before that, or keep the number in a tensor."
            warn(f"{self._name}: the artifact stops after {calls} calls, {why}. {hint}")
        return machine


def _asserts(call: DescribedCall) -> bool:
    """Whether a call relies on a branch's going one way, where Python would run the other."""
    nodes = call.traced.graph.nodes if call.traced is not None else ()
    return any(node.target is torch.ops.aten._assert_async.msg for node in nodes)


def _lowered(builder: VariantBuilder, name: str) -> Variant:
    try:
        return builder.build()
    except CannotTrace as refused:
        raise ExportError(f"{name} cannot be exported: {refused.reason}") from refused


def _with_dimensions(form: CallForm, variant: Variant) -> Variant:
    """The variant with checks that sizes of one name are equal, and that those it has no symbol for are what it has."""
    bound = {(each.register, each.dim): each.symbol for each in variant.symbols}
    static = static_sizes(form, variant)
    symbols, checks = list(variant.symbols), dict.fromkeys(variant.checks)
    first: dict[str, str] = {}
    for (register, dim), name in argument_dims(form).items():
        symbol = bound.get((register, dim))
        if symbol is None:
            symbol = f"{name}@{register}.{dim}"
            fixed = static.get(name)
            limits = (0, LARGEST) if fixed is None else (fixed, fixed)
            symbols.append(Binding(symbol, register, dim, *limits))
        other = first.setdefault(name, symbol)
        if other != symbol:
            same = Expression.of(Symbol(symbol, 2)) - Expression.of(Symbol(other, 2))
            checks[SizeCheck(SizeGuard("==", same))] = None
    return replace(variant, symbols=tuple(symbols), checks=tuple(checks))
