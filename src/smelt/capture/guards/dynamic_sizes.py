"""Sizes and numbers that differ from call to call: which of them become symbols, and what guards must say of them.

Everything is compiled for the sizes it is called with at first. A size that is another at the next capture of the same
code is compiled as a symbol from then on, so that code for `x.shape[0] == 32` and code for any `x.shape[0]` is all that
is ever made; 0 and 1 stay apart. `mark_dynamic` and `dynamic=True` skip the first step, `dynamic=False` the second.
Sizes of state that grows from call to call are symbols from the first call on (`driver/growing_state.py`).

    x: f32[7, 4], last time f32[5, 4]   →   fake tensor f32[s0, 4], guarded as f32[any, 4] with x.shape[0] >= 2
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import field
from typing import TYPE_CHECKING, Any

import torch

from smelt.base.errors import warn
from smelt.base.fast_dataclass import dataclass
from smelt.capture.model.marks import DYNAMIC, OPEN_SIZES
from smelt.capture.model.source import Source
from smelt.ir.tensorspec import TensorSpec
from smelt.symbolic.expressions import FROM_DATA, SMALLEST, DivModMinMax, Expression, ShapeEnv, SizeGuard, Symbol
from smelt.symbolic.postfix import definition_code, encode, guard_code
from smelt.symbolic.symnode import Formula, as_number, is_symbolic, meaning

if TYPE_CHECKING:
    from smelt._native import SizeFacts


class History:
    """What the captures of one piece of code have seen, and what changed between them."""

    def __init__(self) -> None:
        self._seen: dict[str, Any] = {}
        self._changing: set[tuple[str, int]] = set()
        self._state: set[str] = set()  # places of tensors that calls leave behind with other sizes
        self._objects: dict[str, weakref.ref[Any]] = {}  # by place: what was last guarded to be this very object
        self._replaced: Counter[str] = Counter()
        self.suppose: Callable[[float, Source], tuple[float, bool]] | None = None  # see `Sizes.number`

    def mark(self, place: str, dim: int = 0) -> None:
        """A size of a tensor, or a number, is known to change, whatever was seen."""
        self._changing.add((place, dim))

    def mark_state(self, place: str, dim: int) -> None:
        """A size of a tensor that calls leave behind differs from call to call."""
        self.mark(place, dim)
        self._state.add(place)

    def is_state(self, place: str) -> bool:
        """Whether calls leave a tensor of other sizes behind at this place."""
        return place in self._state

    @property
    def has_state(self) -> bool:
        """Whether calls leave tensors of other sizes behind."""
        return bool(self._state)

    def seen(self) -> dict[str, Any]:
        """What the last capture saw, for another process."""
        return dict(self._seen)

    def restore(self, seen: dict[str, Any]) -> None:
        """What a capture of another process saw, as if it had been of this one."""
        self._seen.update(seen)

    def sizes(self, text: str, shape: tuple[int, ...]) -> frozenset[int]:
        """The dimensions that are known to change, this time included."""
        before = self._seen.get(text)
        if isinstance(before, tuple) and len(before) == len(shape):
            self._changing |= {(text, dim) for dim, size in enumerate(shape) if before[dim] != size}
        self._seen[text] = shape
        return frozenset(dim for dim in range(len(shape)) if (text, dim) in self._changing)

    def replaced(self, place: str, real: Any) -> int:
        """How often another object was found at this place than the time before."""
        reference = self._objects.get(place)
        if type(real).__weakrefoffset__ and (reference is None or reference() is not real):
            self._replaced[place] += reference is not None
            self._objects[place] = weakref.ref(real)
        return self._replaced[place]

    def strides(self, text: str, stride: tuple[int, ...]) -> frozenset[int]:
        """The dimensions whose strides are known to change."""
        return self.sizes(f"{text}.stride()", stride)

    def number(self, text: str, number: float) -> bool:
        """Whether the number is known to change."""
        before = self._seen.get(text)
        if type(before) is type(number) and repr(before) != repr(number):
            self._changing.add((text, 0))
        self._seen[text] = number
        return (text, 0) in self._changing


@dataclass(frozen=True, slots=True)
class Growth:
    """How outside state grows in one call: the dimensions in which its tensors differ at the next call, by their
    places, those of numbers too, and the sizes by which tensors grow, which are sizes of inputs. `capacities`: sizes of
    new buffers, which are numbers of the program."""

    places: dict[str, int] = field(default_factory=dict)
    sizes: frozenset[int] = frozenset()
    capacities: frozenset[int] = frozenset()

    def dimensions(self, place: str, shape: tuple[int, ...]) -> set[int]:
        """The dimensions of a tensor that become symbols."""
        if place in self.places:
            return {self.places[place]}
        return {dim for dim, size in enumerate(shape) if size in self.sizes}


class Sizes:
    """The symbols of one capture. `dynamic` is the option of `smelt.compile`; `history` what is known of the code."""

    def __init__(self, dynamic: bool | None, history: History) -> None:
        self.shape_env = ShapeEnv()
        self._dynamic = dynamic
        self.history = history
        self._strides: list[tuple[Symbol, Expression]] = []
        self._marked: list[Symbol] = []
        self.open_symbols: set[Symbol] = set()  # what differs from state to state of an exported function
        self._open_numbers: dict[Source, Symbol] = {}
        self.growth = Growth()
        self._grown_places: list[tuple[str, int]] = []
        self._static_sizes: set[int] = set()  # of tensors that are no part of a module

    def follows(self, growth: "Growth") -> bool:
        """Whether inputs have sizes by which outside state grows, and these are no symbols yet."""
        return not growth.sizes.isdisjoint(self._static_sizes)

    def mark_grown(self) -> None:
        """The sizes that are symbols because outside state grows by them are known to change."""
        for place, dim in self._grown_places:
            self.history.mark(place, dim)

    def layout(self, tensor: torch.Tensor, source: Source) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Shape and strides of a tensor from outside, symbols where sizes differ from call to call."""
        shape, stride = tuple(tensor.shape), tuple(tensor.stride())
        changing = self._changing(tensor, shape, source)
        moving = self.history.strides(source.place, stride) if self._dynamic is None else frozenset()
        if (self._dynamic and changing) or (self._grows_state and not _belongs_to_module(source)):
            moving = frozenset(range(len(stride)))
        if not changing and not moving:
            return shape, stride
        source.collect()
        symbols = {
            dim: self.shape_env.symbol(f"{source.text}.shape[{dim}]", shape[dim], (source, "size", dim))
            for dim in sorted(changing)
        }
        self._marked += [symbols[dim] for dim in tensor.__dict__.get(DYNAMIC, ()) if dim in symbols]
        self.open_symbols |= {symbols[dim] for dim in tensor.__dict__.get(OPEN_SIZES, ()) if dim in symbols}
        sizes = [Expression.of(symbols.get(dim, size)) for dim, size in enumerate(shape)]
        strides = self._steps(sizes, stride, moving, source)
        return tuple(self._number(each) for each in sizes), tuple(self._number(each) for each in strides)

    @property
    def _grows_state(self) -> bool:
        """Whether the code appends to outside state: its other inputs may be parts of longer tensors."""
        return self._dynamic is None and (bool(self.growth.sizes) or self.history.has_state)

    def _changing(self, tensor: torch.Tensor, shape: tuple[int, ...], source: Source) -> set[int]:
        marked: Iterable[int] = tensor.__dict__.get(DYNAMIC, ())
        changing = set(marked) if self._dynamic is not False else set()
        if self._dynamic is None:
            changing |= self.history.sizes(source.place, shape)
        elif self._dynamic and type(tensor) is torch.Tensor and not _belongs_to_module(source):
            changing |= set(range(len(shape)))
        if self._dynamic is None and not _belongs_to_module(source):
            grown = self.growth.dimensions(source.place, shape)
            self._grown_places += [(source.place, dim) for dim in sorted(grown)]
            changing |= grown
            self._static_sizes |= {size for dim, size in enumerate(shape) if dim not in changing}
        return {dim for dim in changing if dim < len(shape) and shape[dim] >= SMALLEST}

    def number(self, number: float, source: Source) -> tuple[float, Any]:
        """A number from outside, and as a symbol if it differs from call to call, else None.

        Where nothing is run, `History.suppose` may take it for another number of its type, and say that it differs.
        """
        differs = False
        if self.history.suppose is not None:
            number, differs = self.history.suppose(number, source)
        return number, self._symbolic(number, source, differs)

    def _symbolic(self, number: float, source: Source, differs: bool) -> Any:
        if self._dynamic is None:
            changes = self.history.number(source.place, number) or source.place in self.growth.places
            if number in self.growth.capacities and type(number) is int and not _belongs_to_module(source):
                changes = True
        else:
            changes = self._dynamic and type(number) is int and not _belongs_to_module(source)
        if type(number) is float and self._dynamic is not False and _is_learning_rate(source):
            changes = True
        if not (changes or differs) or (type(number) is int and not SMALLEST <= number < 2**62):
            return None
        source.collect()
        origin = (source, "number", 0)
        if type(number) is int:
            return self._number(Expression.of(self.shape_env.symbol(source.text, number, origin)))
        return as_number(self.shape_env, Formula(None, (), number, source.text, origin))

    def open_number(self, source: Source, example: int) -> Any:
        """An integer that an `OpenNumber` stands for, as a symbol."""
        if source not in self._open_numbers:
            symbol = self.shape_env.symbol(source.text, example, (source.collect(), "number", 0))
            self._open_numbers[source] = symbol
            self.open_symbols.add(symbol)
        return self._number(Expression.of(self._open_numbers[source]))

    def _number(self, what: Expression) -> Any:
        return as_number(self.shape_env, what)

    def _steps(
        self, sizes: list[Expression], stride: tuple[int, ...], moving: frozenset[int], source: Source
    ) -> list[Expression]:
        """Strides in terms of the sizes they are products of; of the others, those that change are symbols.

        State that grows may be cropped, which yields a view of a longer tensor: its strides over the size that grows
        are symbols too, and those of dimensions of size one, which mean nothing."""
        strides: list[Expression | None] = [None] * len(stride)
        is_state = self._dynamic is None and self.history.is_state(source.place)
        order = sorted(range(len(stride)), key=lambda dim: (stride[dim], -dim))
        for dim in order:
            inner = [other for other in order if strides[other] is not None]
            inner.sort(key=lambda other: abs(other - dim - 1))  # the next dimension first: row-major order
            steps = [(strides[other] * sizes[other], sizes[other]) for other in inner]  # type: ignore[operator]
            steps = [(step, size) for step, size in steps if self.shape_env.example(step) == stride[dim]]
            text, origin = f"{source.text}.stride({dim})", (source, "stride", dim)
            step, size = next(((step, size) for step, size in steps if step.constant is None), (None, None))
            is_unused = is_state and sizes[dim].constant == 1
            may_be_cropped = is_state and size is not None and size.constant is None
            if step is not None and not may_be_cropped:
                self._strides.append((self.shape_env.reading(text, stride[dim], origin), step))
            elif (may_be_cropped or is_unused or (dim in moving and not steps)) and stride[dim] >= SMALLEST:
                step = Expression.of(self.shape_env.symbol(text, stride[dim], origin))
            strides[dim] = step if step is not None else Expression.of(stride[dim])
        return [each for each in strides if each is not None]

    def equate(self, one: TensorSpec, other: TensorSpec) -> None:
        """Two tensors from outside turned out to be one: its sizes have two names."""
        pairs = zip((*one.shape, *one.stride), (*other.shape, *other.stride), strict=True)
        for pair in pairs:
            left, right = (Expression.of(meaning(size)) for size in pair)
            self.shape_env.guard("==", left, right)

    def computed(self) -> "list[tuple[Callable[..., Any], tuple[int, ...]]]":
        """Functions that must not raise, and which of the collected values each takes."""
        functions = []
        for formula in self.shape_env.computed:
            if any(isinstance(leaf, Symbol) and leaf.origin is FROM_DATA for leaf in formula.leaves()):
                continue  # checked where they are known: what may raise is computed in the graph
            compute, origins = computed_from(formula)
            readers = [read_size(origin) for origin in origins]
            functions.append((_read_first(compute, readers), tuple(source.index for source, _, _ in origins)))
        return functions

    def guard_fixed_floats(self) -> None:
        """Floats that were relied on are guarded where they come from."""
        for formula in self.shape_env.fixed:
            formula.origin[0].check(("equals", formula.example))

    def facts(self) -> "SizeFacts | None":
        """What was decided about sizes, for the guards; their sources are numbered by now. Nothing may follow."""
        self.shape_env.closed = True
        if not self.shape_env.symbols:
            return None
        for symbol in self._marked:
            specialized = self.shape_env.simplest(Expression.of(symbol)).constant
            if specialized is not None:
                text = f"SM013: {symbol.text} is marked dynamic, but the code relies on its being {specialized}"
                warn(text)
        one = Expression.of(1)
        facts = [SizeGuard(">", Expression.of(symbol) - one) for symbol in self.shape_env.symbols]
        facts += [SizeGuard("==", Expression.of(stride) - step) for stride, step in self._strides]
        return _NumberedAtoms(list(filter(_is_known_before, [*facts, *self.shape_env.guards]))).built()


def _is_known_before(guard: SizeGuard) -> bool:
    """Whether a guard is about sizes of inputs alone; of others the graph asks itself."""
    return all(symbol.origin is not FROM_DATA for symbol in guard.expression.symbols())


def _belongs_to_module(source: Source | None) -> bool:
    """Whether something is part of a module: its parameters, buffers and settings are compiled as they are."""
    while source is not None:
        value = getattr(source.value, "value", None)
        if isinstance(value, torch.nn.Module) or source.accessor[0] in ("value", "globals", "closure"):
            return True
        source = source.parent
    return False


def _is_learning_rate(source: Source) -> bool:
    """Whether a number is what schedulers change from step to step."""
    place, key = source.parent, source.accessor == ("key", "lr")
    while key and place is not None:
        if isinstance(getattr(place.value, "value", None), torch.optim.Optimizer):
            return True
        place = place.parent
    return False


def guarded(sizes: tuple[Any, ...]) -> tuple[int | None, ...]:
    """Sizes for a tensor's guard: None where a symbol stands."""
    return tuple(None if is_symbolic(size) else size for size in sizes)


class _NumberedAtoms:
    """Facts in the form guards take: atoms numbered, readings first, definitions after what they are made of."""

    def __init__(self, facts: list[SizeGuard]) -> None:
        self._facts = facts
        self._readings: dict[Symbol, int] = {}
        self._definitions: dict[DivModMinMax, None] = {}
        for fact in facts:
            self._meet(fact.expression)

    def _meet(self, expression: Expression) -> None:
        for atom in expression.atoms():
            if isinstance(atom, Symbol):
                self._readings.setdefault(atom, len(self._readings))
            elif atom not in self._definitions:
                self._meet(atom.left)
                self._meet(atom.right)
                self._definitions.setdefault(atom)

    def built(self) -> "SizeFacts":
        readings = []
        for symbol in self._readings:
            source, what, dim = symbol.origin
            readings.append((source.index, what, dim, symbol.text))
        place = {atom: number for number, atom in enumerate((*self._readings, *self._definitions))}.__getitem__
        definitions = (encode(definition_code(atom, place)) for atom in self._definitions)
        facts = ((encode(guard_code(fact, place)), fact_text(fact)) for fact in self._facts)
        return tuple(readings), tuple(definitions), tuple(facts)


def fact_text(fact: SizeGuard) -> str:
    """A fact as one would write it: `x.shape[0] == y.shape[0]` rather than a difference compared with zero."""
    positive = Expression({monomial: factor for monomial, factor in fact.expression.terms.items() if factor > 0})
    negative = positive - fact.expression
    return f"{positive} {fact.relation} {negative}"


def _read_first(compute: Callable[..., Any], readers: list[Any]) -> Callable[..., Any]:
    return lambda *holders: compute(*[read(holder) for read, holder in zip(readers, holders, strict=True)])


def computed_from(what: Expression | Formula) -> tuple[Callable[..., Any], list[tuple[Source, str, int]]]:
    """A number as a function of where its symbols come from, and those places."""
    unordered: set[Any] = what.symbols() if isinstance(what, Expression) else what.leaves()
    leaves = sorted(unordered, key=lambda leaf: str(leaf.text))
    origins = [leaf.origin for leaf in leaves]

    def compute(*values: Any) -> Any:
        by_leaf = dict(zip(leaves, values, strict=True))
        return what.evaluate(by_leaf.__getitem__)

    return compute, origins


def read_size(origin: tuple[Source, str, int]) -> Any:
    """A function that takes a number out of what stands at its source."""
    _, what, dim = origin
    if what == "size":
        return lambda tensor: tensor.shape[dim]
    if what == "stride":
        return lambda tensor: tensor.stride(dim)
    return lambda number: number
