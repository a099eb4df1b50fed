"""Artifacts run by the C runtime, by ctypes, without what `smelt.load` knows of Python.

    Session("model.smelt").run([x, n])   →   arrays, None for what was not returned
"""

import ctypes
from pathlib import Path
from typing import Any

import torch

import smelt

_DTYPES = {
    torch.bool: 0, torch.uint8: 1, torch.int8: 2, torch.int16: 3, torch.int32: 4, torch.int64: 5, torch.float32: 8,
    torch.float64: 9,
}  # fmt: skip
_BY_NUMBER = {number: dtype for dtype, number in _DTYPES.items()}


class _Error(ctypes.Structure):
    _fields_ = (("status", ctypes.c_int), ("message", ctypes.c_char * 256))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("dtype", ctypes.c_int),
        ("rank", ctypes.c_int),
        ("sizes", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("data", ctypes.c_void_p),
    )


class RuntimeFailure(Exception):
    """What the runtime refused or raised."""


class Session:
    """A session of a model. Inputs are tensors, or numbers as tensors without dimensions."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(Path(smelt.__file__).parent / "lib" / "libsmelt.so"))
        self._library.smelt_model_output_count.restype = ctypes.c_size_t
        self._error = _Error()
        self._model, self._session = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("smelt_model_open", str(path).encode(), None, ctypes.byref(self._model))
        self._call("smelt_session_new", self._model, None, ctypes.byref(self._session))

    def _call(self, name: str, *args: Any) -> None:
        if getattr(self._library, name)(*args, ctypes.byref(self._error)):
            raise RuntimeFailure(self._error.message.decode())

    def run(self, inputs: list[Any]) -> list[torch.Tensor | None]:
        held = [each.contiguous() if isinstance(each, torch.Tensor) else torch.tensor(each) for each in inputs]
        held = [
            each.double() if isinstance(given, float) else each for each, given in zip(held, inputs, strict=True)
        ]
        given = (_Tensor * len(held))()
        shapes = []
        for place, each in enumerate(held):
            shapes.append((ctypes.c_int64 * max(each.dim(), 1))(*each.shape))
            given[place] = _Tensor(_DTYPES[each.dtype], each.dim(), shapes[-1], None, each.data_ptr())
        self._call("smelt_run", self._session, given, ctypes.c_size_t(len(held)))
        count = self._library.smelt_model_output_count(self._model)
        return [self._output(number) for number in range(count)]

    def _output(self, number: int) -> torch.Tensor | None:
        found = _Tensor()
        self._call("smelt_output", self._session, ctypes.c_size_t(number), ctypes.byref(found))
        if found.dtype < 0:
            return None
        shape = [found.sizes[dim] for dim in range(found.rank)]
        stride = [found.strides[dim] for dim in range(found.rank)] if found.strides else None
        dtype = _BY_NUMBER[found.dtype]
        made = torch.empty(shape, dtype=dtype)
        plain = stride is None or list(made.stride()) == stride or made.numel() < 2
        assert plain, "outputs here are contiguous"
        if made.numel():
            ctypes.memmove(made.data_ptr(), found.data, made.numel() * made.itemsize)
        return made

    def close(self) -> None:
        self._library.smelt_session_free(self._session)
        self._library.smelt_model_close(self._model)
