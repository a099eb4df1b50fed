"""Programs in which smelt and `torch.compile` are at work at once: `SCENARIOS[name]()` runs one.

Each in a process of its own: what `torch.compile` does to a process stays, and what goes wrong here may never return.
"""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

import smelt

SCENARIOS: dict[str, Callable[[], None]] = {}


def scenario(function: Callable[[], None]) -> Callable[[], None]:
    SCENARIOS[function.__name__] = function
    return function


class Counting:
    """A backend of `torch.compile` that runs the graph as it is, and counts graphs."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.graphs += 1
        return graph.forward


def part(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * 2 + x


def check(function: Callable[..., Any], expected: Callable[..., Any], *, times: int = 3) -> None:
    for round in range(times):
        x = torch.randn(4 + round // 2, 3)
        torch.testing.assert_close(function(x), expected(x))


def eager(x: torch.Tensor) -> torch.Tensor:
    return part(x + 1).cos() - part(x)


@scenario
def smelt_calls_torch() -> None:
    for backend in ("eager", "aot_eager", Counting()):
        inner = torch.compile(part, backend=backend)

        @smelt.compile
        def outer(x: torch.Tensor, inner: Any = inner) -> torch.Tensor:
            return inner(x + 1).cos() - inner(x)

        before = smelt.counters["graphs"]
        check(outer, eager)
        assert smelt.counters["graphs"] > before
        if isinstance(backend, Counting):
            assert backend.graphs > 0, "torch.compile compiled nothing"


@scenario
def smelt_calls_inductor() -> None:
    inner = torch.compile(part)
    outer = smelt.compile(lambda x: inner(x + 1).cos() - inner(x))
    check(outer, eager)


@scenario
def torch_calls_smelt() -> None:
    inner = smelt.compile(part)
    backend = Counting()
    outer = torch.compile(lambda x: inner(x + 1).cos() - inner(x), backend=backend)
    check(outer, eager)
    assert backend.graphs > 0 and smelt.counters["graphs"] > 0
    alone = torch.compile(inner, backend=Counting())  # nothing of it is torch.compile's
    check(alone, part)
    torch._dynamo.reset()
    check(outer, eager)
    smelt.reset()
    check(outer, eager)


@scenario
def nested_thrice() -> None:
    backend = Counting()
    lowest = torch.compile(part, backend=backend)
    middle = smelt.compile(lambda x: lowest(x + 1) * 2)
    upper = torch.compile(lambda x: middle(x) - lowest(x), backend=backend)
    top = smelt.compile(lambda x: upper(x).tanh() + middle(x))

    def expected(x: torch.Tensor) -> torch.Tensor:
        return (part(x + 1) * 2 - part(x)).tanh() + part(x + 1) * 2

    check(upper, lambda x: part(x + 1) * 2 - part(x))
    check(top, expected, times=6)
    check(upper, lambda x: part(x + 1) * 2 - part(x), times=6)
    assert not smelt._native.hook_installed()


@scenario
def modules() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    ways = [
        torch.compile(smelt.compile(model), backend="eager"),
        smelt.compile(torch.compile(model, backend="eager")),
        smelt.compile(lambda x: torch.compile(model, backend="aot_eager")(x)),
    ]
    for each in ways:
        check(each, model)
    part_of = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.GELU())
    whole = torch.nn.Sequential(part_of, torch.nn.Linear(3, 3))
    expected = [whole(x) for x in (torch.ones(4, 3), torch.zeros(2, 3))]
    part_of.compile(backend="eager")
    compiled = smelt.compile(whole)
    for x, right in zip((torch.ones(4, 3), torch.zeros(2, 3)), expected, strict=True):
        torch.testing.assert_close(compiled(x), right)
    check(compiled, whole)


@scenario
def smelt_as_backend_inside_smelt() -> None:
    inner = torch.compile(part, backend="smelt")
    outer = smelt.compile(lambda x: inner(x + 1).cos() - inner(x))
    check(outer, eager)
    check(inner, part)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.1),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
    "fused": lambda parameters: torch.optim.Adam(parameters, lr=0.1, fused=True),
    "foreach": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, foreach=True),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.1),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
    "RAdam": lambda parameters: torch.optim.RAdam(parameters, lr=0.1),
}


def trained(make: Callable[[Any], torch.optim.Optimizer], compile: Callable[..., Any]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    optimizer = make(model.parameters())

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    compiled = compile(step)
    losses = [compiled(torch.full((2, 3), float(i))) for i in range(4)]
    return [*losses, *(p.detach() for p in model.parameters())]


@scenario
def optimizers_beside_a_decorator() -> None:
    torch.compile(part, backend="eager")  # never called
    for name, make in OPTIMIZERS.items():
        expected = trained(make, lambda step: step)
        before = smelt.counters["graph_breaks"]
        torch.testing.assert_close(trained(make, smelt.compile), expected)
        assert smelt.counters["graph_breaks"] == before, f"{name} breaks where torch.compile has been used"


@scenario
def training_steps() -> None:
    """A whole step in `torch.compile` round a model of smelt's, and the other way round."""

    def torch_step(step: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(step, backend="aot_eager")

    expected = trained(OPTIMIZERS["SGD"], lambda step: step)
    torch.testing.assert_close(trained(OPTIMIZERS["SGD"], torch_step), expected)
    torch.testing.assert_close(trained(OPTIMIZERS["SGD"], smelt.compile), expected)

    for wrap, around in ((smelt.compile, torch_step), (torch_step, smelt.compile)):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
        wrapped, optimizer = wrap(model), OPTIMIZERS["SGD"](model.parameters())

        def step(x: torch.Tensor, wrapped: Any = wrapped, optimizer: Any = optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = wrapped(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        compiled = around(step)
        losses = [compiled(torch.full((2, 3), float(i))) for i in range(4)]
        torch.testing.assert_close([*losses, *(p.detach() for p in model.parameters())], expected)


@scenario
def exceptions_cross() -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 2:
            raise ValueError("two")
        return part(x)

    def outer_of(inner: Callable[..., Any]) -> Callable[..., Any]:
        def outer(x: torch.Tensor) -> torch.Tensor:
            try:
                return inner(x) + 1
            except ValueError as error:
                assert str(error) == "two"
                return x - 1

        return outer

    for inner, compile in (
        (torch.compile(fails, backend="eager"), smelt.compile),
        (smelt.compile(fails), lambda function: torch.compile(function, backend="eager")),
    ):
        compiled = compile(outer_of(inner))
        for size in (3, 2, 3, 2, 2, 4):
            x = torch.randn(size, 3)
            torch.testing.assert_close(compiled(x), outer_of(fails)(x))
        for _ in range(2):
            with contextlib.suppress(ValueError):
                inner(torch.ones(2, 3))
                raise AssertionError("it does not raise")
    assert not smelt._native.hook_installed()
    check(smelt.compile(part), part)
    check(torch.compile(part, backend="eager"), part)


@scenario
def generators() -> None:
    inner = torch.compile(part, backend="eager")

    def pieces(x: torch.Tensor) -> Iterator[torch.Tensor]:
        for row in x:
            yield inner(row)

    outer = smelt.compile(lambda x: sum(pieces(x)) + 1)
    check(outer, lambda x: sum(part(row) for row in x) + 1)

    compiled = smelt.compile(part)

    def others(x: torch.Tensor) -> Iterator[torch.Tensor]:
        for row in x:
            yield compiled(row)

    check(torch.compile(lambda x: sum(others(x)) + 1, backend="eager"), lambda x: sum(part(row) for row in x) + 1)


@scenario
def disabled_functions() -> None:
    kept = torch.compiler.disable(part)
    check(smelt.compile(lambda x: kept(x + 1).cos() - kept(x)), eager)
    away = smelt.disable(part)
    check(torch.compile(lambda x: away(x + 1).cos() - away(x), backend="eager"), eager)
    with smelt.disable():
        check(torch.compile(smelt.compile(part), backend="eager"), part)
    with torch.compiler.set_stance("force_eager"):
        inner = torch.compile(part, backend="eager")
        check(smelt.compile(lambda x: inner(x + 1).cos() - inner(x)), eager)


@scenario
def compiled_inside() -> None:
    """`torch.compile` called, and its modules imported, while a function of smelt runs."""

    def function(x: torch.Tensor) -> torch.Tensor:
        import torch._dynamo

        torch._dynamo.graph_break()
        return torch.compile(part, backend="eager")(x + 1).cos() - part(x)

    check(smelt.compile(function), eager)


@scenario
def threads() -> None:
    """Hooks come and go on two threads in any order."""
    failures: list[BaseException] = []
    stop = threading.Event()

    def repeat(body: Callable[[], None]) -> None:
        try:
            while not stop.is_set():
                body()
        except BaseException as error:
            failures.append(error)

    both = torch.compile(part, backend="eager")
    mixed = smelt.compile(lambda x: both(x + 1).cos() - both(x))
    other = smelt.compile(part)
    turned = torch.compile(lambda x: other(x + 1).cos() - other(x), backend="eager")
    strict = torch.compile(part, backend="eager", fullgraph=True)
    broken = smelt.compile(lambda x: (smelt.graph_break(), part(x))[1])
    bodies: list[Callable[[], None]] = [
        lambda: check(mixed, eager, times=1),
        lambda: check(turned, eager, times=1),
        lambda: check(broken, part, times=1),
        lambda: check(strict, part, times=1),
        lambda: check(part, part, times=1),
    ]
    workers = [threading.Thread(target=repeat, args=(body,), daemon=True) for body in bodies]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    for worker in workers:
        worker.start()
    stop.wait(2)
    stop.set()
    for worker in workers:
        worker.join(120)
        assert not worker.is_alive(), "a thread never returns"
    sys.setswitchinterval(before)
    assert not failures, failures
    for body in bodies:
        body()
    assert not smelt._native.hook_installed()
