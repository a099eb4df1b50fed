"""`smelt.export`: a function or module as an artifact that runs without Python.

    smelt.export(model, (x,), dynamic={"x": {0: "batch"}})
      ── capture ──► a call as data ── one program for each set of sizes ──► Machine ── code ──► Artifact

Sizes that differ are symbols; 0 and 1 behave unlike all others, and what a program relies on may not hold for all sizes
within their bounds: for such sizes the call is captured again, and becomes another variant.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from smelt.autograd.joint.functional_trace import CannotTrace
from smelt.base import events
from smelt.base.errors import GraphBreakError, SmeltError, warn
from smelt.capture.driver.whole_call import ARGS, KWARGS, described_call
from smelt.capture.guards.dynamic_sizes import History
from smelt.capture.model.breaks import SkipFrame
from smelt.capture.replay.described import DescribedCall
from smelt.deploy.call_form import CallForm
from smelt.deploy.control_flow import flow_machine, has_choices
from smelt.deploy.effects import SortedEffects, sorted_effects
from smelt.deploy.errors import BreaksGraph, ExportError
from smelt.deploy.numbers import leaves_of
from smelt.deploy.registers import Registers
from smelt.deploy.variant import HowToLower, VariantBuilder
from smelt.ir.artifact.check import check_machine
from smelt.ir.artifact.machine import (
    Binding,
    Dimension,
    Machine,
    NumberCheck,
    RegisterKind,
    RegisterView,
    SizeCheck,
    State,
    Variant,
)
from smelt.symbolic.expressions import LARGEST, RELATIONS, SMALLEST, Expression, SizeGuard, Symbol
from smelt.symbolic.symnode import Formula

MOST_VARIANTS = 16
"""How many sets of sizes one artifact is compiled for."""

MOST_STEPS = 4096
"""Up to what number of steps variants are looked for that a training step needs."""

_TOO_MANY_STATES = "there would be too many states"
_ATTEMPTS = 4  # at a call whose numbers turn out to change


def exported_machine(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    dynamic: Mapping[str, Any],
    name: str,
    how: HowToLower,
) -> Machine:
    """The machine of a function, for an example of its arguments: of one graph, or where branches depend on tensors or
    a Python argument may have several values, of all ways that it can go."""
    form = CallForm.of(function, args, kwargs, dynamic)
    refused: SmeltError | None = None
    if has_choices(form):
        try:
            return _without_fixed(form, flow_machine(form, name, how))
        except SmeltError as error:
            if any(leaf.choices for leaf in form.leaves):
                raise
            refused = error  # it may be exported for the values of the example
    try:
        machine = _of_one_graph(form, name, how)
    except BreaksGraph:
        if refused is not None:
            raise refused from None
        machine = flow_machine(form, name, how)
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
        if note.endswith(_TOO_MANY_STATES):
            warn(f"{machine.name}: {note}")
        name, is_fixed, _ = note.partition(" is fixed at ")
        leaf = next((leaf for leaf in form.leaves if leaf.name == name), None) if is_fixed else None
        if leaf is not None and leaf.is_open:
            raise ExportError(f"{note}; dynamic says that it differs", code="SM060")
        if leaf is not None:
            hint = f"dynamic={{{name!r}: [...]}} lists the values that it may have"
            warn(f"{machine.name}: {note}. The artifact refuses other values; {hint}.")
    return machine


def _of_one_graph(form: CallForm, name: str, how: HowToLower) -> Machine:
    """The machine of a call that is captured as a whole: one state, with a variant for each set of sizes."""
    registers, notes = Registers(form), dict[str, None]()
    built: list[Variant] = []
    numbers: dict[str, tuple[str, int]] = {}  # by the texts of symbols: where the number is, and what it is
    limits: dict[str, tuple[int, int]] = {}  # of those that cannot be just anything: a schedule has an end
    while (found := _uncovered(form, built, numbers, limits)) is not None:
        sizes, supposed = found
        if len(built) == MOST_VARIANTS:
            shown = ", ".join(f"{key} = {size}" for key, size in (sizes | supposed).items())
            raise ExportError(
                f"{MOST_VARIANTS} variants do not cover all sizes: none is for {shown}", hint="give tighter bounds"
            )
        with events.timed("export", f"{name} for {len(built) + 1} sets of sizes" if built else name):
            places = {numbers[text][0]: number for text, number in supposed.items()}
            try:
                call, effects = _captured(form, sizes, places)
            except ExportError as error:
                if not supposed:
                    raise
                text, number = next(iter(supposed.items()))
                low, high = limits.get(text, (SMALLEST, MOST_STEPS))
                limits[text] = (low, number) if number > numbers[text][1] else (number + 1, high)
                notes[f"there is no variant for {text} being {number}: {error.message}"] = None
                continue
            numbers = numbers or _numbers_of(call)
            builder = VariantBuilder(call, effects, registers, how, f"{name}{len(built) or ''}")
            built.append(_lowered(builder, name))
        notes |= dict.fromkeys(effects.notes)
    made, storages = registers.finished()
    variants = [_with_dimensions(form, each) for each in built]
    machine = Machine(
        name, form.tree, registers.arguments, form.dimensions, storages, made,
        (State("entry", tuple(variants)),), tuple(notes),
    )  # fmt: skip
    check_machine(machine)
    if (stop := _first_stop(form, machine)) is not None:
        calls, why = stop
        hint = "export again before that, or keep the number in a tensor"
        warn(f"{name}: the artifact stops after {calls} calls, where {why}, for which it has no code; {hint}.")
    return machine


def _first_stop(form: CallForm, machine: Machine) -> tuple[int, str] | None:
    """After how many calls the numbers of state are such that there is no variant for them, and what they are then. The
    numbers follow from each other as long as nothing but them decides."""
    variants, names = machine.states[0].variants, {}
    values: dict[int, Any] = {}
    for variant in variants:
        for register, _ in variant.numbers:
            kept = machine.registers[register]
            if kept.kind is RegisterKind.STATE and kept.storage is not None:
                data = machine.storages[kept.storage].data[kept.offset : kept.offset + kept.dtype.itemsize]
                values[register], names[register] = data.clone().view(kept.dtype).item(), kept.name
    for calls in range(MOST_STEPS if values else 0):
        for variant in variants:
            bound = [each for each in variant.symbols if each.dim is None and each.register in values]
            known = {each.symbol: values[each.register] for each in bound}
            if _covers(form, variant, form.example_sizes, known):
                break
        else:
            return calls, ", ".join(f"{names[register]} is {value}" for register, value in values.items())
        try:
            values |= {each: _evaluated(new.what, known) for each, new in variant.numbers if each in values}
        except (KeyError, ArithmeticError, ValueError):  # what else decides is not known here
            return None
    return None


def _captured(
    form: CallForm, sizes: Mapping[str, int], supposed: Mapping[str, int]
) -> tuple[DescribedCall, SortedEffects]:
    """The call for these sizes, with numbers that it changes as symbols; those in `supposed` are taken to be so."""
    history = History()
    history.examples |= supposed
    for place, dim in form.open_places(sizes):
        history.mark(place, dim)
    args, kwargs = form.arguments(sizes)
    for _ in range(_ATTEMPTS):
        try:
            call = described_call(form.target, args, kwargs, history)
        except GraphBreakError as stop:
            reason = stop.message.removeprefix("graph break under fullgraph=True: ")
            raise BreaksGraph(f"not exported: {reason}", where=stop.where, hint=stop.hint, code="SM060") from None
        except SkipFrame as stop:
            raise BreaksGraph(f"not exported: {stop}", code="SM060") from None
        if _asserts(call):
            raise BreaksGraph("not exported as one graph: a branch leads to an exception", code="SM060")
        effects = sorted_effects(call)
        if not effects.relied:
            return call, effects
        for given in effects.relied:
            history.mark(given.place)
    changed = effects.relied[0]
    raise ExportError(
        f"{changed.text} is {changed.real} and changes with each call, and the code relies on what it is",
        hint="make a few calls before exporting, so that a counter has left 0 and 1; or keep it in a tensor",
    )


def _asserts(call: DescribedCall) -> bool:
    """Whether a call relies on a branch's going one way, where Python would run the other."""
    nodes = call.traced.graph.nodes if call.traced is not None else ()
    return any(node.target is torch.ops.aten._assert_async.msg for node in nodes)


def _lowered(builder: VariantBuilder, name: str) -> Variant:
    try:
        return builder.build()
    except CannotTrace as refused:
        raise ExportError(f"{name} cannot be exported: {refused.reason}") from refused


# Sizes.


Limits = Mapping[str, tuple[int, int]]
Uncovered = tuple[dict[str, int], dict[str, int]]


def _uncovered(
    form: CallForm, variants: list[Variant], numbers: Mapping[str, tuple[str, int]], limits: Limits
) -> Uncovered | None:
    """Sizes within their bounds, and numbers of state, that no variant is for; None if all that were looked at are."""
    example, now = form.example_sizes, {text: number for text, (_, number) in numbers.items()}
    if not variants:
        return example, {}
    for sizes in _candidates(form.dimensions, example, variants):
        if not any(_covers(form, variant, sizes, now) for variant in variants):
            return sizes, {}
    turning = _turning_points(variants)
    for text in numbers:
        low, high = limits.get(text, (SMALLEST, MOST_STEPS))
        for number in (*range(low, high), *(each for each in turning if low <= each and text not in limits)):
            supposed = now | {text: number}
            if not any(_covers(form, variant, example, supposed) for variant in variants):
                return example, {text: number}
    return None


def _numbers_of(call: DescribedCall) -> dict[str, tuple[str, int]]:
    """Integers of state that guards may be about: where each is, and what it is now."""
    found = {}
    for symbol in call.shape_env.symbols:
        given, what, _ = call.origin_of(symbol)
        if what == "number" and given.slot not in (ARGS, KWARGS):
            found[symbol.text] = (given.place, symbol.example)
    return found


def _candidates(
    dimensions: Sequence[Dimension], example: Mapping[str, int], variants: list[Variant]
) -> Iterator[dict[str, int]]:
    """Sizes to look at: bounds, small ones, powers of two, and round what guards compare with."""
    choices = []
    turning = _turning_points(variants)
    for each in dimensions:
        wanted = {each.least, each.most, example[each.name], *range(9), *turning}
        wanted |= {1 << power for power in range(3, 21)} | {(1 << power) + 1 for power in range(3, 21)}
        inside = sorted(size for size in wanted if each.least <= size <= min(each.most, 1 << 20))
        choices.append([(each.name, size) for size in inside])
    # One differs from the example, then two.
    for count in range(1, min(len(choices), 2) + 1):
        for places in itertools.combinations(range(len(choices)), count):
            for changed in itertools.product(*[choices[place] for place in places]):
                yield dict(example) | dict(changed)
    if len(choices) > 2:
        yield {each.name: max(each.least, 1) for each in dimensions}
        yield {each.name: max(each.least, SMALLEST) for each in dimensions}


def _turning_points(variants: list[Variant]) -> set[int]:
    """Integers that guards compare a single symbol with, and those beside them."""
    found: set[int] = set()
    for variant in variants:
        for check in variant.checks:
            if isinstance(check, SizeCheck):
                constant, factors = 0, []
                for monomial, factor in check.guard.expression.terms.items():
                    if monomial:
                        factors.append(abs(factor))
                    else:
                        constant = abs(factor)
                for factor in factors:
                    point = constant // factor
                    found |= {point - 1, point, point + 1}
    return found


def _covers(form: CallForm, variant: Variant, sizes: Mapping[str, int], numbers: Mapping[str, int]) -> bool:
    values = _symbol_values(form, variant, sizes) | dict(numbers)
    for binding in variant.symbols:
        if binding.symbol in values and not binding.least <= values[binding.symbol] <= binding.most:
            return False
    guards = [check.guard for check in variant.checks if isinstance(check, SizeCheck)]
    known = [guard for guard in guards if all(each.text in values for each in guard.expression.symbols())]
    if not all(guard.holds(lambda symbol: values[symbol.text]) for guard in known):
        return False
    if not all(_holds(check, values) for check in variant.checks if isinstance(check, NumberCheck)):
        return False
    return all(size == sizes[key] for key, size in _static_sizes(form, variant).items())


def _holds(check: NumberCheck, values: Mapping[str, int]) -> bool:
    """Whether a comparison of floats holds; so it is taken to do where it is about others than these."""
    leaves = [*leaves_of(check.left), *leaves_of(check.right)]
    if not all(str(leaf.text) in values for leaf in leaves):
        return True
    left, right = (_evaluated(each.what, values) for each in (check.left, check.right))
    return RELATIONS[check.relation](left, right) == check.holds


def _evaluated(what: Any, values: Mapping[str, int]) -> Any:
    return what.evaluate(lambda leaf: values[str(leaf.text)]) if isinstance(what, Expression | Formula) else what


def _symbol_values(form: CallForm, variant: Variant, sizes: Mapping[str, int]) -> dict[str, int]:
    """The symbols of a variant that are sizes of arguments, for these sizes."""
    dims = _argument_dims(form)
    found = {}
    for binding in variant.symbols:
        if binding.dim is not None and (binding.register, binding.dim) in dims:
            found[binding.symbol] = sizes[dims[binding.register, binding.dim]]
    return found


def _argument_dims(form: CallForm) -> dict[tuple[int, int], str]:
    """Dynamic sizes by the register of the argument and the dimension: registers of arguments come first."""
    found: dict[tuple[int, int], str] = {}
    register = 0
    for leaf in form.leaves:
        if isinstance(leaf.example, torch.Tensor) or leaf.is_open:
            found |= {(register, dim): dimension.name for dim, dimension in leaf.sizes}
            register += 1
    return found


def _static_sizes(form: CallForm, variant: Variant) -> dict[str, int]:
    """Dynamic sizes that a variant is for one value of: 0 or 1."""
    dims, found = _argument_dims(form), dict[str, int]()
    for view in variant.inputs:
        for dim, size in enumerate(view.shape if isinstance(view, RegisterView) else ()):
            if type(size) is int and isinstance(view, RegisterView) and (view.register, dim) in dims:
                found[dims[view.register, dim]] = size
    return found


def _with_dimensions(form: CallForm, variant: Variant) -> Variant:
    """The variant with checks that sizes of one name are equal, and that those it has no symbol for are what it has."""
    bound = {(each.register, each.dim): each.symbol for each in variant.symbols}
    static = _static_sizes(form, variant)
    symbols, checks = list(variant.symbols), dict.fromkeys(variant.checks)
    first: dict[str, str] = {}
    for (register, dim), name in _argument_dims(form).items():
        symbol = bound.get((register, dim))
        if symbol is None:
            symbol = f"{name}@{register}.{dim}"
            fixed = static.get(name)
            limits = (SMALLEST, LARGEST) if fixed is None else (fixed, fixed)
            symbols.append(Binding(symbol, register, dim, *limits))
        other = first.setdefault(name, symbol)
        if other != symbol:
            same = Expression.of(Symbol(symbol, 2)) - Expression.of(Symbol(other, 2))
            checks[SizeCheck(SizeGuard("==", same))] = None
    return replace(variant, symbols=tuple(symbols), checks=tuple(checks))
