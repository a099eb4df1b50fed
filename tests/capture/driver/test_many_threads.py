"""Many threads and one cold function: one compilation, right answers in every thread, nobody waits for ever."""

import faulthandler
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import smelt

PATIENCE = 120.0  # seconds until a thread that has not come back is taken for stuck


@pytest.fixture(autouse=True)
def cold() -> Iterator[None]:
    smelt.reset()
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # threads take turns in the middle of everything
    yield
    sys.setswitchinterval(usual)


def together(number: int, work: Callable[[int], Any]) -> list[Any]:
    """What `work(0)`, `work(1)`, … give when that many threads start them at once."""
    barrier, found, failures = threading.Barrier(number), [None] * number, []

    def run(index: int) -> None:
        barrier.wait(PATIENCE)
        try:
            found[index] = work(index)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        if thread.is_alive():
            faulthandler.dump_traceback()
            pytest.fail("a thread is stuck")
    if failures:
        raise failures[0]
    return found


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4))


def step(function: Callable[..., Any], x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Output, and gradient of the input alone: parameters gather gradients of all threads."""
    x = x.clone().requires_grad_()
    result = function(x)
    (gradient,) = torch.autograd.grad(result.sin().sum(), [x])
    return result.detach(), gradient


def check(found: list[Any], wanted: list[Any]) -> None:
    for mine, eager in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, eager)


@pytest.mark.parametrize("backend", ["eager", "llvm"])
def test_one_compilation_for_32_threads(backend: str) -> None:
    network = model()
    inputs = [torch.randn(5, 8) for _ in range(32)]
    wanted = [step(network, x) for x in inputs]
    compiled = smelt.compile(network, backend=backend)
    check(together(32, lambda index: step(compiled, inputs[index])), wanted)
    assert smelt.counters["graphs"] == 1
    assert smelt.counters["recompiles"] == 0


def test_every_break_compiles_its_parts_once() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin() * 2
        smelt.graph_break()
        if y.sum() > 1000:
            y = y - 1
        return y.cos() + x

    inputs = [torch.randn(6, 7) for _ in range(32)]
    wanted = [step(function, x) for x in inputs]
    alone = smelt.compile(function)
    step(alone, inputs[0])
    graphs = smelt.counters["graphs"]
    smelt.reset()
    compiled = smelt.compile(function)
    check(together(32, lambda index: step(compiled, inputs[index])), wanted)
    assert smelt.counters["graphs"] == graphs


def test_threads_with_shapes_of_their_own() -> None:
    network = model()
    inputs = [torch.randn(2 + index, 8) for index in range(8)]
    wanted = [step(network, x) for x in inputs]
    compiled = smelt.compile(network)
    check(together(8, lambda index: [step(compiled, inputs[index]) for _ in range(5)][-1]), wanted)
    assert smelt.counters["graphs"] <= 8


def test_gradients_of_all_threads_come_together() -> None:
    """The engine runs backwards of several threads while others still compile."""
    eager, network = model(), model()
    inputs = [torch.randn(300, 8) for _ in range(8)]  # enough rows for the loops to be shared out among cores
    for x in inputs:
        eager(x).sin().sum().backward()
    compiled = smelt.compile(network)
    together(8, lambda index: compiled(inputs[index]).sin().sum().backward())
    for mine, theirs in zip(network.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-4)
    assert smelt.counters["graphs"] == 1


def test_functions_that_call_each_other_compiled() -> None:
    """Two locks in both orders, unless compiling holds none of them while it runs code."""
    first: Any = smelt.compile(lambda x, depth: x.sin() if depth == 0 else second(x.cos(), depth - 1))
    second: Any = smelt.compile(lambda x, depth: x.exp() if depth == 0 else first(x.tanh(), depth - 1))
    x = torch.randn(4, 4)
    found = together(16, lambda index: (first if index % 2 else second)(x, 3))
    check(found, [x.cos().tanh().cos().exp() if index % 2 else x.tanh().cos().tanh().sin() for index in range(16)])


def test_reset_while_others_call() -> None:
    function = lambda x: (x * 2).relu() + 1  # noqa: E731
    compiled = smelt.compile(function, backend="eager")
    x = torch.randn(5, 5)

    def work(index: int) -> torch.Tensor:
        for _ in range(20):
            result = compiled(x)
            if index == 0:
                smelt.reset()
        return result

    check(together(8, work), [function(x)] * 8)
