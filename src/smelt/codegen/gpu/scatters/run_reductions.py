"""Reduces the points of a scatter that write to the same place: each run of equal keys in a sorted list becomes one
element.

    keys     0 2 2 | 7 7 7 | 7 9       chunks of the list, a thread each (and for each inner point of a place)
    chunk 0  y[0] += v, y[2] += v + v'         runs that end where they began are done
    chunk 1  7: what its part of the run comes to goes into a list for the next level
    chunk 2  7: as well; y[9] += v
    next     7 7 7 7: y[7] += …                the same, of far fewer

Each chunk leaves two entries for the next level: one for its first run, if that began in an earlier chunk, and one for
its last, if that continues. Where there is no such run, the entry has its key and the neutral element. So keys stay
sorted, and equal keys stay adjacent. Each level has a far shorter list:

    1,000,000 entries in chunks of 32  →  62,500 in chunks of 32  →  3,908  →  246  →  16 in one chunk
"""

from dataclasses import replace

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.gpu.grids import POINT_THREADS, Grid
from smelt.codegen.gpu.phase_body import PhaseBody
from smelt.codegen.gpu.scatters.scatter_kernels import Places, loop
from smelt.codegen.gpu.scatters.stable_sort import SortedEvents
from smelt.codegen.gpu.simt import Mask, Simt
from smelt.codegen.loops.builder import TRUE
from smelt.codegen.loops.reductions import combine
from smelt.codegen.loops.scalars import VALUE_KINDS, cast, from_memory, memory_kind, to_memory
from smelt.ir.check_kernel import value_dtypes
from smelt.ir.kernel import Buffer, Kernel, Role
from smelt.ir.loops import Value
from smelt.symbolic.shapes import Size, product
from smelt.symbolic.symsize import hint, is_symsize, known_equal

_CHUNKS = (8, 32)  # entries of a chunk: short ones where there are few threads otherwise
_ENOUGH_THREADS = 132 * 1024
_ONE_CHUNK = 64  # so many are reduced by one thread


@dataclass(frozen=True, slots=True)
class RunLevel(Grid):
    """One level. `keys` and `values` name the list's buffers; the first level has none for values, but the numbers of
    events in `order`. `further`: keys and values for the next level."""

    kernel: Kernel  # with the buffers that it touches
    places: Places
    count: Size
    chunk: Size
    keys: str
    order: str | None
    values: str
    further: tuple[str, str] | None = None
    threads: int = POINT_THREADS

    @property
    def chunks(self) -> Size:
        return -(-self.count // self.chunk)

    @property
    def thread_count(self) -> Size:
        return self.chunks * product(axis.size for axis in self.places.inner)

    @property
    def blocks(self) -> Size:
        return -(-self.thread_count // self.threads)


class RunReductionBody(PhaseBody, of=RunLevel):
    """One level, being written."""

    grid: RunLevel

    def __init__(self, b: Simt, grid: RunLevel) -> None:
        super().__init__(b, grid)
        self.places = grid.places
        self.dtype = self.dtypes[self.places.scatter.value]
        op = self.places.scatter.op
        assert op is not None
        self.op = op
        self.point: Value = b.index(0)  # of its place, which this thread reduces
        self.inner = product(axis.size for axis in self.places.inner)

    def write(self) -> None:
        b, level = self.b, self.grid
        thread = b.add(b.mul(b.block_number(), self.grid.threads), b.thread())
        thread, mine = b.below(thread, level.chunks * self.inner)
        chunk, self.point = self._split(thread)
        self.rows = self._coordinates(self.point, self.places.inner)
        first = b.mul(chunk, b.index(level.chunk))
        end = b.add(first, b.index(level.chunk))
        first_key = self._key(first, None)
        none = b.index(-1)
        began = b.icmp("sgt", chunk, 0)
        previous = b.select(began, self._key(b.sub(first, 1), began), none)
        more = b.icmp("slt", end, b.index(level.count))
        following = b.select(more, self._key(end, more), none)
        continues = b.icmp("eq", previous, first_key)
        nothing = b.const(VALUE_KINDS[self.dtype], -0.0 if self.op == "sum" else 1.0)

        def entry(turn: Value, carried: list[Value]) -> list[Value]:
            key, total, head, is_head = carried
            at = b.add(first, b.convert("trunc", turn, b.index_kind))
            inside = b.and_(mine, b.icmp("slt", at, b.index(level.count)))
            at = b.select(inside, at, 0)
            next_key = self._key(at, None)
            value = self._value(at)
            changed = b.and_(inside, b.icmp("ne", next_key, key))
            of_before = b.and_(is_head, continues)
            self._flush(key, total, b.and_(changed, b.not_(of_before)))
            head = b.select(b.and_(changed, of_before), total, head)
            added = b.select(inside, combine(b, self.op, self.dtype, total, value), total)
            total = b.select(changed, value, added)
            return [b.select(changed, next_key, key), total, head, b.and_(is_head, b.not_(changed))]

        key, total, head, is_head = b.carried_loop(level.chunk, [first_key, nothing, nothing, TRUE], entry)
        of_before = b.and_(is_head, continues)
        goes_on = b.icmp("eq", following, key)
        self._flush(key, total, b.and_(mine, b.not_(b.or_(of_before, goes_on))))
        if level.further is None:
            return
        head = b.select(of_before, total, head)
        tail = b.select(b.and_(goes_on, b.not_(of_before)), total, nothing)
        self._leave(chunk, (first_key, key), (head, tail), mine)

    def _split(self, thread: Value) -> tuple[Value, Value]:
        b, inner = self.b, self.inner
        if known_equal(inner, 1):
            return thread, b.index(0)
        extent = b.index(inner)
        chunk = b.binary("udiv", thread, extent)
        return chunk, b.sub(thread, b.mul(chunk, extent))

    def _number(self, name: str, at: Value) -> Value:
        b, dtype = self.b, self.places.dtype
        (raw,) = b.load_global(b.pointer(name), at, memory_kind(dtype), constant=True)
        return b.convert("trunc" if b.index_kind == "i32" else "sext", raw, b.index_kind)

    def _key(self, at: Value, where: Mask) -> Value:
        at = at if where is None else self.b.select(where, at, 0)
        return self._number(self.grid.keys, at)

    def _value(self, at: Value) -> Value:
        """Of an entry of the list."""
        b, level = self.b, self.grid
        if level.order is None:
            place = b.add(b.mul(at, b.index(self.inner)), self.point)
            (raw,) = b.load_global(b.pointer(level.values), place, memory_kind(self.dtype), constant=True)
            return from_memory(b, raw, self.dtype)
        event = self._number(level.order, at)
        where = {**self.rows, **self._coordinates(event, self.places.events)}
        outside = {**self.values}
        self.run(self.places.value_code(), where, None)
        (value,) = self.values[self.places.scatter.value]
        self.values = outside
        return value

    def _flush(self, key: Value, total: Value, mask: Value) -> None:
        """A run is complete: combine it with the element of its key."""
        b, places = self.b, self.places
        buffer = self.kernel.buffer(places.scatter.buffer)
        mask = b.and_(mask, b.icmp("slt", key, b.index(places.count)))
        place = b.add(b.mul(b.select(mask, key, 0), b.index(places.step)), b.index(places.offset))
        place = b.add(place, self._offset(places.inner_index(), self.rows))
        pointer, kind = b.pointer(buffer.name), memory_kind(buffer.dtype)
        with b.where(mask):
            (raw,) = b.load_global(pointer, place, kind)
            old = cast(b, from_memory(b, raw, buffer.dtype), buffer.dtype, self.dtype)
            new = cast(b, combine(b, self.op, self.dtype, old, total), self.dtype, buffer.dtype)
            b.store_global(pointer, place, [to_memory(b, new, buffer.dtype)])

    def _leave(
        self, chunk: Value, keys: tuple[Value, ...], values: tuple[Value, ...], mask: Value
    ) -> None:
        """For the next level."""
        b, level = self.b, self.grid
        assert level.further is not None
        to_keys, to_values = level.further
        for side, (key, value) in enumerate(zip(keys, values, strict=True)):
            entry = b.add(b.mul(chunk, 2), side)
            kind = memory_kind(self.places.dtype)
            wide = b.convert("sext" if b.index_kind == "i32" else "trunc", key, kind)
            with b.where(b.and_(mask, b.icmp("eq", self.point, 0))):
                b.store_global(b.pointer(to_keys), entry, [wide])
            place = b.add(b.mul(entry, b.index(self.inner)), self.point)
            with b.where(mask):
                b.store_global(b.pointer(to_values), place, [to_memory(b, value, self.dtype)])


def run_levels(places: Places, events: SortedEvents) -> list[RunLevel]:
    levels: list[RunLevel] = []
    dtype = value_dtypes(places.kernel)[places.scatter.value]
    inner = product(axis.size for axis in places.inner)
    count, keys, values = places.event_count, events.keys, None
    while True:
        level = len(levels)
        inputs = [replace(keys, role=Role.INPUT)]
        inputs.append(replace(events.order if values is None else values, role=Role.INPUT))
        last = hint(count) <= _ONE_CHUNK
        enough = hint(count) * hint(inner) // _CHUNKS[1] >= _ENOUGH_THREADS
        # One more where the count varies: none are no chunk then.
        whole = count + 1 if is_symsize(count) else count
        chunk = whole if last else _CHUNKS[1] if enough else _CHUNKS[0]
        order, source = (events.order.name, "") if values is None else (None, values.name)
        run_level = RunLevel(places.kernel, places, count, chunk, keys.name, order, source)
        new: list[Buffer] = []
        if not last:
            entries = 2 * run_level.chunks
            stem = f"{places.scatter.buffer}.level{level}"
            new = [Buffer(f"{stem}.keys", places.dtype, entries, Role.OUTPUT)]
            new.append(Buffer(f"{stem}.values", dtype, entries * inner, Role.OUTPUT))
            run_level = replace(run_level, further=(new[0].name, new[1].name))
        levels.append(replace(run_level, kernel=_kernel(places, [*inputs, *new], level)))
        if last:
            return levels
        (keys, values), count = new, 2 * run_level.chunks


def _kernel(places: Places, extra: list[Buffer], level: int) -> Kernel:
    kernel = places.kernel
    fold = loop(kernel, kernel.cols, kernel.instructions(), (), f"fold{level}")
    return replace(fold, buffers=(*fold.buffers, *extra))
