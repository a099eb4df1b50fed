"""`options={"compile": "background"}`: eager until the code is there, and the same results before and after."""

import copy
import gc
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.base.errors import SmeltError
from smelt.pipeline import backends, background
from tests.processes import PLAIN, run, run_new

BACKGROUND = {"compile": "background"}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    smelt.reset()
    yield
    smelt.reset()


class Gate:
    """While it is closed the thread that compiles is busy with something else."""

    def __init__(self) -> None:
        self._open = threading.Event()
        background._worker.submit(self._open.wait)

    def open(self) -> None:
        """Let it compile all that it was asked for."""
        self._open.set()
        background.wait()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


def wave(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x.sin() * y).relu().sum(-1)


def test_runs_in_eager_until_the_code_is_there(gate: Gate) -> None:
    compiled, x, y = smelt.compile(wave, options=BACKGROUND), torch.randn(4, 8), torch.randn(4, 8)
    assert compiled(x, y).equal(wave(x, y)) and smelt.counters["kernels_built"] == 0
    assert smelt.counters["graphs"] == 1
    gate.open()
    assert smelt.counters["kernels_built"] == 1
    torch.testing.assert_close(compiled(x, y), wave(x, y))
    assert smelt.counters["graphs"] == 1 and "recompiles" not in smelt.counters


def test_trains_as_eager_does_before_and_after(gate: Gate) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, 2))
    reference = copy.deepcopy(model)
    compiled = smelt.compile(model, options=BACKGROUND)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (model, reference)]
    for number in range(6):
        if number == 3:
            assert smelt.counters["backwards"] == 0
            gate.open()
            assert smelt.counters["backwards"] == 1
        x, losses = torch.randn(5, 8), []
        for called, optimizer in zip((compiled, reference), optimizers, strict=True):
            loss = called(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss)
        torch.testing.assert_close(*losses)
    assert smelt.counters["backwards"] == 1
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, reference.state_dict()[name])


def test_compiles_the_code_that_blocking_compiles() -> None:
    x, y = torch.randn(4, 8, requires_grad=True), torch.randn(4, 8)
    compiled = smelt.compile(wave, options=BACKGROUND)
    compiled(x, y)
    background.wait()
    compiled(x, y).sum().backward()
    kernels, grad, x.grad = smelt.counters["kernels_built"], x.grad, None
    smelt.reset()
    smelt.compile(wave)(x, y).sum().backward()
    assert kernels == smelt.counters["kernels_built"] == 2
    assert grad is not None and x.grad is not None and grad.equal(x.grad)


def test_inputs_are_written_as_in_eager(gate: Gate) -> None:
    def accumulate(total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        total.add_(x.exp())
        return total * 2

    compiled, total, expected = smelt.compile(accumulate, options=BACKGROUND), torch.zeros(6), torch.zeros(6)
    for number in range(4):
        if number == 2:
            gate.open()
        x = torch.randn(6)
        torch.testing.assert_close(compiled(total, x), accumulate(expected, x))
        torch.testing.assert_close(total, expected)
    memory, same = torch.arange(4.0), torch.arange(4.0)
    torch.testing.assert_close(compiled(memory[:3], memory[1:]), accumulate(same[:3], same[1:]))  # they overlap


def test_grad_mode_and_autocast_are_those_of_the_call() -> None:
    linear, x = nn.Linear(8, 8), torch.randn(2, 8)
    compiled = smelt.compile(linear, options=BACKGROUND)
    for _ in range(2):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            result = compiled(x)
            assert result.dtype == torch.bfloat16 and not result.requires_grad
            torch.testing.assert_close(result, linear(x))
        with torch.inference_mode():
            assert compiled(x).is_inference()
        background.wait()


def test_exceptions_are_those_of_the_function(gate: Gate) -> None:
    def pick(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return x[at] * 2

    compiled = smelt.compile(pick, options=BACKGROUND)
    for _ in range(2):
        assert compiled(torch.ones(3), torch.tensor([1])).tolist() == [2.0]
        with pytest.raises(IndexError, match="out of bounds"):
            compiled(torch.ones(3), torch.tensor([7]))
        gate.open()


def test_what_cannot_be_compiled_stays_eager(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object, **settings: object) -> None:
        raise RuntimeError("no code today")

    monkeypatch.setattr(backends, "compile_llvm", broken)
    compiled, x, y = smelt.compile(wave, options=BACKGROUND), torch.randn(4, 8), torch.randn(4, 8)
    compiled(x, y)
    with pytest.warns(UserWarning, match="SM020: a graph could not be compiled .* RuntimeError: no code today"):
        gate.open()
    assert compiled(x, y).equal(wave(x, y))


def test_errors_that_are_asked_for_are_raised_by_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object, **settings: object) -> None:
        raise SmeltError("SM030", "no code today")

    monkeypatch.setattr(backends, "compile_llvm", broken)
    with pytest.raises(SmeltError, match="no code today"):
        smelt.compile(wave, options={**BACKGROUND, "fallback": False})(torch.randn(4, 8), torch.randn(4, 8))


def test_threads_share_one_compilation(gate: Gate) -> None:
    compiled, results = smelt.compile(wave, options=BACKGROUND), list[bool]()

    def work() -> None:
        for number in range(20):
            x, y = torch.randn(4, 8), torch.randn(4, 8)
            results.append(torch.allclose(compiled(x, y), wave(x, y), atol=1e-6))
            if number == 5:
                started.wait()

    started = threading.Barrier(5)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    started.wait()
    gate.open()
    for thread in threads:
        thread.join()
    assert len(results) == 80 and all(results)
    assert smelt.counters["graphs"] == smelt.counters["kernels_built"] == 1


def test_reset_waits_and_drops_what_was_compiled(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, compile_llvm = threading.Event(), backends.compile_llvm

    def slowly(*arguments: Any, **settings: Any) -> Any:
        begun.set()
        return compile_llvm(*arguments, **settings)

    monkeypatch.setattr(backends, "compile_llvm", slowly)
    compiled, x, y = smelt.compile(wave, options=BACKGROUND), torch.randn(4, 8), torch.randn(4, 8)
    compiled(x, y)
    gate._open.set()
    begun.wait()
    smelt.reset()
    assert not background._worker.is_busy and not smelt.counters
    torch.testing.assert_close(compiled(x, y), wave(x, y))
    background.wait()
    assert smelt.counters["graphs"] == smelt.counters["kernels_built"] == 1


def test_a_model_that_is_dropped_is_not_compiled(gate: Gate) -> None:
    model = smelt.compile(nn.Linear(4, 4), options=BACKGROUND)
    model(torch.ones(2, 4))
    weight = weakref.ref(model.weight)
    del model
    gc.collect()
    assert weight() is None
    gate.open()
    assert smelt.counters["joint_graphs"] == 0


def test_the_default_dtype_changes_after_the_compilation() -> None:
    def shifted(x: torch.Tensor) -> torch.Tensor:
        return x + torch.zeros(3)

    compiled, x = smelt.compile(shifted, options=BACKGROUND), torch.ones(3)
    compiled(x)
    try:
        torch.set_default_dtype(torch.float64)
        assert smelt.counters["kernels_built"] == 1  # it waited
        assert compiled(x).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    background.wait()
    assert compiled(x).dtype == torch.float32


def test_settings_that_change_meanwhile_start_another_compilation(gate: Gate) -> None:
    compiled, x, y = smelt.compile(wave, options=BACKGROUND), torch.randn(4, 8), torch.randn(4, 8)
    compiled(x, y)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high" if before == "highest" else "highest")
        gate.open()
        assert smelt.counters["kernels_built"] == 0
    finally:
        torch.set_float32_matmul_precision(before)
    compiled(x, y)
    background.wait()
    assert smelt.counters["kernels_built"] == 1


def test_new_sizes_run_in_eager_until_their_version_is_there() -> None:
    compiled = smelt.compile(wave, options=BACKGROUND)
    for rows in (4, 5):
        x, y = torch.randn(rows, 8), torch.randn(rows, 8)
        compiled(x, y)
        background.wait()
    before, gate = smelt.counters["sizes_bound"], Gate()
    for rows in (6, 7):
        x, y = torch.randn(rows, 8), torch.randn(rows, 8)
        assert compiled(x, y).equal(wave(x, y)) and compiled(x, y).equal(wave(x, y))
    assert smelt.counters["sizes_bound"] == before
    gate.open()
    for _ in range(2):
        for rows in (6, 7):
            x, y = torch.randn(rows, 8), torch.randn(rows, 8)
            torch.testing.assert_close(compiled(x, y), wave(x, y))
            background.wait()
    assert smelt.counters["sizes_bound"] == before + 2 and smelt.counters["graphs"] == 2


def test_sizes_that_data_decide_are_compiled_in_parts(gate: Gate) -> None:
    def positive(x: torch.Tensor) -> torch.Tensor:
        return (x[x > 0] * 2).exp().sum()

    compiled = smelt.compile(positive, fullgraph=True, options=BACKGROUND)
    for _ in range(3):
        x = torch.randn(20)
        torch.testing.assert_close(compiled(x), positive(x))
        gate.open()
    assert smelt.counters["kernels_built"] > 0


def test_graph_breaks_and_explanations() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x.sin() * 2
        if y.sum() > 0:
            return y + 1
        return y - 1

    compiled, x = smelt.compile(broken, options=BACKGROUND), torch.randn(8)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), broken(x))
        background.wait()
    assert smelt.counters["kernels_built"] == 2
    assert smelt.explain(wave, options=BACKGROUND)(torch.ones(2, 2), torch.ones(2, 2)).kernel_count == 1


@pytest.mark.parametrize("wait", [lambda: torch.use_deterministic_algorithms(True), lambda: None])
def test_deterministic_algorithms_wait_for_the_code(wait: Callable[[], None]) -> None:
    wait()
    try:
        deterministic = torch.are_deterministic_algorithms_enabled()
        gate = None if deterministic else Gate()
        smelt.compile(wave, options=BACKGROUND)(torch.ones(2, 2), torch.ones(2, 2))
        assert smelt.counters["kernels_built"] == int(deterministic)
        if gate is not None:
            gate.open()
    finally:
        torch.use_deterministic_algorithms(False)


def test_unknown_values_are_refused() -> None:
    with pytest.raises(SmeltError, match="unknown compile 'later'"):
        smelt.compile(wave, options={"compile": "later"})


LEAVING = """
import warnings
warnings.simplefilter("always")
model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()) for _ in range(20)])
compiled = smelt.compile(model, options={"compile": "background"})
print(compiled(torch.ones(2, 8)).shape)
"""


def test_a_process_may_end_while_it_compiles() -> None:
    done = run_new(PLAIN + LEAVING)
    assert done.returncode == 0 and not done.stderr and done.stdout == "torch.Size([2, 8])\n"


def test_a_child_process_compiles_for_itself() -> None:
    done = run(
        """
import os
from smelt.pipeline import background
compiled, x = smelt.compile(lambda x: x.sin() + 1, options={"compile": "background"}), torch.ones(3)
background._worker._jobs.clear()
compiled(x)
child = os.fork()
for _ in range(2):
    compiled(x)
    background.wait()
print(smelt.counters["kernels_built"], torch.allclose(compiled(x), x.sin() + 1), flush=True)
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
"""
    )
    assert done.returncode == 0 and done.stdout.splitlines() == ["1 True", "1 True"], done.stderr


def test_nothing_is_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        smelt.compile(wave, options=BACKGROUND)(torch.ones(2, 2), torch.ones(2, 2))
        background.wait()
