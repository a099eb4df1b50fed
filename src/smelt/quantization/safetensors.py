"""Reads safetensors files, whose header is JSON. Every entry is checked before a tensor is made.

    read_safetensors("model.safetensors")   →   {"model.embed_tokens.weight": tensor, …}
"""

import json
import os
from math import prod
from typing import Any

import torch
from torch import Tensor

from smelt.base.errors import SmeltError
from smelt.quantization.mapped_file import MappedFile

_MOST_HEADER = 100_000_000
_MOST_DIMS = 64
_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64, "BOOL": torch.bool, "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip


def read_safetensors(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a file by name, mapped into memory. `SmeltError` SM091 names the tensor that is wrong."""
    file = MappedFile(path)
    length = file.unsigned(8, "the length of the header")
    if length > _MOST_HEADER:
        raise file.fault(f"the header would have {length} bytes")
    header = _header(file, file.bytes(length, "the header"))
    tensors: dict[str, Tensor] = {}
    ranges: list[tuple[int, int, str]] = []
    for name, entry in header.items():
        dtype, shape, begin, end = _entry(file, name, entry)
        ranges.append((begin, end, name))
        if file.place + end > file.size:
            raise file.fault(f"tensor {name!r} reaches beyond the end of the file")
        tensors[name] = file.tensor(file.place + begin, shape, dtype, f"tensor {name!r}")
    place = 0
    for begin, end, name in sorted(ranges):
        if begin != place:
            raise file.fault(f"tensor {name!r} begins at byte {begin}, not {place}: ranges have gaps or overlap")
        place = end
    if file.place + place != file.size:
        raise file.fault(f"{file.size - file.place - place} bytes after the last tensor belong to none")
    return tensors


def _header(file: MappedFile, raw: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = dict(pairs)
        if len(names) != len(pairs):
            raise ValueError("a key appears twice")
        return names

    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise file.fault(f"the header is no JSON: {error}") from None
    if not isinstance(header, dict):
        raise file.fault("the header is no JSON object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise file.fault("__metadata__ does not map strings to strings")
    return header


def _entry(file: MappedFile, name: str, entry: Any) -> tuple[torch.dtype, list[int], int, int]:
    def fault(reason: str) -> SmeltError:
        return file.fault(f"tensor {name!r} {reason}")

    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise fault("has no dtype, shape and data_offsets, or more than these")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise fault(f"is of dtype {dtype!r}, which smelt cannot read")
    if not isinstance(shape, list) or len(shape) > _MOST_DIMS or not all(map(_is_size, shape)):
        raise fault("has an impossible shape")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
        raise fault("has impossible data_offsets")
    count = _DTYPES[dtype].itemsize
    for size in shape:
        count *= size
    begin, end = offsets
    if prod(size for size in shape if size) >= 1 << 56:  # one with a size of 0, whose strides would be too large
        raise fault("has an impossible shape")
    if end - begin != count:
        raise fault(f"has {end - begin} bytes, and its shape needs {count}")
    return _DTYPES[dtype], shape, begin, end


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62
