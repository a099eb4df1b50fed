"""Where PyTorch keeps size and address of a storage, found by experiment, so that one without data can have both.

A device written in Python has storages of no bytes at no address. PyTorch writes files by the size of storages, and
tells them apart by their address, as do programs. `describe` gives a storage both. What is at the address is the
owner's, and nothing else on such a device looks.

    storage → C++ object: …, address, context of who frees it, …, bytes, …
"""

import ctypes
from typing import Any

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.torch_abi.probe import WORD, Experiment, find_place, read_words

_WORDS = 10  # of a storage that are looked at


@dataclass(frozen=True, slots=True)
class StorageLayout:
    """Byte offsets in a storage's C++ object."""

    address: int
    size: int


def find_layout() -> StorageLayout:
    # Memory of Python's: who frees it is not at its address, as it is for PyTorch's own.
    held = [bytearray(size) for size in (24, 40, 72, 136, 264)]
    storages = [torch.frombuffer(each, dtype=torch.uint8).untyped_storage() for each in held]
    rows = [read_words(_body(storage), _WORDS) for storage in storages]
    address = find_place(rows, [storage.data_ptr() for storage in storages], "the address of a storage")
    size = find_place(rows, [storage.nbytes() for storage in storages], "the size of a storage", first=address + 1)
    return StorageLayout(address * WORD, size * WORD)


EXPERIMENT = Experiment(find_layout, lambda layout: None)


def describe(storage: torch.UntypedStorage, size: int, address: int) -> bool:
    """Give a storage without data a size in bytes and an address; False where those places are not known."""
    layout = EXPERIMENT.found
    if layout is None:
        if EXPERIMENT.why_not() is not None:
            return False
        layout = EXPERIMENT.found
        assert layout is not None
    body: int = storage._cdata
    _word(body + layout.address).value = address
    _word(body + layout.size).value = size
    return True


_word = ctypes.c_uint64.from_address


def _body(storage: Any) -> int:
    found: int = storage._cdata
    return found
