"""Inputs that scatters change where they lie: as eager leaves them, without a copy, untouched where a call raises."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.base.events import collect
from smelt.ir.program import Place, Program, operands_in

Fn = Callable[..., Any]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    smelt.reset()
    torch.manual_seed(0)


def programs(fn: Fn, *args: torch.Tensor) -> list[Program]:
    """Call `fn` eagerly and compiled, twice each, on copies: all that comes out and all that is left is equal."""
    theirs, ours = ([each.clone() for each in args] for _ in range(2))
    with collect() as events:
        compiled = smelt.compile(fn, fullgraph=True)
        for _ in range(2):
            torch.testing.assert_close(compiled(*ours), fn(*theirs))
            torch.testing.assert_close(ours, theirs)
    assert [each._version for each in ours] == [each._version for each in theirs]
    return [event.subject for event in events if isinstance(event.subject, Program)]


def copies_of(program: Program, cache: torch.Tensor) -> list[str]:
    """Buffers as large as a cache that are none of the inputs."""
    return [
        buffer.name
        for buffer in program.buffers
        if buffer.place is not Place.INPUT and buffer.spec.numel == cache.numel()
    ]


def attend(cache: torch.Tensor, at: torch.Tensor, new: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    cache.index_copy_(1, at, new * 2)
    return torch.softmax(query @ cache.transpose(1, 2), -1) @ cache


def given(*places: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(2, 64, 8), torch.tensor(places), torch.randn(2, len(places), 8), torch.randn(2, 3, 8)


def test_a_cache_is_written_where_it_lies() -> None:
    args = given(5, 9)
    (program,) = programs(attend, *args)
    assert copies_of(program, args[0]) == []
    assert program.outputs[-1] is None


@pytest.mark.parametrize(
    "write",
    [
        lambda cache, at, new: cache.__setitem__((slice(None), at), new),
        lambda cache, at, new: cache.index_put_((torch.tensor([[0], [1]]), at), new[:, :1].expand(2, 2, 8)),
        lambda cache, at, new: cache.scatter_(1, at[None, :, None].expand(2, 2, 8), new),
        lambda cache, at, new: cache.index_add_(1, at, new),
        lambda cache, at, new: cache.index_copy_(1, at, new).index_fill_(1, at + 1, 0.5),
    ],
    ids=["index", "index_put", "scatter", "index_add", "two"],
)
def test_whatever_writes_at_indices(write: Fn) -> None:
    def fn(cache: torch.Tensor, at: torch.Tensor, new: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        write(cache, at, new)
        return query @ cache.transpose(1, 2)

    args = given(5, 9)
    (program,) = programs(fn, *args)
    assert copies_of(program, args[0]) == []


PARTS: dict[str, Fn] = {
    "select": lambda cache, new: cache.__setitem__((slice(None), 3), new[:, 0]),
    "last": lambda cache, new: cache.__setitem__((slice(None), -1), new[:, 0]),
    "slice": lambda cache, new: cache.__setitem__((slice(None), slice(3, 5)), new),
    "to the end": lambda cache, new: cache.__setitem__((slice(None), slice(62, None)), new * 2),
    "every third": lambda cache, new: cache.__setitem__((slice(None), slice(1, 6, 3)), new),
    "part of a part": lambda cache, new: cache.__setitem__((1, slice(4, 6), slice(2, 8, 2)), new[0, :, :3]),
    "diagonal": lambda cache, new: cache.diagonal(0, 1, 2).copy_(new[:, 0]),
    "spread": lambda cache, new: cache.__setitem__((slice(None), slice(3, 9)), new[:, :1]),
    "of another dtype": lambda cache, new: cache.__setitem__((slice(None), slice(3, 5)), new.double()),
    "twice": lambda cache, new: (cache[:, 3:5].copy_(new), cache[:, 4].copy_(new[:, 0] + 1)),
    "then at indices": lambda cache, new: (cache[:, 3:5].copy_(new), cache.index_copy_(1, torch.tensor([4, 9]), new)),
}


@pytest.mark.parametrize("write", PARTS.values(), ids=PARTS)
def test_a_part_is_written_where_it_lies(write: Fn) -> None:
    def fn(cache: torch.Tensor, new: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        write(cache, new)
        return query @ cache.transpose(1, 2)

    args = (torch.randn(2, 64, 8), torch.randn(2, 2, 8), torch.randn(2, 3, 8))
    (program,) = programs(fn, *args)
    assert copies_of(program, args[0]) == []


def test_a_part_that_moves() -> None:
    """A slice that begins elsewhere at each call is one graph."""

    def fn(cache: torch.Tensor, new: torch.Tensor, query: torch.Tensor, at: int) -> torch.Tensor:
        cache[:, at : at + 2] = new
        return query @ cache.transpose(1, 2)

    theirs, ours = torch.zeros(2, 64, 8), torch.zeros(2, 64, 8)
    new, query = torch.randn(2, 2, 8), torch.randn(2, 3, 8)
    compiled = smelt.compile(fn, fullgraph=True)
    for at in (0, 2, 4, 6, 61, 62):
        torch.testing.assert_close(compiled(ours, new, query, at), fn(theirs, new, query, at))
        torch.testing.assert_close(ours, theirs)
    assert smelt.counters["recompiles"] <= 2


def test_a_part_of_itself() -> None:
    """What is written is what was there one place further: it must not be read after it was written over."""

    def fn(cache: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        cache[:, :-1] = cache[:, 1:].clone()
        cache[:, -1] = new
        return cache * 2

    programs(fn, torch.randn(2, 64, 8), torch.randn(2, 8))


def layers(a: torch.Tensor, b: torch.Tensor, at: torch.Tensor, then: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    a.index_copy_(1, at, new)
    y = new @ a.transpose(1, 2) @ a
    b.index_copy_(1, then + 1, y)
    return y @ b.transpose(1, 2)


def test_every_layer_has_its_own() -> None:
    args = (torch.randn(2, 64, 8), torch.randn(2, 64, 8), torch.tensor([3]), torch.tensor([4]), torch.randn(2, 1, 8))
    (program,) = programs(layers, *args)
    assert copies_of(program, args[0]) == []


@pytest.mark.parametrize("places", [(64, 3), (3, 63)])
def test_nothing_is_written_where_an_index_is_out_of_range(places: tuple[int, int]) -> None:
    """Of the second layer too: eager, which raises there with the first one written, runs the call again."""
    at, then = (torch.tensor([place]) for place in places)
    new = torch.randn(2, 1, 8)
    theirs, ours = ([torch.zeros(2, 64, 8), torch.zeros(2, 64, 8)] for _ in range(2))
    good = torch.tensor([0])
    runs: list[tuple[list[torch.Tensor], Fn]] = [(theirs, layers), (ours, smelt.compile(layers))]
    for caches, fn in runs:
        fn(*caches, good, good, new)
        with pytest.raises(IndexError, match="out of"):
            fn(*caches, at, then, new)
    torch.testing.assert_close(ours, theirs)


def test_old_values_that_are_read_are_kept() -> None:
    def fn(cache: torch.Tensor, at: torch.Tensor, new: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        before = query @ cache.transpose(1, 2)
        cache.index_copy_(1, at, new)
        return before @ cache

    args = given(5)
    (program,) = programs(fn, *args)
    assert copies_of(program, args[0])


def test_what_is_handed_out_is_no_input() -> None:
    def fn(cache: torch.Tensor, at: torch.Tensor, new: torch.Tensor, query: torch.Tensor) -> Any:
        made = cache.index_copy(1, at, new)
        cache.copy_(made)
        return made[:, 0], query @ made.transpose(1, 2)

    args = given(5)
    compiled = smelt.compile(fn, fullgraph=True)
    mine = args[0].clone()
    first, _ = compiled(mine, *args[1:])
    kept = first.clone()
    mine.zero_()
    torch.testing.assert_close(first, kept)
    torch.testing.assert_close(kept, fn(args[0].clone(), *args[1:])[0])


def test_what_may_raise_for_what_was_computed_comes_first() -> None:
    """An index that is computed from the cache is known when that has been written: too late."""

    def fn(cache: torch.Tensor, at: torch.Tensor, new: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(1, at, new)
        return query[:, cache.sum((0, 2)).argmax().clamp(max=2)[None]]

    args = given(5)
    (program,) = programs(fn, *args)
    assert copies_of(program, args[0])


def test_inputs_that_share_memory_are_left_to_eager() -> None:
    compiled = smelt.compile(lambda a, b, at, new: (a.index_copy_(0, at, new), b + 1)[1])
    at, new = torch.tensor([1]), torch.ones(1, 4)
    compiled(torch.zeros(8, 4), torch.zeros(8, 4), at, new)
    memory = torch.zeros(16, 4)
    torch.testing.assert_close(compiled(memory[:8], memory[1:9], at, new)[0], torch.full((4,), 2.0))


def test_a_slice_of_a_cache_is_written_too() -> None:
    whole = torch.randn(4, 64, 8)
    compiled = smelt.compile(attend)
    theirs, ours = whole.clone(), whole.clone()
    rest = given(5, 9)[1:]
    torch.testing.assert_close(compiled(ours[1:3], *rest), attend(theirs[1:3], *rest))
    torch.testing.assert_close(ours, theirs)


def test_no_output_is_an_input() -> None:
    args = given(5, 9)
    (program,) = programs(attend, *args)
    assert not {operand.buffer for operand in operands_in(program.outputs)} & set(program.inputs)


@pytest.mark.filterwarnings("error")
def test_what_is_put_where_it_is_is_compiled() -> None:
    def itself(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.narrow(0, 0, 1).copy_(x.narrow(0, 0, 1).clone())
        x[1:2].copy_(y[:1])
        return y * 2

    assert programs(itself, torch.randn(3), torch.randn(5))


def test_a_cache_of_any_size_is_written_where_it_lies() -> None:
    """One version for all capacities, and no copy in it; an index out of range leaves the cache as it was."""
    compiled = smelt.compile(attend, dynamic=True, fullgraph=True)
    with collect() as events:
        for capacity in (64, 40, 91):
            cache, at, new, query = torch.randn(2, capacity, 8), torch.tensor([5, 9]), *given(5, 9)[2:]
            expected = cache.clone()
            torch.testing.assert_close(compiled(cache, at, new, query), attend(expected, at, new, query))
            torch.testing.assert_close(cache, expected)
            with pytest.raises(IndexError):
                compiled(cache, torch.tensor([5, capacity]), new, query)
            torch.testing.assert_close(cache, expected)
    *_, last = (event.subject for event in events if isinstance(event.subject, Program))
    assert smelt.counters["graphs"] == 1
    assert smelt.counters["sizes_refused"] == 0
    assert last.outputs[-1] is None
