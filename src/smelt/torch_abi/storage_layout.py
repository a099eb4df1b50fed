"""Where PyTorch keeps size and address of a storage, found by experiment, so that one without data can have both.

A device written in Python has storages of no bytes at no address. PyTorch writes files by the size of storages, and
tells them apart by their address, as do programs. `describe` gives a storage both. What is at the address is the
owner's, and nothing else on such a device looks.

    storage → C++ object: …, address, context of who frees it, …, bytes, …
"""

import ctypes
import sys
from collections.abc import Sequence
from typing import Any

import torch

from smelt import _native
from smelt.base.fast_dataclass import dataclass
from smelt.torch_abi.probe import WORD, Experiment, NotFound, find_place, only, read_words

_WORDS = 10  # of a storage that are looked at


@dataclass(frozen=True, slots=True)
class StorageLayout:
    """Byte offsets in a storage's C++ object."""

    address: int
    size: int
    context: int  # 0: not known
    release: int  # the function that frees it, which is called with the context; 0: not known


def find_layout() -> StorageLayout:
    # Memory of Python's: who frees it is not at its address, as it is for PyTorch's own.
    held = [bytearray(size) for size in (24, 40, 72, 136, 264)]
    storages = [torch.frombuffer(each, dtype=torch.uint8).untyped_storage() for each in held]
    rows = [read_words(_body(storage), _WORDS) for storage in storages]
    address = find_place(rows, [storage.data_ptr() for storage in storages], "the address of a storage")
    size = find_place(rows, [storage.nbytes() for storage in storages], "the size of a storage", first=address + 1)
    context, release = _find_release(rows, address)
    return StorageLayout(address * WORD, size * WORD, context * WORD, release * WORD)


def _find_release(lent: Sequence[Sequence[int]], address: int) -> tuple[int, int]:
    """Where the function is that frees a storage's memory, and what it is called with; zeros if that is not clear.

    Memory that PyTorch allocated is freed by its address. The function is beside that, one for all such memory, and
    another one for all that was lent by Python."""
    storages = [torch.empty(size, dtype=torch.uint8, device="cpu").untyped_storage() for size in (24, 40, 200)]
    own = [read_words(_body(storage), _WORDS) for storage in storages]
    try:
        context = find_place(own, [storage.data_ptr() for storage in storages], "what frees memory", first=address + 1)
        beside = [place for place in (context - 1, context + 1) if place != address]
        functions = [place for place in beside if _is_one(own, place) and _is_one(lent, place)]
        release = only((place for place in functions if own[0][place] != lent[0][place]), "who frees memory")
    except NotFound:
        return 0, 0
    return context, release


def _is_one(rows: Sequence[Sequence[int]], place: int) -> bool:
    return len({row[place] for row in rows}) == 1 and rows[0][place] > _FIRST_PAGES


_FIRST_PAGES = 65536  # nothing is there


def _install(layout: StorageLayout) -> None:
    _native.set_storage_layout(layout.address, layout.size, layout.context, layout.release)


EXPERIMENT = Experiment(find_layout, _install)


def storages_keep_memory() -> bool:
    """Whether a storage can keep an object of ours as its memory: told to the C part, and tried."""
    if EXPERIMENT.why_not() is not None or not _native.reads_storages():
        return False
    layout = EXPERIMENT.result
    assert layout is not None
    memory = _native.DeviceMemory()
    before = sys.getrefcount(memory)
    tensor = torch._C._acc.create_empty_tensor((3,), torch.float32)
    _native.place_device_memory(tensor, memory, 12)
    storage = tensor.untyped_storage()
    is_right = (storage.nbytes(), storage.data_ptr()) == (12, id(memory)) and sys.getrefcount(memory) == before + 1
    del tensor, storage
    return is_right and sys.getrefcount(memory) == before


def describe(storage: torch.UntypedStorage, size: int, address: int) -> bool:
    """Give a storage without data a size in bytes and an address; False where those places are not known."""
    layout = EXPERIMENT.result
    if layout is None:
        if EXPERIMENT.why_not() is not None:
            return False
        layout = EXPERIMENT.result
        assert layout is not None
    body: int = storage._cdata
    _word(body + layout.address).value = address
    _word(body + layout.size).value = size
    return True


_word = ctypes.c_uint64.from_address


def _body(storage: Any) -> int:
    address: int = storage._cdata
    return address
