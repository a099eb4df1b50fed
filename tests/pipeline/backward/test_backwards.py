"""Backwards are compiled when gradients first arrive, for the results they arrive for; what goes wrong then is told."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from smelt import fuse
from smelt.autograd.partition import partition
from smelt.base.errors import SmeltError, SmeltWarning
from smelt.runtime.cache import CacheStore
from tests.processes import run, run_new
from tests.targets import device_type, seeded


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    smelt.reset()
    yield
    smelt.reset()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CacheStore:
    monkeypatch.delenv("SMELT_CACHE", raising=False)
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path))
    return CacheStore(tmp_path, 1 << 30)


def heads(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A loss and what it was computed from, as models return them."""
    logits = torch.tanh(x @ w) * x.exp()
    return logits.square().mean(), logits


def given() -> tuple[torch.Tensor, torch.Tensor]:
    generator = seeded(0)
    return torch.randn(4, 4, generator=generator), torch.randn(4, 4, generator=generator).requires_grad_()


def step(function: Callable[..., Any], *used: int) -> torch.Tensor:
    x, w = given()
    results = function(x, w)
    torch.autograd.backward([results[number].sum() for number in used or (0,)])
    assert w.grad is not None
    return w.grad


@pytest.mark.parametrize("backend", ["llvm", "aot_eager"])
def test_one_backward_for_a_step_and_none_without(backend: str) -> None:
    compiled = smelt.compile(heads, backend=backend, fullgraph=True)
    compiled(*given())
    assert smelt.counters["backwards"] == 0
    for _ in range(2):
        torch.testing.assert_close(step(compiled), step(heads))
        assert smelt.counters["backwards"] == 1
    torch.testing.assert_close(step(compiled, 0, 1), step(heads, 0, 1))
    torch.testing.assert_close(step(compiled, 1), step(heads, 1))
    assert smelt.counters["backwards"] == 3
    for used in ((0, 1), (1,), (0,)):
        torch.testing.assert_close(step(compiled, *used), step(heads, *used))
    assert smelt.counters["backwards"] == 3


def test_threads_that_need_the_same_backward_wait_for_it() -> None:
    compiled = smelt.compile(heads, fullgraph=True)
    compiled(*given())
    gate, found = threading.Barrier(6), []

    def train() -> None:
        x, w = given()
        loss, _ = compiled(x, w)
        gate.wait()
        loss.backward()
        found.append(w.grad)

    threads = [threading.Thread(target=train) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert smelt.counters["backwards"] == 1 and len(found) == 6
    for gradient in found:
        torch.testing.assert_close(gradient, step(heads))


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """No program can be built of a backward; the graph is left half rewritten."""
    build = fuse.build_program

    def fail(traced: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        if not name.startswith("backward"):
            return build(traced, name, *args, **kwargs)
        *_, last = [node for node in traced.graph.nodes if node.op == "call_function"]
        last.args = last.args[::-1]
        raise KeyError("no such thing")

    monkeypatch.setattr(fuse, "build_program", fail)


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
def test_a_backward_that_cannot_be_compiled_is_run_by_pytorch(broken: None, used: tuple[int, ...]) -> None:
    compiled = smelt.compile(heads, fullgraph=True)
    with pytest.warns(SmeltWarning, match="SM020: backward.* could not be compiled and falls back.*no such thing"):
        found = step(compiled, *used)
    torch.testing.assert_close(found, step(heads, *used))
    torch.testing.assert_close(step(compiled, *used), step(heads, *used))  # and says so once


def test_without_fallback_it_raises_each_time(broken: None) -> None:
    compiled = smelt.compile(heads, fullgraph=True, options={"fallback": False})
    for _ in range(2):
        with pytest.raises(KeyError, match="no such thing"):
            step(compiled)


def test_the_state_of_the_process_is_that_of_the_forward() -> None:
    """Autocast, a default device and no_grad round the call of backward are nothing to its graph."""
    compiled = smelt.compile(heads, fullgraph=True)
    x, w = given()
    loss, _ = compiled(x, w)
    with torch.autocast(device_type(), dtype=torch.bfloat16), torch.device("meta"), torch.no_grad():
        loss.backward()
    assert w.grad is not None and not torch.is_autocast_enabled(device_type())
    torch.testing.assert_close(w.grad, step(heads))


def test_explain_shows_the_backward_though_it_never_ran() -> None:
    explained = smelt.explain(heads)(*given())
    assert [program.name.rstrip("_0123456789") for program in explained.programs] == ["forward", "backward"]


def test_a_forward_out_of_the_cache_finds_its_backwards(cache: CacheStore) -> None:
    def fresh() -> Any:
        smelt.reset()
        return smelt.compile(heads, fullgraph=True, options={"fallback": False})

    fresh()(*given())
    assert cache.usage().files == 2  # the forward and the capture
    first = step(fresh())  # the graph is traced again, the forward is not compiled again
    assert (smelt.counters["cache_hits"], smelt.counters["backwards"], smelt.counters["joint_graphs"]) == (1, 1, 1)
    assert cache.usage().files == 3
    assert torch.equal(step(fresh()), first)
    assert (smelt.counters["cache_hits"], smelt.counters["backwards"], smelt.counters["joint_graphs"]) == (2, 0, 0)
    both = step(fresh(), 0, 1)
    assert (smelt.counters["cache_hits"], smelt.counters["backwards"]) == (1, 1)
    assert torch.equal(step(fresh(), 0, 1), both)
    assert (smelt.counters["cache_hits"], smelt.counters["backwards"]) == (2, 0)
    torch.testing.assert_close(first, step(heads))
    torch.testing.assert_close(both, step(heads, 0, 1))


def test_a_backward_for_a_stored_forward_that_was_compiled_in_symbols(cache: CacheStore) -> None:
    weight = (torch.randn(8, 8) / 8).requires_grad_()  # larger ones cancel in the gradient of softmax

    def attend(x: torch.Tensor) -> torch.Tensor:
        x = x @ weight
        return (x @ x.transpose(1, 2)).softmax(-1) @ x

    def outputs() -> list[torch.Tensor]:
        smelt.reset()
        compiled = smelt.compile(attend, dynamic=True)
        return [compiled(torch.ones(2, length, 8)) for length in (3, 4, 5)]

    outputs()
    results = outputs()
    assert smelt.counters["cache_hits"] == 3
    for length, result in zip((3, 4, 5), results, strict=True):
        (expected,) = torch.autograd.grad(attend(torch.ones(2, length, 8)).square().sum(), weight)
        torch.testing.assert_close(torch.autograd.grad(result.square().sum(), weight)[0], expected)


def test_another_split_than_the_stored_forward_has_is_not_taken(
    cache: CacheStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fresh() -> Any:
        smelt.reset()
        return smelt.compile(heads, fullgraph=True)

    fresh()(*given())
    compiled = fresh()
    monkeypatch.setattr(partition, "min_cut", partition.default)
    with pytest.raises(SmeltError, match="another split"):
        step(compiled, 0, 1)


PROCESS = """
import sys, torch, smelt
import smelt.pipeline.cache.keys
smelt.pipeline.cache.keys._files = lambda package: []  # should somebody save a file of the package meanwhile
torch.manual_seed(0)
layers = [torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.Dropout(0.1)]
model = torch.nn.Sequential(*layers, torch.nn.Linear(16, 8), torch.nn.Softmax(-1))
y = smelt.compile(model, options={"fallback": False})(torch.randn(5, 8))
if sys.argv[1] == "train":
    y.square().sum().backward()
    print(sum(p.grad.double().abs().sum().item() for p in model.parameters()).hex(), smelt.counters["cache_hits"])
"""


def test_another_process_traces_the_same_halves(cache: CacheStore) -> None:
    """The forward of one process and a backward that another traces belong together, in whatever order sets go."""
    shown = []
    environment = {"SMELT_CACHE": None, "SMELT_CACHE_DIR": str(cache.directory)}
    for seed, what in ((None, "run"), ("2", "train"), ("3", "train")):
        if seed is None:
            done = run(PROCESS, arguments=[what], environment=environment)
        else:
            done = run_new(PROCESS, arguments=[what], environment={"PYTHONHASHSEED": seed, **environment})
        assert done.returncode == 0, done.stderr
        shown.append(done.stdout.split())
    assert shown[0] == [] and shown[1][1] == "1" and shown[2] == [shown[1][0], "2"]
