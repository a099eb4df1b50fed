"""One runner for all sizes that fit its arena: results are eager's, whatever the strides, threads and watchers."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.profiler import profile

import smelt
from smelt.pipeline.sizes import dispatch

HEADS, WIDTH = 2, 8


class State:
    def __init__(self, length: int) -> None:
        self.keys = torch.randn(1, HEADS, length, WIDTH)


def step(state: State, new: torch.Tensor) -> torch.Tensor:
    state.keys = torch.cat([state.keys, new], 2)
    weights = torch.softmax((state.keys * new).sum(-1), -1)
    return (weights[..., None] * state.keys).sum(2) @ torch.ones(WIDTH, 3)


def new() -> torch.Tensor:
    return torch.randn(1, HEADS, 1, WIDTH)


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> list[dispatch.ForAllSizes]:
    """Versions for all sizes, as they are made."""
    made: list[dispatch.ForAllSizes] = []
    original = dispatch.SizedGraph._bound_for_all

    def noting(self: dispatch.SizedGraph, bound: Any) -> Any:
        run = original(self, bound)
        if run is not None and self._for_all[0] not in made:
            made.append(self._for_all[0])
        return run

    monkeypatch.setattr(dispatch.SizedGraph, "_bound_for_all", noting)
    return made


def warmed(length: int = 5) -> Callable[..., Any]:
    """`step`, compiled for any length."""
    smelt.reset()
    compiled: Callable[..., Any] = smelt.compile(step)
    state = State(length)
    for _ in range(12):
        compiled(state, new())
    return compiled


def check(compiled: Callable[..., Any], keys: torch.Tensor) -> None:
    states = State(1), State(1)
    for state in states:
        state.keys = keys
    token = new()
    torch.testing.assert_close(compiled(states[0], token), step(states[1], token))
    torch.testing.assert_close(states[0].keys, states[1].keys, rtol=0, atol=0)
    assert states[0].keys.stride() == states[1].keys.stride()


def test_a_growing_cache_binds_no_length(versions: list[dispatch.ForAllSizes]) -> None:
    with torch.no_grad():
        compiled = warmed()
        before = smelt.counters["sizes_bound"]
        for length in range(20, 120):
            check(compiled, torch.randn(1, HEADS, length, WIDTH))
    assert versions
    assert smelt.counters["sizes_bound"] - before <= 10  # when the arena is planned for longer caches
    assert smelt.counters["graphs"] <= 2


def test_caches_with_other_strides(versions: list[dispatch.ForAllSizes]) -> None:
    with torch.no_grad():
        compiled = warmed()
        for length in (6, 9, 31, 14):
            whole = torch.randn(1, HEADS, length + 7, WIDTH)
            check(compiled, whole[:, :, :length])  # cropped: the strides are those of the longer tensor
            check(compiled, whole[:, :, 3 : length + 3])
            check(compiled, whole[:, :1, :length].expand(1, HEADS, length, WIDTH))
            check(compiled, torch.randn(1, length, HEADS, WIDTH).transpose(1, 2))
            check(compiled, torch.randn(1, HEADS, WIDTH, length).transpose(2, 3))
            check(compiled, whole.as_strided((1, HEADS, length, WIDTH), (1, WIDTH, WIDTH, 1)))  # heads overlap
            check(compiled, torch.randn(1, HEADS, length, WIDTH))
    assert versions


def test_sizes_that_do_not_fit_the_arena_are_refused(versions: list[dispatch.ForAllSizes]) -> None:
    with torch.no_grad():
        compiled = warmed()
        check(compiled, torch.randn(1, HEADS, 20, WIDTH))
        check(compiled, torch.randn(1, HEADS, 21, WIDTH))
        version, token = versions[-1], new()

        def inputs(length: int) -> Iterator[tuple[torch.Tensor, ...]]:
            keys = torch.randn(1, HEADS, length, WIDTH)
            yield keys, token
            yield token, keys

        (place,) = [place for place, given in enumerate(inputs(21)) if version.fits(*given)]
        too_long = list(inputs(100_000))[place]
        assert not version.fits(*too_long)
        assert not version.fits(too_long[0])
        with pytest.raises(ValueError, match="not compiled for such sizes"):
            version.run(*too_long)
        check(compiled, torch.randn(1, HEADS, 5000, WIDTH))  # another arena


def test_threads_with_different_lengths() -> None:
    with torch.no_grad():
        compiled = warmed()
    failures: list[BaseException] = []

    def work(lengths: range) -> None:
        try:
            with torch.no_grad():
                for length in lengths:
                    check(compiled, torch.randn(1, HEADS, length, WIDTH))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(range(20 + first, 80, 3),)) for first in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_profiler_sees_the_same_results() -> None:
    with torch.no_grad():
        compiled = warmed()
        with profile():
            for length in (23, 24, 25):
                check(compiled, torch.randn(1, HEADS, length, WIDTH))
