"""A whole captured call as data: where its inputs come from, what it returns, and what it changes outside.

    def step(x): self.count += 1; return {"y": x @ self.w}
      inputs   x ← slot 1 …, w ← slot 0, attribute "w"
      result   Container(dict, ("y",), (OutputOf(0),))
      effects  Effect(self.__dict__, "count", before=FromOutside(3), after=Counted(add, (FromOutside(3), Known(1))))

For whoever does not run the call here and now but writes it down. Objects of the program are held as long as this is.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import fx

from smelt.base.fast_dataclass import dataclass
from smelt.capture.model.container_changes import unchanged
from smelt.capture.model.source import Accessor, Source, identity_of
from smelt.capture.model.values import (
    Cell,
    Constant,
    DeferredScalar,
    Deque,
    Instance,
    LazyItem,
    Mapping,
    Number,
    Sequence,
    Set,
    Slots,
    Tensor,
    Value,
    describe,
    stands_for_key,
)
from smelt.capture.replay.reconstruct import Rebuilder
from smelt.ir.graph import Traced
from smelt.symbolic.expressions import Expression, ShapeEnv, Symbol
from smelt.symbolic.symnode import Formula, meaning


@dataclass(frozen=True, slots=True)
class Given:
    """Something from outside: the way to it from the frame's slots or from a fixed object, and what is there now."""

    path: tuple[Accessor, ...]
    text: str
    real: Any
    place: str = ""  # by which `History` knows it

    @property
    def identity(self) -> tuple[Any, ...]:
        """Equal for what is reached by one way."""
        return tuple(identity_of(accessor) for accessor in self.path)

    @property
    def slot(self) -> int | None:
        """The frame's slot that it is in or below; None if it is reached from elsewhere."""
        return self.path[0][1] if self.path[0][0] == "slot" else None

    @property
    def keys(self) -> tuple[Any, ...]:
        """The way below its root: indices, keys, names of attributes."""
        return tuple(accessor[1] for accessor in self.path[1:] if len(accessor) > 1)


@dataclass(frozen=True, slots=True)
class MadeBefore:
    """Tensor number `number` of those that are made before the graph runs, by this call; arguments may be `Given`."""

    number: int
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class OutputOf:
    """Output number `number` of the graph."""

    number: int


@dataclass(frozen=True, slots=True)
class FromOutside:
    """An object from outside, as it was found."""

    value: Given


@dataclass(frozen=True, slots=True)
class FromMade:
    """Number `number` of what is made before the graph runs."""

    number: int


@dataclass(frozen=True, slots=True)
class Known:
    """A value that is always the same."""

    value: Any


@dataclass(frozen=True, slots=True)
class Computed:
    """A number made of sizes and numbers from outside; their `origin` is (source, what, dimension)."""

    what: Expression | Formula


@dataclass(frozen=True, slots=True)
class Counted:
    """A number that Python's `function` makes of others."""

    function: Callable[..., Any]
    operands: tuple["Described", ...]


@dataclass(frozen=True, slots=True)
class ReadFrom:
    """A number of type `kind` that `make` takes out of what the graph computes."""

    kind: type
    make: Callable[..., Any]
    parts: tuple["Described", ...]


@dataclass(frozen=True, slots=True)
class Container:
    """A list, tuple, dict or object that the call makes."""

    kind: type
    keys: tuple[Any, ...]
    items: tuple["Described", ...]


@dataclass(frozen=True, slots=True)
class Opaque:
    """Something else, in words."""

    text: str


Described = OutputOf | FromOutside | FromMade | Known | Computed | Counted | ReadFrom | Container | Opaque


@dataclass(frozen=True, slots=True)
class Effect:
    """`key` of a container from outside (an attribute of `owner`, an item) is another after the call.

    `before` is None if it was not there, `after` if it is gone. `was_read`: whether the call depends on what was there.
    """

    owner: Given
    kind: type
    key: Any
    before: Given | None
    after: Described | None
    was_read: bool


@dataclass(frozen=True, slots=True)
class DescribedCall:
    """All of one call. `inputs` are the graph's, in its order. `traced` is None if there is nothing to compute."""

    traced: Traced | None
    inputs: tuple[Given | MadeBefore, ...]
    result: Described
    effects: tuple[Effect, ...]
    shape_env: ShapeEnv
    checks: tuple[tuple[str, Any, tuple[Any, ...]], ...]  # text, path, check: what is relied on
    deferred: tuple[str, ...]  # what is called once all else is done, in words
    origins: dict[int, Given]  # by the ids of sources that sizes and numbers are read from
    relied_data: tuple[Given | fx.Node, ...]  # tensors whose elements decided something; nodes: made before the graph

    def origin_of(self, leaf: Symbol | Formula) -> tuple[Given, str, int]:
        """Where a symbol or a float is read from: `size` or `stride` of a dimension, or a `number`."""
        source, what, dim = leaf.origin
        return self.origins[id(source)], what, dim


def given_of(source: Source, real: Any = None) -> Given:
    """Where a source leads from, and what is there."""
    path: list[Accessor] = []
    place: Source | None = source
    while place is not None:
        path.append(place.accessor)
        place = place.parent
    return Given(tuple(reversed(path)), source.text, _real(source) if real is None else real, source.place)


def _real(source: Source) -> Any:
    value = source.value
    if isinstance(value, Number):
        return value.known
    if isinstance(value, Tensor):
        return value.real
    return getattr(value, "value", None)


class Describer:
    """Values as data, once the graph's outputs are numbered."""

    def __init__(self, build: Rebuilder) -> None:
        self._build = build
        self._open: set[int] = set()

    def described(self, value: Any) -> Described:
        """What a value is."""
        if isinstance(value, LazyItem):
            return FromOutside(given_of(value.source, value.value))
        if id(value) in self._open:
            return Opaque("a structure that contains itself")
        self._open.add(id(value))
        try:
            return self._of(value)
        finally:
            self._open.discard(id(value))

    def _of(self, value: Value) -> Described:
        if isinstance(value, Number) and value.symbolic is not None:
            what = meaning(value.symbolic)
            return Computed(what) if isinstance(what, Expression | Formula) else Known(value.value)
        if isinstance(value, Number) and not value.specialized:
            if value.source is not None:
                return FromOutside(given_of(value.source))
            function, *operands = value.origin_call or (None,)
            return Counted(function, tuple(map(self.described, operands)))
        if isinstance(value, Constant):
            return Known(value.value)
        if value.source is not None:
            return FromOutside(given_of(value.source))
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, DeferredScalar):
            return ReadFrom(value.kind, value.make, tuple(map(self.described, value.parts)))
        return self._container(value)

    def _tensor(self, value: Tensor) -> Described:
        kind, which = self._build.place_of(value)
        return FromMade(which) if kind == "preallocated" else OutputOf(which)

    def _container(self, value: Value) -> Described:
        if isinstance(value, Sequence | Deque):
            return Container(value.kind, (), tuple(map(self.described, value.raw_items)))
        if isinstance(value, Mapping) and value.owner is None and not any(map(stands_for_key, value.items)):
            return Container(value.kind, tuple(value.items), tuple(map(self.described, value.items.values())))
        if isinstance(value, Instance) and (value.contents is None or isinstance(value.contents, Mapping)):
            held = value.contents.items if isinstance(value.contents, Mapping) else value.attributes
            return Container(value.kind, tuple(held), tuple(map(self.described, held.values())))
        return Opaque(describe(value))

    def effects(self, written: Iterable[Any]) -> Iterator[Effect]:
        """What differs from before in containers from outside."""
        for value in written:
            if isinstance(value, Mapping):
                yield from self._mapping_effects(value)
            elif isinstance(value, Sequence | Deque):
                yield from self._sequence_effects(value)
            elif isinstance(value, Cell) and value.source is not None:
                owner = given_of(value.source, value.real)
                yield Effect(owner, type(value.real), "cell_contents", None, self.described(value.contents), True)
            elif isinstance(value, Set) and value.source is not None and value.original != frozenset(value.items):
                yield Effect(given_of(value.source), set, "items", None, Opaque("another set"), True)

    def _mapping_effects(self, value: Mapping) -> Iterator[Effect]:
        source = value.holder.source if isinstance(value, Slots) else value.source
        if source is None:
            return
        original, owner = value.original or {}, given_of(source, getattr(getattr(value, "holder", None), "value", None))
        for key in [*original, *(key for key in value.items if key not in original)]:
            yield from self._changed(owner, value.kind, key, original.get(key), value.items.get(key))

    def _sequence_effects(self, value: Sequence | Deque) -> Iterator[Effect]:
        if value.source is None:
            return
        owner, items = given_of(value.source), itertools.zip_longest(value.original or (), value.raw_items)
        for place, (before, after) in enumerate(items):
            yield from self._changed(owner, value.kind, place, before, after)

    def _changed(self, owner: Given, kind: type, key: Any, before: Any, after: Any) -> Iterator[Effect]:
        if before is None or after is None or not unchanged(before, after):
            original = None if before is None else _given(before)
            yield Effect(
                owner, kind, key, original, None if after is None else self.described(after), _was_read(before)
            )


def _given(item: Any) -> Given | None:
    if isinstance(item, LazyItem):
        return given_of(item.source, item.value)
    source = getattr(item, "source", None)
    return None if source is None else given_of(source)


def _was_read(item: Any) -> bool:
    """Whether something is relied on of what an item was."""
    source: Source | None = getattr(item, "source", None)
    return source is not None and (source.collected or bool(source.checks) or bool(source.children))


def described_inputs(
    nodes: Iterable[fx.Node], sources: dict[fx.Node, Source], preallocated: dict[fx.Node, Any]
) -> tuple[Given | MadeBefore, ...]:
    """Where each input of a graph comes from."""
    inputs: list[Given | MadeBefore] = []
    for node in nodes:
        if node in preallocated:
            call, number = preallocated[node], list(preallocated).index(node)
            positional = [given_of(each) if isinstance(each, Source) else each for each in call.args]
            named = {name: given_of(each) if isinstance(each, Source) else each for name, each in call.kwargs.items()}
            inputs.append(MadeBefore(number, call.function, tuple(positional), named))
        else:
            inputs.append(given_of(sources[node]))
    return tuple(inputs)


def origins_of(roots: Iterable[Source]) -> dict[int, Given]:
    """Those below some sources whose values are taken, by their ids."""
    origins, pending = {}, list(roots)
    while pending:
        source = pending.pop()
        if source.collected:
            origins[id(source)] = given_of(source)
        pending += source.children.values()
    return origins


def checks_below(roots: Iterable[Source]) -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """What is relied on of these sources and of all that is read from them: text, path, check."""
    pending: list[tuple[Source, tuple[Accessor, ...]]] = [(root, (root.accessor,)) for root in roots]
    while pending:
        source, path = pending.pop()
        for check in source.checks.values():
            yield source.text, path, check
        pending += [(child, (*path, child.accessor)) for child in source.children.values()]
