"""Arenas: views of their memory; on GPUs kept by stream, never shared by two, none while a CUDA graph is recorded."""

from typing import Any

import pytest
import torch

from smelt.runtime.cuda.memory import or_spare
from smelt.runtime.program import arenas as arenas_module
from smelt.runtime.program.arenas import Arenas
from tests.program_tables import tensor


def needs(*names: str, size: int = 256) -> Any:
    """What a program needs of an arena, of which it sees a tensor on the first of the devices."""
    devices = [torch.device(name) for name in names]
    return size, devices, lambda: [tensor("a", torch.float32, devices[0], (4,), (1,))]


class Gpus:
    """Which stream is current on each, whether it is recorded, and what was allocated."""

    def __init__(self) -> None:
        self.streams = {-1: 7, 0: 0, 1: 0}
        self.recording = False
        self.blocks: list[torch.device] = []

    def allocate(self, size: int, device: torch.device) -> torch.Tensor:
        self.blocks.append(device)
        return torch.empty(size, dtype=torch.uint8)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Gpus:
    made = Gpus()
    monkeypatch.setattr(arenas_module, "_current_stream", made.streams.__getitem__)
    monkeypatch.setattr(arenas_module, "_aligned_block", made.allocate)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: made.recording)
    return made


def test_the_next_call_on_a_stream_has_the_same_memory(gpus: Gpus) -> None:
    arenas = Arenas()
    acquire = arenas.acquirer(*needs("cuda:0"))
    first = acquire()
    arenas.release(first)
    assert acquire() is first and gpus.blocks == [torch.device("cuda:0")]
    assert acquire() is not first  # while the first has it


def test_streams_share_nothing(gpus: Gpus) -> None:
    arenas = Arenas()
    acquire = arenas.acquirer(*needs("cuda:0"))
    seen = {}
    for stream in (0, 11, 12):
        gpus.streams[0] = stream
        seen[stream] = acquire()
    for stream in (12, 0, 11):  # given back while another stream is current
        gpus.streams[0] = 11
        arenas.release(seen[stream])
    for stream in (11, 12, 0):
        gpus.streams[0] = stream
        assert acquire() is seen[stream]
    assert len({view[0].data_ptr() for view in seen.values()}) == 3


def test_halves_of_a_step_share_the_arenas_of_a_stream(gpus: Gpus) -> None:
    arenas = Arenas()
    forward, backward = (arenas.acquirer(*needs("cuda:0")) for _ in range(2))
    first = forward()
    arenas.release(first)
    second = backward()
    assert second.arena is first.arena
    arenas.release(second)
    gpus.streams[0] = 3
    assert backward().arena is not first.arena


def test_devices_have_streams_of_their_own(gpus: Gpus) -> None:
    arenas = Arenas()
    zero, one = (arenas.acquirer(*needs(device)) for device in ("cuda:0", "cuda:1"))
    first = zero()
    arenas.release(first)
    assert one().arena is not first.arena
    both = arenas.acquirer(*needs("cuda:0", "cuda:1", "cpu"))
    second = both()
    arenas.release(second)
    gpus.streams[1] = 5
    assert both().arena is not second.arena
    assert arenas.acquirer(*needs("cuda"))() and (-1, 7) in arenas.by_streams


def test_programs_on_the_cpu_ask_for_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(arenas_module, "_current_stream", asked)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", asked)
    arenas = Arenas()
    acquire = arenas.acquirer(*needs("cpu"))
    first = acquire()
    arenas.release(first)
    assert acquire() is first and not arenas.by_streams


def test_a_graph_that_is_recorded_has_memory_of_its_own(gpus: Gpus) -> None:
    arenas = Arenas()
    acquire = arenas.acquirer(*needs("cuda:0"))
    kept = acquire()
    arenas.release(kept)
    gpus.recording = True
    recorded = [acquire(), acquire()]
    for each in recorded:
        arenas.release(each)
    assert acquire().arena not in [kept.arena, *(each.arena for each in recorded)]
    gpus.recording = False
    assert acquire() is kept


def test_streams_that_come_and_go(gpus: Gpus) -> None:
    arenas = Arenas()
    acquire = arenas.acquirer(*needs("cuda:0"))
    late = acquire()
    for stream in range(1, 100):
        gpus.streams[0] = stream
        arenas.release(acquire())
    assert len(arenas.by_streams) <= 32
    arenas.release(late)  # of a stream that was given up meanwhile
    gpus.streams[0] = 0
    assert acquire() is not late


def test_arenas_that_have_become_too_small(gpus: Gpus) -> None:
    arenas = Arenas()
    small = arenas.acquirer(*needs("cuda:0"))
    first = small()
    arenas.release(first)
    large = arenas.acquirer(*needs("cuda:0", size=4096))
    second = large()
    assert second.arena.size >= 4096
    arenas.release(second)
    assert small().arena is second.arena


def test_free_arenas_are_let_go_where_memory_is_short(gpus: Gpus) -> None:
    arenas, other = Arenas(), Arenas()
    acquire = arenas.acquirer(*needs("cuda:0"))
    used, spare = acquire(), acquire()
    arenas.release(spare)
    elsewhere = other.acquirer(*needs("cuda:1"))()
    other.release(elsewhere)
    tried: list[int] = []

    def allocate() -> int:
        tried.append(len(tried))
        if len(tried) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return 7

    assert or_spare(allocate) == 7 and tried == [0, 1]
    assert not any(arenas.by_streams.values()) and not any(other.by_streams.values())
    arenas.release(used)  # it was in use meanwhile, and is kept
    assert acquire() is used
    tried.clear()
    with pytest.raises(torch.OutOfMemoryError):
        or_spare(allocate)  # nothing is free
    assert tried == [0]


def test_errors_other_than_of_memory_are_raised_at_once(gpus: Gpus) -> None:
    arenas = Arenas()
    acquire = arenas.acquirer(*needs("cuda:0"))
    kept = acquire()
    arenas.release(kept)
    with pytest.raises(ZeroDivisionError):
        or_spare(lambda: 1 // 0)
    assert acquire() is kept


def test_a_view_begins_at_its_buffer_and_its_own_offset() -> None:
    host = torch.device("cpu")
    views = [
        tensor("whole", torch.float32, host, (8,), (1,), 0, 64),
        tensor("part", torch.float32, host, (2, 2), (4, 2), 1, 64),
    ]
    whole, part = Arenas().acquirer(256, [host], lambda: views)()
    whole.copy_(torch.arange(8.0))
    assert part.tolist() == [[1.0, 3.0], [5.0, 7.0]]
    assert whole.storage_offset() >= 16  # elements before the buffer
