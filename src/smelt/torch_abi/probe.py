"""Where PyTorch keeps something in memory, found by experiment: the technique, and the switch that turns it off.

Make objects that differ in one property, read the words they are made of, and look for the one place where exactly that
difference shows. If there is none, or several, `NotFound` says what was looked for, and nothing is assumed.

    tensors = [torch.empty(3), torch.empty(3, 4), torch.empty(3, 4, 5)]
    rows = [read_words(tensor._cdata, 32) for tensor in tensors]
    find_place(rows, [tensor.dim() for tensor in tensors], "the number of dimensions")   →   its offset, in words

What a guess points to is read by way of the kernel, which says what cannot be read (`try_words`). An `Experiment` is
done once in a process, when it is first needed. With the environment variable SMELT_NO_LAYOUT=1 none is done: guards
ask tensors, backwards run in the engine, Python makes library calls, and all of that is slower.
"""

import ctypes
import functools
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

import torch

from smelt import _native
from smelt.ir.nodes.ambient import default_devices, without_default_devices

WORD = 8
SWITCH = "SMELT_NO_LAYOUT"
_PAGE = 4096  # the smallest there is
_Found = TypeVar("_Found")
_Place = TypeVar("_Place")


class NotFound(Exception):
    """No place shows the difference that was looked for, or several do."""


def why_not_probe() -> str | None:
    """Why this process does not look at PyTorch's memory; None if it may."""
    if os.environ.get(SWITCH, "0") not in ("", "0"):
        return f"switched off by {SWITCH}"
    if sys.implementation.name != "cpython" or os.name != "posix" or ctypes.sizeof(ctypes.c_void_p) != WORD:
        return "not a CPython of 64 bits on a POSIX system"
    return None


class Experiment(Generic[_Found]):
    """One thing that is found out about PyTorch, once in a process. `find` returns it or raises `NotFound`; `install`
    gives it to the C part."""

    def __init__(self, find: Callable[[], _Found], install: Callable[[_Found], object]) -> None:
        self.find, self.install = find, install
        self.result: _Found | None = None
        self._reason: str | None = None  # why nothing was found

    def why_not(self) -> str | None:
        """Why nothing is known; None if it was found. Done when first asked; under a mode tensors are not what they
        seem, so not then but when asked again."""
        if self.result is not None:
            return None
        if self._reason is None:
            reason = why_not_probe()
            if reason is None:
                if default_devices() is None or torch._C._len_torch_dispatch_stack():
                    return "a mode is active"
                reason = _native.preserving_state(self._do)
            self._reason = reason
        return self._reason

    def _do(self) -> str | None:
        try:
            with without_default_devices(), torch._C._InferenceMode(False), torch.enable_grad():
                result = self.find()
        except NotFound as missing:
            return str(missing)
        except AttributeError as missing:  # this PyTorch lacks what the experiment asks it
            return str(missing)
        self.install(result)
        self.result = result
        return None


def find_place(rows: Sequence[Sequence[int]], wanted: Sequence[int], what: str, first: int = 0) -> int:
    """The one place, from `first` on, at which each row has what is wanted of it."""
    pairs = list(zip(rows, wanted, strict=True))
    places = range(first, min(map(len, rows)))
    return only((place for place in places if all(row[place] == value for row, value in pairs)), what)


def only(places: Iterable[_Place], what: str) -> _Place:
    """The one place there is."""
    fitting = list(places)
    if len(fitting) != 1:
        raise NotFound(f"{what}: {len(fitting)} places fit")
    return fitting[0]


def find_body(tensors: Sequence[torch.Tensor]) -> int:
    """How many bytes into its Python object a tensor has the address of its C++ object, the body."""
    rows = [read_words(id(tensor), 6) for tensor in tensors]
    return find_place(rows, [tensor._cdata for tensor in tensors], "the tensor inside a Python object", first=2) * WORD


def read_words(address: int, count: int) -> list[int]:
    """Words of an object that is there, and is that long."""
    return list((ctypes.c_uint64 * count).from_address(address))


def read_bytes(address: int, count: int) -> bytes:
    """Bytes of an object that is there, and is that long."""
    return ctypes.string_at(address, count)


def try_words(address: int, count: int) -> list[int]:
    """Words of memory that may not be there, -1 for each that cannot be read."""
    words: list[int] = []
    while len(words) < count:
        at = address + len(words) * WORD
        piece = min(count - len(words), max(1, (_PAGE - at % _PAGE) // WORD))
        words += _piece(at, piece) or [-1] * piece
    return words


def _piece(address: int, count: int) -> list[int] | None:
    """Words on one page: what the kernel can copy into a pipe can be read, and anything else only fails."""
    source, sink = os.pipe()
    try:
        written = _write()(sink, address, count * WORD)
        return list(memoryview(os.read(source, written)).cast("Q")) if written == count * WORD else None
    finally:
        os.close(source)
        os.close(sink)


@functools.cache
def _write() -> Callable[[int, int, int], int]:
    function = ctypes.PyDLL(None).write
    function.restype, function.argtypes = ctypes.c_ssize_t, [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
    return function
