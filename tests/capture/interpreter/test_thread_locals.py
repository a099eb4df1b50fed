"""`threading.local` in captured code: read and written as any object, and each thread sees its own."""

import threading
from collections.abc import Callable
from typing import Any

import torch

from tests.capture.programs import Captured

X = torch.arange(3.0)


class Settings(threading.local):
    factor = 2.0

    def __init__(self, offset: float) -> None:
        self.offset = offset
        self.calls = 0


def _in_thread(function: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def test_attributes_are_read_written_and_deleted_without_a_break() -> None:
    local = threading.local()
    local.scale, local.gone = 2.0, 1
    runner = Captured()

    def program(x: torch.Tensor) -> torch.Tensor:
        local.calls = getattr(local, "calls", 0) + 1
        local.last = x + 1
        if hasattr(local, "gone"):
            del local.gone
        return x * local.scale

    for calls in (1, 2, 3):
        assert torch.equal(runner(program, X), X * 2)
        assert local.calls == calls and torch.equal(local.last, X + 1) and not hasattr(local, "gone")
    local.scale = 5.0
    assert torch.equal(runner(program, X), X * 5)
    assert runner.breaks == []


def test_each_thread_has_its_own_values() -> None:
    local = threading.local()
    local.scale = 2.0
    runner = Captured()

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * getattr(local, "scale", -1.0)

    def elsewhere() -> list[torch.Tensor]:
        first = runner(program, X)
        local.scale = 7.0
        return [first, runner(program, X), runner(program, X)]

    for _ in range(3):
        assert torch.equal(runner(program, X), X * 2)
    for _ in range(2):
        unset, *others = _in_thread(elsewhere)
        assert torch.equal(unset, -X) and all(torch.equal(each, X * 7) for each in others)
    assert torch.equal(runner(program, X), X * 2)
    assert runner.breaks == []


def test_writes_go_to_the_thread_that_makes_the_call() -> None:
    local = threading.local()
    runner = Captured()

    def program(x: torch.Tensor) -> torch.Tensor:
        local.result = x + 1
        return x

    def elsewhere() -> torch.Tensor:
        runner(program, X * 2)
        return local.result

    runner(program, X)
    assert torch.equal(_in_thread(elsewhere), X * 2 + 1)
    assert torch.equal(local.result, X + 1)


def test_subclasses_begin_anew_in_each_thread() -> None:
    settings = Settings(1.0)
    runner = Captured()

    def program(x: torch.Tensor) -> torch.Tensor:
        settings.calls += 1
        return x * settings.factor + settings.offset

    for _ in range(2):
        assert torch.equal(runner(program, X), X * 2 + 1)
    settings.offset = 4.0
    assert torch.equal(runner(program, X), X * 2 + 4)
    assert torch.equal(_in_thread(lambda: runner(program, X)), X * 2 + 1)
    assert settings.calls == 3 and _in_thread(lambda: settings.calls) == 0
    assert runner.breaks == []
