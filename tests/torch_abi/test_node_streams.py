"""Streams of autograd's nodes: where there is no GPU, on nodes whose memory is written to."""

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import smelt
from smelt import _native
from smelt.torch_abi import node_streams
from smelt.torch_abi.node_layout import EXPERIMENT as NODES
from smelt.torch_abi.node_layout import address_of, why_not_read_nodes
from smelt.torch_abi.node_streams import current_streams, devices_of, streams_of, why_other_stream
from tests.layout import needs_layout

pytestmark = [needs_layout, pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")]

HOST = torch.device("cpu")


def words_of(tensor: torch.Tensor) -> Any:
    """The words of a node's first input."""
    assert why_not_read_nodes() is None
    layout = NODES.result
    assert layout is not None
    first = ctypes.c_uint64.from_address(address_of(tensor.grad_fn) + layout.inputs).value
    return (ctypes.c_uint64 * (layout.input_size // 8)).from_address(first)


@pytest.fixture
def place() -> Iterator[int]:
    """Where inputs have the number of a stream: behind the sizes, a word that is zero on the host."""
    assert why_not_read_nodes() is None
    layout = NODES.result
    assert layout is not None
    words = words_of(torch.ones(2, 3, requires_grad=True) * 2)
    free = [number for number in range(layout.shape_kind // 8 + 1, len(words)) if words[number] == 0]
    yield free[-1] * 8
    _native.set_node_stream(0)


def read(tensor: torch.Tensor) -> Any:
    from smelt.autograd.engine.read_graph import read

    return read((tensor.grad_fn,))


def test_they_are_part_of_what_a_backward_depends_on(place: int) -> None:
    tensor = torch.ones(2, 3, requires_grad=True) * 2
    before = read(tensor).key
    _native.set_node_stream(place)
    assert read(tensor).key == before  # what ran on the default stream has the key it had
    words, keys = words_of(tensor), {before}
    for stream in (7, 8, 1 << 40):
        words[place // 8] = stream
        keys.add(read(tensor).key)
        layout = NODES.result
        assert layout is not None and streams_of(layout, place, address_of(tensor.grad_fn)) == [stream]
    words[place // 8] = 0
    assert len(keys) == 4 and read(tensor).key == before


def test_a_backward_runs_on_the_streams_of_its_forward(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host is taken for a GPU: its first stream is current, then another."""
    gpu = torch.device("cuda", 0)

    class OnGpu:
        def __init__(self, node: Any) -> None:
            self._input_metadata = [type("Metadata", (), {"device": gpu})() for _ in node._input_metadata]

    tensor = torch.ones(2, 3, requires_grad=True) * 2
    reading = read(tensor)
    nodes = [OnGpu(node) for node in reading.nodes]
    assert devices_of(reading.nodes) == frozenset() and devices_of(nodes) == {gpu}
    assert why_other_stream(reading.nodes, reading.addresses) is None
    assert why_other_stream(nodes, reading.addresses) == "it is not known on which streams the forward ran"
    monkeypatch.setattr(node_streams.EXPERIMENT, "result", place)
    for current, stream, told in ((0, 0, False), (9, 0, True), (0, 9, True), (9, 9, True)):  # the leaf's is 0
        monkeypatch.setattr(node_streams, "current_streams", lambda current=current: (current,))
        words_of(tensor)[place // 8] = stream
        assert (why_other_stream(nodes, reading.addresses) is not None) is told
    words_of(tensor)[place // 8] = 0


def test_nodes_are_looked_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks first: where inputs of nodes are is found out before what is in them."""
    monkeypatch.setattr(NODES, "result", None)
    monkeypatch.setattr(NODES, "_reason", None)
    with pytest.raises((RuntimeError, AssertionError)):  # there is no CUDA to make nodes on
        node_streams._find()
    assert NODES.result is not None


def test_other_devices_have_no_streams_that_are_known() -> None:
    tensor = torch.ones(2, device="meta", requires_grad=True) * 2
    reading = read(tensor)
    assert why_other_stream(reading.nodes, reading.addresses) == "gradients are on meta"


def test_without_cuda_nothing_is_asked() -> None:
    assert current_streams() == ()


def test_python_code_runs_on_the_thread_of_its_device() -> None:
    """On the host that is the caller's; nothing of the carrier is looked at, so it may be on any device."""
    from smelt.pipeline.backward.backward_steps import run_inside_engine

    ran: list[int] = []
    engine = torch.autograd.Variable._execution_engine
    run_inside_engine(engine, lambda: ran.append(torch._C._current_graph_task_id()), False, HOST)
    assert len(ran) == 1 and ran[0] != -1


def test_gradients_on_a_device_without_streams_are_the_engines() -> None:
    with smelt.compiled_autograd.enable(smelt.compile()):
        x = torch.ones(3, device="meta", requires_grad=True)
        (x * 2).backward(torch.ones(3, device="meta"))
    assert x.grad is not None and x.grad.is_meta
