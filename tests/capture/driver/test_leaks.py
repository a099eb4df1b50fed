"""Calls leave nothing behind: neither Python objects nor memory, on any of the ways a call can take.

`SMELT_LEAK_CALLS` sets how many calls the plain way makes (50,000 unless told; `make test-leaks` makes a million); the
dearer ways make a share of that. Python's own count of allocated blocks may grow by `BLOCKS`, the process by `BYTES`: a
leak of one object a call would show as a block for every call.
"""

import gc
import os
import sys
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.base.errors import SmeltWarning
from smelt.base.options import config

CALLS = int(os.environ.get("SMELT_LEAK_CALLS", "50000"))
BLOCKS = 500
BYTES = 4 << 20


def resident() -> int:
    """Bytes of memory the process holds."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def leaves_nothing(call: Callable[[], Any], calls: int) -> None:
    for _ in range(max(calls // 10, 200)):  # allocators and caches settle first
        call()
    gc.collect()
    blocks, memory = sys.getallocatedblocks(), resident()
    for _ in range(calls):
        call()
    grown = resident() - memory
    gc.collect()
    assert sys.getallocatedblocks() - blocks < BLOCKS, "Python objects stay behind"
    assert grown < BYTES, f"memory grew by {grown} bytes in {calls} calls"


needs_proc = pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads Linux's /proc")


@needs_proc
@pytest.mark.parametrize("backend", ["eager", "llvm"])
def test_a_call_that_finds_its_code(backend: str) -> None:
    compiled = smelt.compile(lambda x, scale: (x * scale).sin() + 1, backend=backend)
    x = torch.randn(4, 4)
    leaves_nothing(lambda: compiled(x, scale=2.0), CALLS)


@needs_proc
def test_a_call_with_new_arguments_every_time() -> None:
    compiled = smelt.compile(lambda batch: {"sum": batch["a"] + batch["b"][0], "n": len(batch["b"])})
    leaves_nothing(lambda: compiled({"a": torch.ones(3), "b": [torch.ones(3), None]}), CALLS // 5)


@needs_proc
def test_a_call_through_a_break() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        smelt.graph_break()
        return y * 2 if y.sum() > 0 else y

    compiled = smelt.compile(function)
    x = torch.randn(4, 4)
    leaves_nothing(lambda: compiled(x), CALLS // 10)


@needs_proc
def test_a_call_that_raises() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        raise ValueError(f"no use for {tuple(y.shape)}")

    smelt.reset()
    compiled = smelt.compile(function)
    x = torch.randn(4, 4)

    def call() -> None:
        with pytest.raises(ValueError, match=r"no use for \(4, 4\)"):
            compiled(x)

    leaves_nothing(call, CALLS // 20)
    assert smelt.counters["graph_breaks"] <= config.cache_size_limit  # not captured again at every call


@needs_proc
def test_a_call_that_writes_to_objects() -> None:
    class Store:
        seen: Any = None

    store = Store()

    def function(x: torch.Tensor) -> torch.Tensor:
        store.seen = [x.sin(), x.cos()]
        return store.seen[0] + 1

    compiled = smelt.compile(function)
    x = torch.randn(4, 4)
    leaves_nothing(lambda: compiled(x), CALLS // 10)


@needs_proc
@pytest.mark.parametrize("backend", ["eager", "llvm"])
def test_a_training_step(backend: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    compiled = smelt.compile(model, backend=backend)
    x = torch.randn(4, 4)

    def call() -> None:
        compiled(x).sum().backward()
        model.zero_grad(set_to_none=True)

    leaves_nothing(call, CALLS // 20)


@needs_proc
def test_a_forward_whose_backward_never_runs() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh())
    compiled = smelt.compile(model)
    x = torch.randn(4, 4)
    leaves_nothing(lambda: compiled(x), CALLS // 10)


@needs_proc
def test_versions_stop_at_the_limit() -> None:
    """Every call has another constant: no more is compiled than the limit allows, and the rest leaves nothing."""
    compiled = smelt.compile(lambda x, key: x * len(key), backend="eager")
    x, number = torch.randn(3), iter(range(10**9))
    smelt.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmeltWarning)
        for _ in range(3 * config.cache_size_limit):
            key = str(next(number))
            assert torch.equal(compiled(x, key), x * len(key))
        assert smelt.counters["graphs"] <= config.cache_size_limit
        leaves_nothing(lambda: compiled(x, str(next(number))), CALLS // 10)
    assert smelt.counters["graphs"] <= config.cache_size_limit


@pytest.mark.parametrize("backend", ["eager", "llvm"])
def test_inputs_and_results_are_let_go(backend: str) -> None:
    """Nothing that a call was given or made is alive after it, and what was saved dies with the backward."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    compiled = smelt.compile(model, backend=backend)
    compiled(torch.randn(4, 4, requires_grad=True) * 1).sum().backward()
    gc.collect()  # capture itself leaves cycles
    for _ in range(3):
        x = torch.randn(4, 4, requires_grad=True)
        inner = x * 1
        result = compiled(inner)
        loss = result.sum()
        watched: list[Any] = [weakref.ref(each) for each in (x, inner, result)]
        if backend == "llvm":
            watched.append(weakref.ref(result.grad_fn))  # our own node, which holds what was saved
        loss.backward()
        model.zero_grad(set_to_none=True)
        del x, inner, result, loss
        assert [ref() for ref in watched] == [None] * len(watched)  # without the garbage collector's help


def test_a_compiled_model_is_let_go() -> None:
    """With its code: a model compiled in a loop leaves nothing either."""
    watched = []
    for _ in range(3):
        model = torch.nn.Linear(4, 4)
        compiled = smelt.compile(model)
        compiled(torch.randn(2, 4)).sum().backward()
        watched += [weakref.ref(model), weakref.ref(model.weight), weakref.ref(compiled)]
        del model, compiled
    gc.collect()
    assert [ref() for ref in watched] == [None] * len(watched)
