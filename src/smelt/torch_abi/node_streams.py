"""The stream that was current when a node of autograd's graph was made, found by experiment on a GPU.

    why_other_stream(reading.nodes, reading.addresses)   →   None: all were made on what is current here and now

PyTorch's engine runs a node's backward on the stream of its forward, and makes the caller's streams wait at the end.
Python is not told that stream, and a backward that runs in the engine's place runs on the current one. So it may do so
only where all nodes were made on that; the numbers of streams are part of what `_native.read_graph` returns.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from smelt import _native
from smelt.device.host_library import on_host
from smelt.torch_abi.node_layout import EXPERIMENT as NODES
from smelt.torch_abi.node_layout import NodeLayout, address_of
from smelt.torch_abi.probe import WORD, Experiment, NotFound, find_place, read_words, try_words

_WORD = (1 << 64) - 1


def current_streams() -> tuple[int, ...]:
    """The numbers of the current streams, of one GPU after the other; () as long as CUDA is not in use."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return ()
    return tuple([torch._C._cuda_getCurrentStream(gpu)[0] & _WORD for gpu in range(torch.cuda.device_count())])


def why_not_read_streams() -> str | None:
    """Teach the C part where to look, once; or why that cannot be found out."""
    if EXPERIMENT.result is None and torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is being recorded, and it is not known yet where nodes keep their streams"
    reason = EXPERIMENT.why_not()
    return reason and f"the streams of autograd's nodes cannot be read in this PyTorch: {reason}"


def devices_of(nodes: Iterable[Any]) -> frozenset[torch.device]:
    """The devices besides the host that gradients are on."""
    devices = (metadata.device for node in nodes for metadata in node._input_metadata)
    return frozenset(device for device in devices if not on_host(device))


def why_other_stream(nodes: Sequence[Any], addresses: bytes) -> str | None:
    """Why a backward of these nodes cannot run on the current streams."""
    devices = devices_of(nodes)
    if not devices:
        return None
    if any(device.type != "cuda" for device in devices):
        return f"gradients are on {', '.join(sorted({device.type for device in devices}))}"
    layout, place, current = NODES.result, EXPERIMENT.result, current_streams()
    if layout is None or place is None:
        return "it is not known on which streams the forward ran"
    for node, address in zip(nodes, memoryview(addresses).cast("Q"), strict=True):
        for metadata, stream in zip(node._input_metadata, streams_of(layout, place, address), strict=True):
            if not on_host(metadata.device) and stream != current[metadata.device.index]:
                return "a part of the forward ran on another stream than the one that is current"
    return None


def streams_of(layout: NodeLayout, place: int, address: int) -> list[int]:
    """The stream of each input of a node."""
    first, count = read_words(address + layout.inputs, 2)
    count &= 0xFFFFFFFF
    return [read_words(first + number * layout.input_size + place, 1)[0] for number in range(count)]


def _find() -> int:
    """Where an input has it: nodes on three streams differ there."""
    reason, layout = NODES.why_not(), NODES.result
    if layout is None:
        raise NotFound(f"inputs of nodes: {reason}")
    leaf = torch.empty(2, 3, device="cuda", requires_grad=True)
    streams = [torch.cuda.current_stream(), *(torch.cuda.Stream() for _ in range(3))]  # type: ignore[no-untyped-call]
    nodes = []
    for stream in streams:
        with torch.cuda.stream(stream):
            nodes.append(leaf.unsqueeze(0).grad_fn)  # a view: nothing runs on the stream
    rows = [_input_words(node, layout) for node in nodes]
    return find_place(rows, [stream.stream_id & _WORD for stream in streams], "streams of inputs") * WORD


def _input_words(node: Any, layout: NodeLayout) -> list[int]:
    return try_words(try_words(address_of(node) + layout.inputs, 1)[0], layout.input_size // WORD)


EXPERIMENT = Experiment(_find, _native.set_node_stream)
