"""Plans at run time: aliasing, graphs that raise, threads, compiler errors, counters, idle frames."""

import contextlib
import gc
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.base.errors import SmeltWarning
from smelt.base.events import counters
from smelt.base.options import config
from smelt.capture import CompiledRegion
from smelt.ir.graph import Traced
from tests.capture.programs import Captured, assert_alike, compare

X = torch.arange(6.0).reshape(2, 3)


def test_inputs_that_share_memory_are_not_reordered() -> None:
    def f(x, y):
        x.add_(1)
        return y * 2

    def reversed_order(traced: Traced) -> Callable[..., Any]:
        def run(x, y):
            out = y * 2  # what a compiler may do: read before the write, as if they lay apart
            x.add_(1)
            return (out,)

        return run

    region = CompiledRegion(reversed_order)
    for make in (lambda: (X.clone(), X.clone()), lambda: (t := X.clone(), t[0]), lambda: (t := X.clone(), t)):
        mine, eager = make(), make()
        assert_alike(region.call(f, *mine), f(*eager))
        assert_alike(mine, eager)


def test_a_graph_that_raises_is_run_by_python_instead() -> None:
    def f(table, index):
        try:
            with torch.no_grad():
                rows = torch.embedding(table, index) * 2
        except IndexError as error:
            print("caught", torch.is_grad_enabled(), len(traceback.extract_tb(error.__traceback__)) > 0)
            return table + 1
        return rows

    runner = compare(f, torch.ones(4, 2, requires_grad=True), torch.tensor([0, 3]))
    compare(f, torch.ones(4, 2, requires_grad=True), torch.tensor([0, 9]), runner=runner)
    assert torch.is_grad_enabled()


def test_a_graph_that_raises_names_the_users_line() -> None:
    def f(table, index):
        y = table * 2
        return torch.embedding(y, index)

    runner = Captured()
    runner(f, torch.ones(4, 2), torch.tensor([0, 1]))
    with pytest.raises(IndexError) as caught:
        runner(f, torch.ones(4, 2), torch.tensor([0, 7]))
    lines = [(entry.name, entry.lineno) for entry in traceback.extract_tb(caught.value.__traceback__)]
    assert ("f", f.__code__.co_firstlineno + 2) in lines


def test_eight_threads_one_compile() -> None:
    runner = Captured()
    barrier = threading.Barrier(8)
    results: list[Any] = [None] * 8

    def f(x):
        y = x * 2
        print("", end="")
        return y + 1

    def work(number: int) -> None:
        barrier.wait()
        results[number] = runner.region.call(f, X + number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(runner.graphs) == 2
    for number, result in enumerate(results):
        torch.testing.assert_close(result, (X + number) * 2 + 1)


def test_recursion_through_the_region() -> None:
    runner = Captured()

    def f(x, n):
        print(n)
        return x if n == 0 else runner.region.call(f, x * 2, n - 1) + 1

    compare(lambda x: f(x, 4), X, runner=runner)


def test_deep_python_recursion() -> None:
    def f(x, n):
        return x + 1 if n == 0 else f(x, n - 1) * 2

    torch.testing.assert_close(Captured()(f, X, 30), f(X, 30))
    torch.testing.assert_close(Captured()(f, X, 150), f(X, 150))


def broken_compiler(traced: Traced) -> Callable[..., Any]:
    raise ValueError("the compiler is ill")


def test_compiler_errors_fall_back_with_one_warning() -> None:
    config.suppress_errors = True

    def f(x):
        return x * 2

    region = CompiledRegion(broken_compiler)
    with pytest.warns(SmeltWarning, match="SM020.*the compiler is ill") as seen:
        for _ in range(3):
            torch.testing.assert_close(region.call(f, X), X * 2)
    assert len(seen) == 1


def test_compiler_errors_raise_if_asked_to() -> None:
    with pytest.raises(ValueError, match="the compiler is ill"):
        CompiledRegion(broken_compiler).call(lambda x: x * 2, X)


@smelt.disable
def opaque(number: int) -> list[int]:
    return [0] * number


def test_what_the_compiler_raises_leaves_the_blocks_that_the_program_is_in() -> None:
    """A warning that is an error is one of the line where the program is: what it is within is left as by any other,
    and the program may handle it."""
    finished: list[int] = []

    def f(x, n):
        try:
            with torch.no_grad(), torch.autocast("cpu"):
                y = x * len(opaque(n))
        finally:
            finished.append(n)
        return x * 2, y

    def handled(x, n):
        try:
            return f(x, n)
        except SmeltWarning as error:
            return str(error)

    x = torch.ones(3, requires_grad=True)
    limit = config.cache_size_limit
    for function in (f, handled):
        finished.clear()
        compiled = smelt.compile(function, backend="eager")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for n in range(1, limit + 1):
                assert compiled(x, n)[0].requires_grad
            with pytest.raises(SmeltWarning, match="SM011") if function is f else contextlib.nullcontext():
                assert "SM011" in compiled(x, limit + 1)
        assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
        assert finished == [*range(1, limit + 2)]
        assert compiled(x, limit + 2)[0].requires_grad


def test_counters_and_reset() -> None:
    def f(x, n):
        y = x * n
        print(end="")
        return y + 1

    before = dict(counters)
    runner = Captured()
    for n in (1, 1, 2):
        runner(f, X, n)
    change = {name: counters[name] - before.get(name, 0) for name in ("calls", "graphs", "graph_breaks", "recompiles")}
    assert change == {"calls": 3, "graphs": 3, "graph_breaks": 2, "recompiles": 1}
    runner.region.reset()
    runner(f, X, 1)
    assert counters["graphs"] - before.get("graphs", 0) == 5


def test_functions_without_tensors_are_left_alone() -> None:
    def helper(names):
        return sorted(names, key=lambda name: name[::-1])

    def f(x):
        y = x * 2
        print(helper(["ab", "ba"]))
        return y

    runner = compare(f, X)
    assert len(runner.graphs) == 1


def test_a_million_calls_are_the_same_as_one() -> None:
    def f(x):
        y = x * 2
        print(end="")
        return y + 1

    runner = Captured()
    for _ in range(20):
        runner.region.call(f, X)
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(300):
        runner.region.call(f, X)
    gc.collect()
    assert len(gc.get_objects()) - before < 50


def test_compiled_code_keeps_no_argument_alive() -> None:
    def f(module, x):
        y = module(x) * 2
        print(end="")
        return y + 1

    runner = CompiledRegion(lambda traced: traced.to_module().forward)
    module, x = torch.nn.Linear(3, 3), X.clone()
    runner.call(f, module, x)
    runner.call(f, module, x)
    watched = [weakref.ref(module), weakref.ref(x), weakref.ref(module.weight)]
    del module, x
    gc.collect()
    assert [reference() for reference in watched] == [None, None, None]


def test_random_numbers_are_drawn_as_in_python() -> None:
    def f(x):
        y = torch.nn.functional.dropout(x, 0.5) + torch.rand(3)
        print(torch.randn(1))
        return y * torch.randn_like(x)

    compare(f, X)
