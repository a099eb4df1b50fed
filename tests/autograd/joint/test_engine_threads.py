"""What the engine records on threads of its own, one for each GPU: it belongs to the backward that is waited for."""

import threading
from typing import Any

import pytest
import torch
from torch import fx

from smelt.autograd.joint.functional_trace import SharingRecorder
from smelt.ir import provenance
from smelt.ir.nodes import backward_node
from smelt.ir.nodes.backward_node import backward_of, gradients
from smelt.ir.tensorspec import TensorSpec


def _fake(recorder: SharingRecorder) -> Any:
    return recorder.placeholder("x", TensorSpec.of(torch.ones(3)))


def _of_backwards(recorder: SharingRecorder) -> dict[str, int | None]:
    return {node.name: backward_of(node) for node in recorder.graph.nodes if node.op == "call_function"}


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """An engine that does what is in the list, on another thread, with the modes of the one that waits."""
    work: list[Any] = []

    def run(*args: Any, **kwargs: Any) -> tuple[torch.Tensor | None, ...]:
        thread = threading.Thread(target=lambda: [each() for each in work])
        thread.start()
        thread.join()
        return ()

    monkeypatch.setattr(backward_node.torch.autograd.graph, "_engine_run_backward", run)
    return work


def test_nodes_are_of_the_backward_that_is_waited_for(engine: list[Any]) -> None:
    recorder = SharingRecorder()
    x = _fake(recorder)

    def record(function: Any) -> None:
        with recorder:
            function(x)

    record(torch.sin)
    engine.append(lambda: record(torch.cos))
    gradients((), (), (), False, False)
    first = _of_backwards(recorder)
    engine[:] = [lambda: record(torch.exp)]
    gradients((), (), (), False, False)
    record(torch.tanh)
    found = _of_backwards(recorder)
    assert first["sin"] is None and first["cos"] is not None
    assert found["exp"] is not None and found["exp"] > first["cos"] and found["tanh"] is None


def test_one_inside_another_is_its_own(engine: list[Any]) -> None:
    recorder = SharingRecorder()
    x = _fake(recorder)

    def inner(*args: Any, **kwargs: Any) -> tuple[()]:
        with recorder:
            torch.exp(x)
        return ()

    def outer() -> None:
        with recorder:
            torch.cos(x)
        backward_node.torch.autograd.graph._engine_run_backward = inner
        gradients((), (), (), False, False)
        with recorder:
            torch.tanh(x)

    engine.append(outer)
    gradients((), (), (), False, False)
    found = _of_backwards(recorder)
    assert found["cos"] == found["tanh"] is not None and found["exp"] is not None and found["exp"] > found["cos"]


def test_origins_are_found_from_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """By autograd's count of operations, which the thread that ran the forward has noted."""
    graph, found = fx.Graph(), []
    node = graph.placeholder("sin")
    provenance.running(node)
    here, number = provenance.this_thread(), torch._C._autograd._get_sequence_nr()

    class Work:
        def _sequence_nr(self) -> int:
            return number

        def name(self) -> str:
            return "SinBackward0"

    monkeypatch.setattr(torch._C, "_current_autograd_node", Work)
    thread = threading.Thread(target=lambda: found.append(provenance.current(here)))
    thread.start()
    thread.join()
    provenance.nothing_runs()
    assert [origin and origin.node for origin in found] == ["sin"]
