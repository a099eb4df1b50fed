"""For which sizes and numbers of state an artifact has code: what its variants cover now, and call after call.

    Following(form, sizes, variants, registers).first_uncovered()   →   {5: 10}: no variant is for it

Numbers of state are given by their registers.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from smelt.deploy.call_form import CallForm
from smelt.deploy.state.registers import Registers
from smelt.ir.artifact.machine import Dimension, NumberCheck, RegisterView, SizeCheck, Variant
from smelt.symbolic.expressions import RELATIONS, SMALLEST, Expression
from smelt.symbolic.symnode import Formula

MOST_STEPS = 4096
"""How many calls are followed one by one; later ones only where a number passes one that code compares it with."""

Numbers = dict[int, Any]


def first_numbers(registers: Registers) -> Numbers:
    """The numbers that are kept as the first call finds them."""
    return {register: value.item() for register, value in registers.numbers()}


class Following:
    """The numbers of state from call to call, as far as nothing but numbers of state decides them."""

    def __init__(
        self, form: CallForm, sizes: Mapping[str, int], variants: list[Variant], registers: Registers
    ) -> None:
        self._form, self._sizes, self._variants, self._registers = form, sizes, variants, registers
        self._values: Numbers = {}
        self._rounds = 0
        self.calls = 0

    def first_uncovered(self) -> Numbers | None:
        """The next numbers that no variant is for; None if there are none."""
        while self._rounds < 2 * MOST_STEPS:
            variant = self._covering()
            if variant is None:
                return {each: value for each, value in self._values.items() if self._registers.changes(each)}
            self._rounds += 1
            if self._rounds > MOST_STEPS and not self._leap(variant):
                return None
            if not self._step(variant):
                return None
        return None

    def is_covered(self) -> bool:
        return self._covering() is not None

    def _covering(self) -> Variant | None:
        self._values = first_numbers(self._registers) | self._values  # variants may have been added
        return next((each for each in self._variants if covers(self._form, each, self._sizes, self._values)), None)

    def _known(self, variant: Variant) -> dict[str, Any]:
        return {
            each.symbol: self._values[each.register]
            for each in variant.symbols
            if each.dim is None and each.register in self._values
        }

    def _step(self, variant: Variant) -> bool:
        """One call. False where something else decides, or nothing changes any more."""
        known = self._known(variant)
        try:
            new = {each: _evaluated(what.what, known) for each, what in variant.numbers if each in self._values}
        except (KeyError, ArithmeticError, ValueError):
            return False
        after = self._values | new
        changed, self._values = after != self._values, after
        self.calls += 1
        return changed

    def _leap(self, variant: Variant) -> bool:
        """Go on to just before a counter passes a number that code compares one with. False if none will."""
        steps, points = dict[int, int](), turning_points(self._variants)
        driving = _driving(self._variants)
        by_register = {each.register: each.symbol for each in variant.symbols if each.dim is None}
        for register, new in variant.numbers:
            if register not in driving:
                continue
            what = new.what
            if not isinstance(what, Expression) or register not in by_register:
                return True  # no counter: one call at a time
            symbol = next((each for each in what.symbols() if each.text == by_register[register]), None)
            step = None if symbol is None else (what - Expression.of(symbol)).constant
            if step is None or step < 0:
                return True
            steps[register] = step
        ahead = [
            (point - self._values[register]) // step
            for register, step in steps.items()
            for point in points
            if step and point - self._values[register] >= step
        ]
        if not ahead:
            return False
        count = max(min(ahead) - 1, 0)
        self._values |= {register: self._values[register] + count * step for register, step in steps.items()}
        self.calls += count
        return True


def _driving(variants: Sequence[Variant]) -> set[int]:
    """Registers of numbers that decide which variant runs, directly or by way of others."""
    driving: set[int] = set()
    for variant in variants:
        by_symbol = {each.symbol: each.register for each in variant.symbols if each.dim is None}
        for check in variant.checks:
            if isinstance(check, SizeCheck):
                driving |= {by_symbol[each.text] for each in check.guard.expression.symbols() if each.text in by_symbol}
            elif isinstance(check, NumberCheck):
                leaves = [*check.left.leaves, *check.right.leaves]
                driving |= {by_symbol[str(each.text)] for each in leaves if str(each.text) in by_symbol}
        driving |= {each.register for each in variant.symbols if each.dim is None and each.least == each.most}
    before = -1
    while len(driving) != before:
        before = len(driving)
        for variant in variants:
            by_symbol = {each.symbol: each.register for each in variant.symbols if each.dim is None}
            for register, new in variant.numbers:
                if register in driving:
                    driving |= {by_symbol[str(each.text)] for each in new.leaves if str(each.text) in by_symbol}
    return driving


def candidate_sizes(
    dimensions: Sequence[Dimension], example: Mapping[str, int], turning: Callable[[], set[int]]
) -> Iterator[dict[str, int]]:
    """Sizes to look at: bounds, small ones, powers of two, and round what guards compare with."""
    for count in range(1, min(len(dimensions), 2) + 1):  # one differs from the example, then two
        for chosen in itertools.combinations(dimensions, count):
            for changed in itertools.product(*[_sizes_of(each, example, turning()) for each in chosen]):
                yield dict(example) | {each.name: size for each, size in zip(chosen, changed, strict=True)}
    if len(dimensions) > 2:
        yield {each.name: max(each.least, 1) for each in dimensions}
        yield {each.name: max(each.least, SMALLEST) for each in dimensions}


def every_size(
    dimensions: Sequence[Dimension], example: Mapping[str, int], variants: Sequence[Variant]
) -> Iterator[dict[str, int]]:
    """Each size by itself, if variants are for one size alone: those that were looked at say nothing of others then."""
    checks = [check for variant in variants for check in variant.checks]
    if not any(isinstance(check, SizeCheck) and check.guard.relation == "==" for check in checks):
        return
    for each in dimensions:
        for size in range(each.least, min(each.most, each.least + MOST_STEPS) + 1):
            yield dict(example) | {each.name: size}


def _sizes_of(dimension: Dimension, example: Mapping[str, int], turning: set[int]) -> list[int]:
    wanted = {dimension.least, dimension.most, example[dimension.name], *range(9), *turning}
    wanted |= {1 << power for power in range(3, 21)} | {(1 << power) + 1 for power in range(3, 21)}
    return sorted(size for size in wanted if dimension.least <= size <= min(dimension.most, 1 << 20))


def turning_points(variants: Sequence[Variant]) -> set[int]:
    """Integers that checks compare a single symbol with, and those beside them."""
    points: set[int] = set()
    for variant in variants:
        for check in variant.checks:
            if isinstance(check, SizeCheck):
                points |= _near(check.guard.expression, {0})
            elif isinstance(check, NumberCheck):
                sides = check.left.what, check.right.what
                constants = {0, *(round(each) for side in sides for each in _parts(side) if _is_integral(each))}
                for expression in (each for side in sides for each in _parts(side) if isinstance(each, Expression)):
                    points |= _near(expression, constants)
    return points


def _parts(what: Any) -> Iterator[Any]:
    """Constants and expressions that a formula is made of."""
    if isinstance(what, Formula):
        for each in what.operands:
            yield from _parts(each)
    else:
        yield what


def _is_integral(what: Any) -> bool:
    return type(what) is int or (type(what) is float and what.is_integer())


def _near(expression: Expression, constants: set[int]) -> set[int]:
    """Where a multiple of one symbol and a constant is one of these constants, and beside."""
    rest = expression.terms.get((), 0)
    factors = [factor for monomial, factor in expression.terms.items() if monomial]
    points = {abs(constant - rest) // abs(factor) for factor in factors for constant in constants}
    return {point + by for point in points for by in (-1, 0, 1)}


def covers(form: CallForm, variant: Variant, sizes: Mapping[str, int], numbers: Numbers) -> bool:
    """Whether a variant is for these sizes, and for these numbers as far as they are known."""
    values: dict[str, Any] = _symbol_values(form, variant, sizes)
    values |= {
        each.symbol: numbers[each.register] for each in variant.symbols if each.dim is None and each.register in numbers
    }
    for binding in variant.symbols:
        value = values.get(binding.symbol)
        if type(value) is int and not binding.least <= value <= binding.most:
            return False
    guards = [check.guard for check in variant.checks if isinstance(check, SizeCheck)]
    known = [guard for guard in guards if all(each.text in values for each in guard.expression.symbols())]
    if not all(guard.holds(lambda symbol: values[symbol.text]) for guard in known):
        return False
    if not all(_holds(check, values) for check in variant.checks if isinstance(check, NumberCheck)):
        return False
    return all(size == sizes[key] for key, size in static_sizes(form, variant).items())


def _holds(check: NumberCheck, values: Mapping[str, Any]) -> bool:
    """Whether a comparison of floats holds; so it is taken to do where it is about others than these."""
    leaves = [*check.left.leaves, *check.right.leaves]
    if not all(str(leaf.text) in values for leaf in leaves):
        return True
    left, right = (_evaluated(each.what, values) for each in (check.left, check.right))
    return RELATIONS[check.relation](left, right) == check.holds


def _evaluated(what: Any, values: Mapping[str, Any]) -> Any:
    return what.evaluate(lambda leaf: values[str(leaf.text)]) if isinstance(what, Expression | Formula) else what


def _symbol_values(form: CallForm, variant: Variant, sizes: Mapping[str, int]) -> dict[str, int]:
    """The symbols of a variant that are sizes of arguments, for these sizes."""
    dims = argument_dims(form)
    values = {}
    for binding in variant.symbols:
        if binding.dim is not None and (binding.register, binding.dim) in dims:
            values[binding.symbol] = sizes[dims[binding.register, binding.dim]]
    return values


def argument_dims(form: CallForm) -> dict[tuple[int, int], str]:
    """Dynamic sizes by the register of the argument and the dimension: registers of arguments come first."""
    names: dict[tuple[int, int], str] = {}
    register = 0
    for leaf in form.leaves:
        if isinstance(leaf.example, torch.Tensor) or leaf.is_open:
            names |= {(register, dim): dimension.name for dim, dimension in leaf.sizes}
            register += 1
    return names


def static_sizes(form: CallForm, variant: Variant) -> dict[str, int]:
    """Dynamic sizes that a variant is for one value of: 0 or 1."""
    dims, sizes = argument_dims(form), dict[str, int]()
    for view in variant.inputs:
        for dim, size in enumerate(view.shape if isinstance(view, RegisterView) else ()):
            if type(size) is int and isinstance(view, RegisterView) and (view.register, dim) in dims:
                sizes[dims[view.register, dim]] = size
    return sizes
