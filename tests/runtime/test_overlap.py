"""Whether tensors lie in one memory, by addresses: whatever storages they have, and however often memory is mapped."""

import itertools
import mmap
import random
import tempfile
from multiprocessing import shared_memory
from typing import Any

import numpy as np
import pytest
import torch

from smelt import _native
from smelt.runtime import overlap as module
from smelt.runtime.overlap import memory_of, overlap, overlap_between
from smelt.torch_abi.aoti_shims import connect
from tests.layout import needs_layout

FLOAT = 4


def in_numpy(size: int = 32) -> np.ndarray[Any, Any]:
    return np.arange(size, dtype=np.float32)


@needs_layout
def test_the_c_part_knows_where_storages_keep_their_memory() -> None:
    assert connect()
    assert _native.overlap([torch.ones(3), torch.ones(3)], (0,)) == 0


def test_pairs() -> None:
    memory = in_numpy()
    whole = torch.from_numpy(memory)
    first, second, third = (torch.from_numpy(memory[at : at + 8]) for at in (0, 4, 8))
    assert overlap((first, second), (0,))
    assert overlap((first, second), (1,))
    assert not overlap((first, second), ())
    assert not overlap((first, third), (0, 1))
    assert overlap((first, third, whole), (1,))
    assert not overlap((first, third, second.clone()), (0, 1, 2))
    assert overlap((torch.from_numpy(memory[::2]), torch.from_numpy(memory[1::2])), (0,))  # not told apart
    assert not overlap((first, third, whole[:0].clone(), 3, None), (0,))
    assert overlap([first, 1.5, first], (0,))
    assert overlap((torch.from_dlpack(memory[:8]), torch.frombuffer(memory.data, dtype=torch.int32)), (1,))


def test_views_of_one_storage_are_not_told_apart() -> None:
    memory = torch.arange(16.0)
    assert overlap((memory[:8], memory[8:]), (0,))
    assert overlap((memory.data, memory.detach()), (1,))


@needs_layout
def test_a_place_that_there_is_none_of() -> None:
    with pytest.raises(IndexError):
        _native.overlap([torch.ones(2)], (1,))
    with pytest.raises(TypeError):
        _native.overlap({}, (1,))  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [2, 5, 63, 64, 65, 300])
@pytest.mark.parametrize("asked", [False, True])
def test_against_every_pair(count: int, asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if asked:
        monkeypatch.setattr(_native, "overlap", lambda tensors, written: None)
    chance = random.Random(count)
    for _ in range(40):
        memory = in_numpy(count * 12)
        starts = [chance.randrange(count * 12 - 8) for _ in range(count)]
        step = chance.choice([1, 1, 2])
        if chance.random() < 0.5:
            starts = chance.sample(range(0, count * 12 - 8, 8), count)
        tensors = [torch.from_numpy(memory[at : at + chance.randint(0, 8) : step]) for at in starts]
        written = tuple(place for place in range(count) if chance.random() < 0.1)
        ranges = [memory_of(tensor) for tensor in tensors]
        expected = any(
            ranges[one][0] < ranges[other][1] and ranges[other][0] < ranges[one][1]
            for one, other in itertools.product(written, range(count))
            if one != other and 0 not in (*ranges[one], *ranges[other])
        )
        assert overlap(tensors, written) == expected


def test_between_two_lists() -> None:
    memory = in_numpy()
    one, other, third = (torch.from_numpy(memory[at : at + 8]) for at in (0, 4, 8))
    assert not overlap_between([one, other], [torch.from_numpy(memory[12:]), None])
    assert overlap_between([one, third], [other])
    assert not overlap_between([one], [third, third])


def test_shared_memory_that_is_mapped_twice() -> None:
    shared = shared_memory.SharedMemory(create=True, size=64 * FLOAT)
    again = shared_memory.SharedMemory(name=shared.name)
    try:
        one, other = (np.ndarray((64,), np.float32, each.buf) for each in (shared, again))
        first, second, third = torch.from_numpy(one[:32]), torch.from_numpy(other[16:48]), torch.from_numpy(other[40:])
        first[20] = 7
        assert second[4] == 7 and first.data_ptr() != second.data_ptr()
        assert overlap((first, second), (0,))
        assert not overlap((first, third), (0, 1))
        assert not overlap((first, torch.ones(3)), (0, 1))
        del one, other, first, second, third
    finally:
        shared.unlink()
        again.close()
        shared.close()


def test_a_file_that_is_mapped_twice() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(bytes(4 * mmap.PAGESIZE))
        file.flush()
        whole = mmap.mmap(file.fileno(), 4 * mmap.PAGESIZE)
        part = mmap.mmap(file.fileno(), mmap.PAGESIZE, offset=mmap.PAGESIZE)
        copy = mmap.mmap(file.fileno(), mmap.PAGESIZE, access=mmap.ACCESS_COPY)
        first, second, third = (torch.frombuffer(each, dtype=torch.uint8) for each in (whole, part, copy))
        assert overlap((first, second), (1,))
        assert overlap((first, third), (0,))  # pages that were not written yet are the file's
        assert not overlap((second, third), (0, 1))


def test_where_the_system_does_not_say_what_is_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise PermissionError

    monkeypatch.setattr(module, "open", refuse, raising=False)
    memory = in_numpy()
    assert not overlap((torch.from_numpy(memory[:8]), torch.from_numpy(memory[8:])), (0,))
