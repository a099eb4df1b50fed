"""Who looks at outputs that others lean on: each backward has its own answer, on whatever thread it runs."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import smelt
from smelt.base import events
from smelt.runtime.autograd import output_dependencies
from smelt.runtime.autograd.output_dependencies import GradObservers


def test_two_backwards_at_once_have_each_their_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """One is asked while the other works its answer out, and the other's comes last."""
    observers, task = GradObservers(), threading.local()
    asked, answered = threading.Event(), threading.Event()
    found: dict[str, list[bool]] = {"one": [], "other": []}

    def slowly() -> bool:
        if task.number == 2:
            return False
        asked.set()
        answered.wait(60)
        return True

    monkeypatch.setattr(torch._C, "_current_graph_task_id", lambda: task.number)
    monkeypatch.setattr(output_dependencies, "_asks_for_nonleaf", slowly)

    def one() -> None:
        task.number = 1
        found["one"].append(observers.observed_now())

    def other() -> None:
        task.number = 2
        asked.wait(60)
        found["other"].append(observers.observed_now())
        answered.set()
        first.join(60)
        found["other"].append(observers.observed_now())

    first, second = threading.Thread(target=one), threading.Thread(target=other)
    second.start()
    first.start()
    for thread in (first, second):
        thread.join(120)
    assert found == {"one": [True], "other": [False, False]}


_DEEP = 70  # beyond 60 the engine goes on on a thread of its own


class _Deeper(torch.autograd.Function):
    """Its backward runs another one."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, depth: int, last: Any) -> torch.Tensor:
        ctx.depth, ctx.last = depth, last
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        with torch.enable_grad():
            if ctx.depth == 0:
                ctx.last()
            else:
                x = torch.ones((), requires_grad=True)
                _Deeper.apply(x, ctx.depth - 1, ctx.last).backward()
        return gradient, None, None


@pytest.mark.parametrize("computed", [False, True])
def test_a_backward_on_a_thread_of_the_engine(computed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one that asks for the gradient of what was computed is taken for such a one."""
    answers: list[bool] = []
    asks, threads = output_dependencies._asks_for_nonleaf, set[int]()

    def noting() -> bool:
        threads.add(threading.get_ident())
        answers.append(asks())
        return answers[-1]

    monkeypatch.setattr(output_dependencies, "_asks_for_nonleaf", noting)

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = x.exp()
        return hidden, (hidden * 3).sum()

    compiled = smelt.compile(program)
    x = torch.ones(3, requires_grad=True)
    gradients: list[Any] = []

    def last() -> None:
        hidden, loss = compiled(x)
        gradients.append(torch.autograd.grad(loss, hidden if computed else x)[0])

    _Deeper.apply(torch.ones((), requires_grad=True), _DEEP, last).backward()
    assert torch.allclose(gradients[0], torch.full((3,), 3.0) if computed else 3 * x.detach().exp())
    assert answers == [computed]
    assert threads != {threading.get_ident()}


@pytest.fixture
def said() -> Iterator[list[events.Event]]:
    with events.collect() as found:
        yield found


def test_threads_of_a_pool_tell_who_collects(said: list[events.Event]) -> None:
    def emit(text: str) -> None:
        events.emit("llvm", text)

    for work, text in ((events.carrying(emit), "for us"), (emit, "for nobody")):
        thread = threading.Thread(target=work, args=(text,))
        thread.start()
        thread.join()
    assert [event.text for event in said] == ["for us"]


def test_threads_of_autograd_tell_who_collects(said: list[events.Event]) -> None:
    def last() -> None:
        threads.add(threading.get_ident())
        events.emit("backward", "compiled where the engine first runs it")

    threads: set[int] = set()
    _Deeper.apply(torch.ones((), requires_grad=True), _DEEP, last).backward()
    assert threads != {threading.get_ident()}
    assert [event.channel for event in said] == ["backward"]
