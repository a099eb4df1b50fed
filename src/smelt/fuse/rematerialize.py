"""Recomputes values that a backward inside the graph reads, where that takes less memory than keeping them.

    h = mm(x, w); s = silu(h); y = s * u; z = mm(y, v) … forward … | backward … reads h, s, u, y
    →  h and u are kept; s' = silu(h) and y' = s' * u are computed before their first reader in the backward

The graph of a whole training step contains its backward, and memory use peaks where the backward begins. Only
element-wise values are recomputed, and only from values that are kept anyway or are smaller. Each new value comes
`after` the library call or product before its first reader; where the backward begins, after a reduction or a number.
Otherwise fusion would compute it with the old one, and store it.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from torch import fx

from smelt.base import events
from smelt.base.rewrite_budget import RewriteBudget
from smelt.fuse.lowering.values import Call, FusionKind, FusionRead, FusionValue, Lowered, Ref, references
from smelt.ir.nodes.backward_node import backward_of
from smelt.symbolic.symsize import hint

_CHAIN = 16  # no more values are recomputed for the sake of one


def rematerialize(lowered: Lowered, graph: fx.Graph, budget: RewriteBudget) -> Lowered:
    """Rewrite what was read from `graph`, for each backward inside."""
    beginnings = _beginnings(lowered, graph)
    for name in reversed(beginnings):
        start = next(item.id for item in lowered.items if item.name == name)
        _Rematerializer(lowered, start).run(budget)
    lowered.has_backward = bool(beginnings)
    return lowered


def _beginnings(lowered: Lowered, graph: fx.Graph) -> list[str]:
    """The first item of each backward."""
    known = {item.name for item in lowered.items}
    names: dict[int, str] = {}
    for node in graph.nodes:
        number = backward_of(node)
        if number is not None and node.name in known:
            names.setdefault(number, node.name)
    return list(names.values())


class _Rematerializer:
    """One backward, which begins with item number `start`."""

    def __init__(self, lowered: Lowered, start: int) -> None:
        self.lowered, self.start = lowered, start
        self.calls: dict[FusionValue, list[Call]] = {}
        for item in lowered.items:
            if isinstance(item, Call):
                for value in item.reads:
                    self.calls.setdefault(value, []).append(item)
        self.returned = {ref.value for ref in references(lowered.returns)}
        self.kept = {value for value in lowered.values if self._is_forward(value) and self._backward_readers(value)}
        self.recomputed: set[FusionValue] = set()

    def run(self, budget: RewriteBudget) -> None:
        for value in sorted(self.kept, key=lambda value: value.id, reverse=True):
            if value in self.returned or not _is_idempotent(value):
                continue
            chain, new = self._behind(value)
            if sum(map(_bytes, new)) < _bytes(value) and len(chain) <= _CHAIN and budget.take(value):
                self.recomputed |= {value, *chain}
                self.kept |= new
                if events.wanted("fusion"):
                    events.emit("fusion", f"{value.name} is recomputed in the backward, which saves memory")
        held = self._held()
        self._sink(held)
        self._hold_back(held)
        self._rewrite()

    def _is_forward(self, item: FusionValue | Call) -> bool:
        return item.id < self.start and not (isinstance(item, FusionValue) and item.kind is FusionKind.LEAF)

    def _backward_readers(self, value: FusionValue) -> list[FusionValue | Call]:
        return [reader for reader in (*value.users, *self.calls.get(value, ())) if reader.id >= self.start]

    def _behind(self, value: FusionValue) -> tuple[set[FusionValue], set[FusionValue]]:
        """What else would be recomputed for a value, and what else would be kept."""
        chain: set[FusionValue] = set()
        new: set[FusionValue] = set()
        waiting = [reading.value for reading in value.readings]
        while waiting and len(chain) <= _CHAIN:
            source = waiting.pop()
            if source.kind is FusionKind.LEAF or source in self.kept or source in self.returned:
                continue
            if not _is_idempotent(source):
                new.add(source)
            elif source not in chain:
                chain.add(source)
                waiting += [reading.value for reading in source.readings]
        return chain, new

    def _held(self) -> set[FusionValue]:
        """What the backward computes from the forward's values alone, where it is not smaller than those."""
        from_forward: set[FusionValue] = set()
        held: set[FusionValue] = set()
        for item in self.lowered.items[self.start :]:
            if not isinstance(item, FusionValue) or not _is_idempotent(item):
                continue
            sources = [reading.value for reading in item.readings]
            if not all(source.id < self.start or source in from_forward for source in sources):
                continue
            from_forward.add(item)
            alone = {source for source in sources if source in self.kept and self._backward_readers(source) == [item]}
            if sum(map(_bytes, alone - self.recomputed - self.returned)) <= _bytes(item):
                held.add(item)
        return held

    def _sink(self, held: set[FusionValue]) -> None:
        """Move what is held to its first reader: what comes between keeps it from being computed in the forward.
        What is computed from inputs alone stays: it is part of an update, which has an order of its own."""
        items: list[FusionValue | Call] = self.lowered.items[: self.start]
        sunk = {item for item in held if self._given(item) is None}
        left: dict[FusionValue | Call, None]  # in order
        left = {item: None for item in self.lowered.items[self.start :] if item in sunk}

        def put(item: FusionValue | Call) -> None:
            waiting, behind = [item], [item]
            while waiting:
                each = waiting.pop()
                for source in {*_operands(each), *each.after} & left.keys():
                    del left[source]
                    waiting.append(source)
                    behind.append(source)
            items.extend(sorted(behind, key=lambda each: each.id))

        for item in self.lowered.items[self.start :]:
            if item not in sunk:
                put(item)
        while left:
            item = next(reversed(left))
            del left[item]
            put(item)
        self.lowered.items = items
        _connect(self.lowered)

    def _hold_back(self, held: set[FusionValue]) -> None:
        for item in held:
            inputs = self._given(item)
            if inputs is None:
                last = self._call_before(item.id, self._first_reader(item))
            else:
                last = self._last_reader(inputs, item.id)
            item.after = () if last is None else (last,)

    def _given(self, item: FusionValue) -> set[FusionValue] | None:
        """The inputs that a value is computed from, if it is from nothing else: part of an update, most often."""
        inputs: set[FusionValue] = set()
        waiting = [reading.value for reading in item.readings]
        while waiting:
            source = waiting.pop()
            if source.kind is FusionKind.LEAF:
                inputs.add(source)
            elif self._is_forward(source) or not _is_idempotent(source):
                return None
            else:
                waiting += [reading.value for reading in source.readings]
        return inputs

    def _last_reader(self, inputs: set[FusionValue], position: int) -> FusionValue | Call | None:
        """The last step of the backward that reads one of these inputs: from there on they may have new values."""
        readers: list[FusionValue | Call] = []
        for value in inputs:
            readers += [*self.calls.get(value, ()), *filter(_is_heavy, value.users)]
        late = [each for each in readers if self.start <= each.id < position]
        if late:
            return max(late, key=lambda each: each.id)
        return next(filter(_is_heavy, self.lowered.items[self.start : position]), None)

    def _first_reader(self, item: FusionValue | Call) -> FusionValue | Call:
        """What reads a value first, or what reads that first if it is computed from the forward's values alone."""
        while isinstance(item, FusionValue) and self._heavy_behind(item) is None:
            readers = self._backward_readers(item)
            if not readers:
                break
            item = min(readers, key=lambda each: each.id)
        return item

    def _call_before(self, position: int, reader: FusionValue | Call) -> FusionValue | Call | None:
        """What keeps a value that the backward computes before this position from being computed in the forward: what
        its reader waits for in any case, so that both can share a kernel."""
        waits = self._heavy_behind(reader)
        if waits is not None and waits.id < position:  # a later one may wait for this value itself
            return waits
        between = self.lowered.items[self.start : position]
        heavy = next(filter(_is_heavy, reversed(between)), None)
        return heavy or next(filter(_is_computed_alone, reversed(between)), None)

    def _heavy_behind(self, item: FusionValue | Call) -> FusionValue | Call | None:
        """The last step of the backward that leads to an item."""
        steps: list[FusionValue | Call] = []
        waiting, seen = [item], {item}
        while waiting:
            each = waiting.pop()
            for source in _operands(each):
                step = source.call if isinstance(source, FusionValue) and source.call is not None else source
                if step in seen or step.id < self.start:
                    continue
                seen.add(step)
                if _is_heavy(step):
                    steps.append(step)
                else:
                    waiting.append(step)
        return max(steps, key=lambda each: each.id, default=None)

    def _rewrite(self) -> None:
        """Put a copy of each recomputed value before its first reader in the backward, which reads that instead."""
        names = {item.name for item in self.lowered.items}
        copies: dict[FusionValue, FusionValue] = {}
        places: dict[FusionValue, int] = {}
        before: dict[int, list[FusionValue]] = {}
        for value in sorted(self.recomputed, key=lambda value: value.id, reverse=True):
            late = [reader.id for reader in self._backward_readers(value)]
            late += [places[user] for user in value.users if user in places]
            place = places[value] = min(late)
            name = f"{value.name}_recomputed"
            while name in names:
                name += "_"
            names.add(name)
            last = self._call_before(place, self.lowered.items[place])
            after = () if last is None else (last,)
            copies[value] = replace(value, name=name, users=[], needed=False, after=after)
            before.setdefault(place, []).insert(0, copies[value])
        items: list[FusionValue | Call] = []
        for item in self.lowered.items:
            items += before.get(item.id, ())
            if item.id >= self.start:
                _read_instead(item, copies)
            items.append(item)
        for copy in copies.values():
            _read_instead(copy, copies)
        self.lowered.items = items
        _connect(self.lowered)


def _is_idempotent(value: FusionValue) -> bool:
    return value.kind is FusionKind.POINTWISE and not any(reading.indirect for reading in value.readings)


def _operands(item: FusionValue | Call) -> Iterable[FusionValue]:
    return item.reads if isinstance(item, Call) else (reading.value for reading in item.readings)


def _is_heavy(item: FusionValue | Call) -> bool:
    """Whether it is a step that others are told to come after: a library call, or a product of our own."""
    return isinstance(item, Call) or item.kind is FusionKind.PRODUCT


def _is_computed_alone(item: FusionValue | Call) -> bool:
    """Whether a value has a kernel before those that read it: a reduction, or a number computed from one."""
    if not isinstance(item, FusionValue) or not item.is_computed:
        return False
    return not _is_idempotent(item) or (bool(item.readings) and hint(item.numel) == 1)


def _bytes(value: FusionValue) -> int:
    return hint(value.spec.nbytes)


def _read_instead(item: FusionValue | Call, copies: dict[FusionValue, FusionValue]) -> None:
    if isinstance(item, FusionValue):
        item.readings = tuple(_moved(reading, copies) for reading in item.readings)
        return
    item.args = _with_copies(item.args, copies)
    item.kwargs = _with_copies(item.kwargs, copies)
    item.unless = copies.get(item.unless, item.unless) if item.unless is not None else None


def _moved(reading: FusionRead, copies: dict[FusionValue, FusionValue]) -> FusionRead:
    return replace(reading, value=copies[reading.value]) if reading.value in copies else reading


def _with_copies(argument: Any, copies: dict[FusionValue, FusionValue]) -> Any:
    if isinstance(argument, Ref):
        return replace(argument, value=copies.get(argument.value, argument.value))
    if isinstance(argument, tuple | list):
        return type(argument)(_with_copies(item, copies) for item in argument)
    if isinstance(argument, dict):
        return {name: _with_copies(item, copies) for name, item in argument.items()}
    return argument


def _connect(lowered: Lowered) -> None:
    """Number the items anew, and note who reads what."""
    for number, item in enumerate(lowered.items):
        item.id = number
        if isinstance(item, FusionValue):
            item.users, item.needed = [], False
    for item in lowered.items:
        if isinstance(item, FusionValue):
            for reading in item.readings:
                reading.value.users.append(item)
                reading.value.needed |= reading.indirect
        else:
            for value in item.reads:
                value.needed = True
    for ref in references(lowered.returns):
        ref.value.needed = True
