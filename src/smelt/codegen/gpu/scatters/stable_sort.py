"""Kernels that sort the events of a scatter by key, stably.

    keys     7 2 7 0 2        computed, one an event
    ranks    3 1 4 0 2        how many are before it: smaller ones, and equal ones that come earlier
    sorted   0 2 2 7 7        each key, and each event's number, at its rank
    order    3 1 4 0 2

Few events are compared pairwise in one launch. Many are sorted by four bits of their keys at a time, the lowest first:
count each digit in each chunk of the list, scan the counts, then move each event behind the ones before it. Eight 8-bit
counters share a word: a chunk has fewer events than such a counter can count.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.codegen.axes import dense_index
from smelt.codegen.gpu.kernel_slices import with_buffers
from smelt.codegen.gpu.phase_kernels import Bound, PhaseKernel
from smelt.codegen.gpu.scatters.scatter_kernels import Places, loop
from smelt.ir.kernel import (
    Axis,
    Buffer,
    Cast,
    Compute,
    Const,
    Gather,
    Index,
    Instruction,
    Load,
    Position,
    Reduce,
    Role,
    Scan,
    Scatter,
    Stage,
    Store,
)
from smelt.symbolic.shapes import Size
from smelt.symbolic.symsize import hint, is_symsize

_MOST_COMPARED = 16384  # events, each with each
_DIGIT = 4  # bits of a key at a time
_DIGITS = 1 << _DIGIT
_CHUNK = 64  # events of a chunk
_UNKNOWN_BITS = 40  # of keys that number the elements of a buffer of any size: no memory has more


@dataclass(frozen=True, slots=True)
class SortedEvents:
    """Kernels, and the buffers that they leave keys and events' numbers in, sorted."""

    kernels: list[PhaseKernel]
    keys: Buffer
    order: Buffer


def sorted_events(places: Places) -> SortedEvents:
    keys = _buffer(places, "keys", places.event_count)
    code, key = places.key_code()
    body = [*code, Cast("key.stored", key, places.dtype)]
    body.append(Store(keys.name, dense_index(places.events), "key.stored"))
    first = PhaseKernel(loop(places.kernel, places.events, body, [keys], "keys"))
    # Where their number varies, there may be many more than in the example.
    if hint(places.event_count) <= _MOST_COMPARED // (4 if is_symsize(places.event_count) else 1):
        return _compared(places, [first], keys)
    return _by_digits(places, [first], keys)


def _buffer(places: Places, name: str, size: Size) -> Buffer:
    return Buffer(f"{places.scatter.buffer}.{name}", places.dtype, size, Role.OUTPUT)


def _compared(places: Places, before: list[PhaseKernel], keys: Buffer) -> SortedEvents:
    count, dtype = places.event_count, places.dtype
    ranks = _buffer(places, "ranks", count)
    event, other = Axis("event", count), Axis("other", count)
    mine, theirs = Index((("event", 1),)), Index((("other", 1),))
    once: list[Instruction] = [Load("mine", keys.name, mine), Position("at", mine)]
    body: list[Instruction] = [
        Load("theirs", keys.name, theirs),
        Position("their.at", theirs),
        Compute("less", "lt", ("theirs", "mine"), torch.bool),
        Compute("same", "eq", ("theirs", "mine"), torch.bool),
        Compute("earlier", "lt", ("their.at", "at"), torch.bool),
        Compute("same.earlier", "and", ("same", "earlier"), torch.bool),
        Compute("is.before", "or", ("less", "same.earlier"), torch.bool),
        Cast("one", "is.before", dtype),
        Reduce("rank", "sum", "one"),
    ]
    stages = (Stage(False, tuple(once)), Stage(True, tuple(body)), Stage(False, (Store(ranks.name, mine, "rank"),)))
    ranking = with_buffers(
        replace(places.kernel, rows=(event,), cols=(other,)), stages, [keys, ranks], f"{places.kernel.name}.ranks"
    )
    ordered, order = _buffer(places, "sorted", count), _buffer(places, "order", count)
    put: list[Instruction] = [
        Load("key", keys.name, mine),
        Load("rank", ranks.name, mine),
        Cast("place", "rank", torch.int64),
        Position("at", mine),
        Cast("number", "at", dtype),
        Scatter(ordered.name, None, Index(), (("place", 1, count),), "key"),
        Scatter(order.name, None, Index(), (("place", 1, count),), "number"),
    ]
    placing = loop(places.kernel, [event], put, [keys, ranks, ordered, order], "order")
    return SortedEvents([*before, PhaseKernel(ranking), PhaseKernel(placing)], ordered, order)


# Many events.


def _by_digits(places: Places, kernels: list[PhaseKernel], keys: Buffer) -> SortedEvents:
    count = places.count
    bits = _UNKNOWN_BITS if is_symsize(count) else int(count).bit_length()
    order: Buffer | None = None
    for shift in range(0, bits, _DIGIT):
        passes, keys, order = _pass(places, keys, order, shift)
        kernels = [*kernels, *passes]
    assert order is not None
    return SortedEvents(kernels, keys, order)


def _pass(
    places: Places, keys: Buffer, order: Buffer | None, shift: int
) -> tuple[list[PhaseKernel], Buffer, Buffer]:
    """Sorted by one digit more."""
    count, dtype = places.event_count, places.dtype
    chunks = -(-count // _CHUNK)
    rows, cols = (Axis("chunk", chunks),), (Axis("item", _CHUNK),)
    bound = Bound("chunk", "item", _CHUNK, count)
    here = Index((("chunk", _CHUNK), ("item", 1)))
    table, starts = (_buffer(places, f"{name}.{shift}", _DIGITS * chunks) for name in ("counts", "starts"))
    digit = _digit_code(keys, here, shift)

    counting = [*digit, *(Reduce(f"count.{word}", "sum", f"one.{word}") for word in (0, 1))]
    after: list[Instruction] = [Const("mask", 255, torch.int64)]
    for each in range(_DIGITS):
        after += [
            Const(f"by.{each}", 8 * (each & 7), torch.int64),
            Compute(f"moved.{each}", "shr", (f"count.{each >> 3}", f"by.{each}"), torch.int64),
            Compute(f"of.{each}", "and", (f"moved.{each}", "mask"), torch.int64),
            Cast(f"stored.{each}", f"of.{each}", dtype),
            Store(table.name, Index((("chunk", 1),), chunks * each), f"stored.{each}"),
        ]
    base = replace(places.kernel, rows=rows, cols=cols)
    name = f"{places.kernel.name}.{shift}"
    stages = (Stage(True, tuple(counting)), Stage(False, tuple(after)))
    counts = with_buffers(base, stages, [keys, table], f"{name}.counts")

    at = Index((("n", 1),))
    scanning: list[Instruction] = [
        Load("count", table.name, at),
        Scan("end", "sum", "count", "n"),
        Compute("start", "sub", ("end", "count"), dtype),
        Store(starts.name, at, "start"),
    ]
    scan = loop(places.kernel, [Axis("n", _DIGITS * chunks)], scanning, [table, starts], f"{shift}.starts")

    new_keys, new_order = (_buffer(places, f"{what}.{shift}", count) for what in ("sorted", "order"))
    body: list[Instruction] = [
        *digit,
        *(Scan(f"run.{word}", "sum", f"one.{word}", "item") for word in (0, 1)),
        Compute("run", "where", ("in.word.1", "run.1", "run.0"), torch.int64),
        Compute("run.moved", "shr", ("run", "by"), torch.int64),
        Const("mask", 255, torch.int64),
        Compute("run.count", "and", ("run.moved", "mask"), torch.int64),
        Compute("run.before", "sub", ("run.count", "one"), torch.int64),
        Gather("start", starts.name, Index((("chunk", 1),)), (("digit", chunks, _DIGITS),)),
        Cast("start.wide", "start", torch.int64),
        Compute("place", "add", ("start.wide", "run.before"), torch.int64),
        Scatter(new_keys.name, None, Index(), (("place", 1, count),), "key"),
        *_number_code(order, here, dtype),
        Scatter(new_order.name, None, Index(), (("place", 1, count),), "number"),
    ]
    buffers = [keys, starts, new_keys, new_order, *([] if order is None else [order])]
    put = with_buffers(base, (Stage(True, tuple(body)),), buffers, f"{name}.order")
    return [PhaseKernel(counts, (bound,)), PhaseKernel(scan), PhaseKernel(put, (bound,))], new_keys, new_order


def _digit_code(keys: Buffer, here: Index, shift: int) -> Sequence[Instruction]:
    """A key's digit, and one for it in the counter that counts it."""
    return [
        Load("key", keys.name, here),
        Cast("key.wide", "key", torch.int64),
        Const("shift", shift, torch.int64),
        Compute("key.moved", "shr", ("key.wide", "shift"), torch.int64),
        Const("digit.mask", _DIGITS - 1, torch.int64),
        Compute("digit", "and", ("key.moved", "digit.mask"), torch.int64),
        Const("seven", 7, torch.int64),
        Const("eight", 8, torch.int64),
        Const("one", 1, torch.int64),
        Const("zero", 0, torch.int64),
        Compute("in.word", "and", ("digit", "seven"), torch.int64),
        Compute("by", "mul", ("in.word", "eight"), torch.int64),
        Compute("one.moved", "shl", ("one", "by"), torch.int64),
        Compute("in.word.1", "gt", ("digit", "seven"), torch.bool),
        Compute("one.0", "where", ("in.word.1", "zero", "one.moved"), torch.int64),
        Compute("one.1", "where", ("in.word.1", "one.moved", "zero"), torch.int64),
    ]


def _number_code(order: Buffer | None, here: Index, dtype: torch.dtype) -> Sequence[Instruction]:
    if order is not None:
        return [Load("number", order.name, here)]
    return [Position("number.wide", here), Cast("number", "number.wide", dtype)]
