"""Whether mutated tensors overlap the memory of others: the one answer that every part uses.

    overlap((x, y), (0,))    →   True: a write to x may be seen in y

Memory that PyTorch did not allocate may be behind any number of storages: two slices of one NumPy array are two. So
address ranges are compared, each storage as a whole: views of one storage count as overlapping, for they also share a
version counter. A file or shared memory may also be mapped at two addresses.
"""

import re
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from smelt import _native
from smelt.base.fast_dataclass import dataclass
from smelt.torch_abi.aoti_shims import connect

# What `_native.overlap` answers beside 0, and None where it does not know where to look. With the second, addresses do
# not overlap, but PyTorch did not allocate both. With the third nothing else is known.
_OVERLAP, _MAYBE_MAPPED_TWICE, _WRITES_NO_MEMORY = 1, 2, 3

Range = tuple[int, int]


def overlap(tensors: Sequence[Any], written: tuple[int, ...]) -> bool:
    """Whether one of the `written` overlaps another of these. What is no tensor overlaps nothing."""
    answer = _native.overlap(tensors, written)  # type: ignore[arg-type]  # a list or a tuple, as all callers have
    if answer is None and connect():  # now C knows where to look
        answer = _native.overlap(tensors, written)  # type: ignore[arg-type]
    if answer is None or answer == _WRITES_NO_MEMORY:
        return _overlap_by_methods(tensors, written)
    return answer == _OVERLAP or (answer == _MAYBE_MAPPED_TWICE and _mapped_twice(tensors, written))


def may_write_no_memory(tensors: Sequence[Any], written: tuple[int, ...]) -> bool:
    """Whether one of the `written` may have no memory; False only if all have some."""
    return _native.overlap(tensors, written) in (None, _WRITES_NO_MEMORY)  # type: ignore[arg-type]


def overlap_between(written: Sequence[torch.Tensor], others: Sequence[Any]) -> bool:
    """Whether one of the `written` overlaps one of the others; they may overlap each other."""
    both = [*written, *others]
    if not overlap(both, tuple(range(len(written)))):
        return False
    end = written_end = 0
    for start, after, is_written in sorted((*memory, place < len(written)) for place, memory in _memory_of_all(both)):
        if start < (end if is_written else written_end):
            return True
        end, written_end = (end, max(written_end, after)) if is_written else (max(end, after), written_end)
    return _mapped_twice(both, tuple(range(len(written))))


def _overlap_by_methods(tensors: Sequence[Any], written: tuple[int, ...]) -> bool:
    """The same where C does not know the layout of tensors: their methods are called."""
    ranges = sorted((*memory, place in written) for place, memory in _memory_of_all(tensors))
    end = written_end = 0
    for start, after, is_written in ranges:
        if start < written_end or (is_written and start < end):
            return True
        end = max(end, after)
        written_end = max(written_end, after) if is_written else written_end
    return _mapped_twice(tensors, written)


def storages(tensors: list[Any]) -> bytes:
    """Which storage each of these tensors has, a word each: one that was given other memory has another word."""
    words = _native.storages(tensors)
    return _storages_as_asked(tensors) if words is None else words


def _storages_as_asked(tensors: list[Any]) -> bytes:
    """The same words where the C part does not know where to look: it is told, or the tensors are asked."""
    words = _native.storages(tensors) if connect() else None
    return struct.pack(f"{len(tensors)}Q", *map(_storage_of, tensors)) if words is None else words


def _storage_of(tensor: Any) -> int:
    has_one = isinstance(tensor, torch.Tensor) and torch._C._has_storage(tensor)
    return tensor.untyped_storage()._cdata if has_one else 0


def memory_of(tensor: torch.Tensor) -> Range:
    """Where the storage of a tensor starts and ends; (0, 0) where it has none."""
    if not torch._C._has_storage(tensor):
        return (0, 0)
    storage = tensor.untyped_storage()
    start, size = storage.data_ptr(), storage.nbytes()
    return (start, start + size) if start and size else (0, 0)


def _memory_of_all(tensors: Sequence[Any]) -> Iterator[tuple[int, Range]]:
    for place, tensor in enumerate(tensors):
        if isinstance(tensor, torch.Tensor) and (memory := memory_of(tensor)) != (0, 0):
            yield place, memory


@dataclass(frozen=True, slots=True)
class _Mapped:
    """A part of a file, or of shared memory, that is mapped into some tensor's memory."""

    file: bytes
    start: int
    end: int
    shared: bool
    place: int


# Addresses, kind (s: shared), offset in the file, device and inode; an inode of 0 is no file.
_LINE = rb"^([0-9a-f]+)-([0-9a-f]+) ...%s ([0-9a-f]+) ([0-9a-f]+:[0-9a-f]+ [1-9][0-9]*)"
_MAPPING, _SHARED = _LINE % b"(.)", _LINE % b"(s)"


def _mapped_twice(tensors: Sequence[Any], written: tuple[int, ...]) -> bool:
    """Whether a written tensor and another map one part of a file at two addresses. Only for memory that PyTorch did
    not allocate; where the system does not list its mappings, False."""
    foreign = [
        (place, memory)
        for place, memory in _memory_of_all(tensors)
        if not tensors[place].untyped_storage().resizable()  # what PyTorch did not allocate it cannot make longer
    ]
    if len(foreign) < 2 or not any(place in written for place, _ in foreign):
        return False
    try:
        with open("/proc/self/maps", "rb") as file:
            listed = file.read()
    except OSError:
        return False
    if not any(_mapped(foreign, re.findall(_SHARED, listed, re.MULTILINE))):
        return False
    mapped = list(_mapped(foreign, re.findall(_MAPPING, listed, re.MULTILINE)))
    return any(
        one.place in written
        and one.place != other.place
        and one.file == other.file
        and (one.shared or other.shared)
        and one.start < other.end
        and other.start < one.end
        for one in mapped
        for other in mapped
    )


def _mapped(tensors: Sequence[tuple[int, Range]], mappings: Sequence[tuple[bytes, ...]]) -> Iterator[_Mapped]:
    """Which parts of which files are mapped into these."""
    for start, end, kind, offset, file in mappings:
        first, after, skipped = int(start, 16), int(end, 16), int(offset, 16)
        for place, (low, high) in tensors:
            if low < after and first < high:
                begin = skipped + max(low, first) - first
                yield _Mapped(file, begin, begin + min(high, after) - max(low, first), kind == b"s", place)
