"""Memory that the collector drops: in a thread of the chip's own, half way through a method, beside an error."""

import gc
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from smelt.chips import device_named

ROOT = Path(__file__).parents[2]


class Cycle:
    """Something that only the collector finds."""

    def __init__(self, held: object) -> None:
        self.held = held
        self.itself = self


@pytest.fixture
def collect_by_hand() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_a_thread_of_the_chip_may_drop_memory_while_another_waits_for_it() -> None:
    """In a process of its own: what this is about is that it ends."""
    program = """
        import gc, sys
        sys.path.insert(0, "plugins/sim")
        import torch, smelt
        from smelt.chips import device_named
        from smelt_sim import Sim
        from tests.chips.test_dropped_memory import Cycle

        class Collecting(Sim):
            def _later(self, method, work):
                super()._later(method, lambda: (gc.collect(), work()) and None)

        smelt.register_chip("sim", Collecting())
        gc.disable()
        x = torch.arange(4.0, device="sim")
        before = device_named("sim").allocations
        Cycle(torch.ones(4, device="sim"))
        assert torch.equal(x.cpu(), torch.arange(4.0))
        assert device_named("sim").allocations <= before, device_named("sim").allocations
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("collect_by_hand")
def test_no_method_of_the_chip_is_called_inside_another(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def watched(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            calls.append(f"{name} begins")
            gc.collect()
            found = method(*args)
            calls.append(f"{name} ends")
            return found

        return call

    for name in ("allocate", "free"):
        monkeypatch.setattr(sim, name, watched(name, getattr(sim, name)))
    Cycle(torch.empty(4, device="sim"))
    torch.empty(8, device="sim")
    assert calls[2:6] == ["allocate begins", "allocate ends", "free begins", "free ends"]


def test_an_error_of_the_queue_is_not_lost_with_freed_memory(sim: Any) -> None:
    x = torch.arange(4.0, device="sim")
    dropped = torch.ones(4, device="sim")
    (x + 1).cpu()
    sim.fail("launch", RuntimeError("a kernel was stopped"))
    y = x + 1
    _let_finish(sim)
    del dropped
    with pytest.raises(smelt.SmeltError, match="a kernel was stopped"):
        y.cpu()


def _let_finish(sim: Any) -> None:
    """Wait for the queue without asking for its errors."""
    event = threading.Event()
    sim._queue.put(event.set)
    assert event.wait(60)


def test_an_error_raised_by_free_reaches_the_next_who_asks(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.arange(4.0, device="sim")
    free = sim.free

    def failing(address: int) -> None:
        monkeypatch.undo()
        free(address)
        raise RuntimeError("a kernel was stopped")

    monkeypatch.setattr(sim, "free", failing)
    del x
    with pytest.raises(smelt.SmeltError, match=r"SM071: .* chip 'sim' raised RuntimeError: a kernel was stopped"):
        torch.empty(4, device="sim")
    assert torch.empty(4, device="sim").shape == (4,)


def test_what_is_dropped_is_counted_at_once() -> None:
    device = device_named("sim")
    before = device.allocations
    held = [torch.empty(4, device="sim") for _ in range(5)]
    assert device.allocations == before + 5
    del held
    assert device.allocations == before
