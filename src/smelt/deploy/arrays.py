"""Tensors of torch, or where there is no torch, arrays of NumPy: as the C runtime takes and gives them.

What a call returns is of the kind that it was given. bfloat16, which NumPy has not, is given as its bits (uint16).
"""

import ctypes
import math
import sys
from collections.abc import Sequence
from typing import Any

from smelt.deploy.runtime import TensorAt
from smelt.ir.table.dtypes import DTYPES

_AS_BITS = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}


class TorchArrays:
    """Tensors of torch."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._home: Any = None  # the device of the first tensor given that is not on the host

    def argument(self, value: Any, dtype: str) -> tuple[TensorAt, Any]:
        """Where a value's memory is, and what keeps it there. Python's numbers become tensors of `dtype`."""
        torch = self._torch
        tensor = value if isinstance(value, torch.Tensor) else torch.as_tensor(value)
        if not isinstance(value, torch.Tensor) and not hasattr(value, "__array__"):
            tensor = torch.as_tensor(value, dtype=getattr(torch, dtype))
        tensor = tensor.detach()
        if tensor.device.type == "meta" or tensor.layout is not torch.strided:
            raise ValueError(f"a tensor on {tensor.device} of layout {tensor.layout} has no memory to read")
        device, tensor = tensor.device, tensor.cpu().resolve_conj().resolve_neg()
        if device != tensor.device:
            self._home = self._home or device
        name = str(tensor.dtype).removeprefix("torch.")
        strides = None if tensor.is_contiguous() else tuple(tensor.stride())
        return TensorAt(name, tuple(tensor.shape), strides, tensor.data_ptr()), tensor

    def empty(self, dtype: str, sizes: Sequence[int]) -> Any:
        """A new one, with whatever is in its memory."""
        return self._torch.empty(tuple(sizes), dtype=getattr(self._torch, dtype))

    def address(self, array: Any) -> int:
        """Where a contiguous one begins."""
        return int(array.data_ptr())

    def at_home(self, array: Any) -> Any:
        """A result where the tensors are that were given."""
        return array if self._home is None else array.to(self._home)


class NumpyArrays:
    """Arrays of NumPy."""

    def __init__(self) -> None:
        import numpy

        self._numpy = numpy

    def argument(self, value: Any, dtype: str) -> tuple[TensorAt, Any]:
        """Where a value's memory is, and what keeps it there. Python's numbers become arrays of `dtype`."""
        numpy = self._numpy
        is_array = isinstance(value, numpy.ndarray | numpy.generic)
        array = numpy.asarray(value) if is_array else numpy.asarray(value, dtype=_AS_BITS.get(dtype, dtype))
        if not array.dtype.isnative or any(step % array.itemsize or step < 0 for step in array.strides):
            array = numpy.ascontiguousarray(array).astype(array.dtype.newbyteorder("="))
        name = dtype if _AS_BITS.get(dtype) == array.dtype.name else array.dtype.name
        contiguous = array.flags.c_contiguous
        strides = None if contiguous else tuple(step // array.itemsize for step in array.strides)
        return TensorAt(name, array.shape, strides, array.ctypes.data), array

    def empty(self, dtype: str, sizes: Sequence[int]) -> Any:
        """A new one, with whatever is in its memory."""
        return self._numpy.empty(tuple(sizes), dtype=_AS_BITS.get(dtype, dtype))

    def address(self, array: Any) -> int:
        """Where a contiguous one begins."""
        return int(array.ctypes.data)

    def at_home(self, array: Any) -> Any:
        """Arrays of NumPy are on the host."""
        return array


Arrays = TorchArrays | NumpyArrays


def arrays_for(leaves: Sequence[Any]) -> Arrays:
    """What a call is given: NumPy's arrays if there are some and no tensors; else tensors, if the program uses torch.

    `import smelt` imports torch where it is installed. The package `smelt-runtime` does not.
    """
    torch = sys.modules.get("torch")
    has_tensors = torch is not None and any(isinstance(leaf, torch.Tensor) for leaf in leaves)
    has_arrays = any(type(leaf).__module__ == "numpy" for leaf in leaves)
    return NumpyArrays() if torch is None or (has_arrays and not has_tensors) else TorchArrays()


def copied(arrays: Arrays, tensor: TensorAt) -> Any:
    """A new array with what is at an address."""
    assert tensor.dtype is not None
    array = arrays.empty(tensor.dtype, tensor.sizes)
    size = math.prod(tensor.sizes) * DTYPES[tensor.dtype]
    if size:
        ctypes.memmove(arrays.address(array), tensor.address, size)
    return array
