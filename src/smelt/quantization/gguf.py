"""Reads GGUF files of version 3. Quantized matrices stay quantized; every size is checked before it is used.

    file = read_gguf("model.gguf")
    file.metadata["general.architecture"], file.tensors["blk.0.attn_q.weight"]   →   "llama", QuantizedTensor(…)
"""

import os
import struct
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor

from smelt.base.fast_dataclass import dataclass
from smelt.quantization.blocks import FLOATS, FORMATS
from smelt.quantization.layers import QuantizedTensor
from smelt.quantization.mapped_file import MappedFile

_MOST_DIMS = 4
_MOST_NAME = 65_535
_MOST_DEPTH = 4  # of arrays of arrays
_ARRAY, _STRING = 9, 8
_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}


@dataclass(frozen=True, slots=True)
class GgufFile:
    """The contents of a file. Sizes are outermost first. A quantized tensor of more than two dims is a matrix of all
    its rows; `shapes` has its sizes."""

    metadata: dict[str, Any]
    tensors: dict[str, Tensor | QuantizedTensor]
    shapes: dict[str, tuple[int, ...]]


def read_gguf(path: str | os.PathLike[str]) -> GgufFile:
    """The metadata and tensors of a file, floats mapped into memory. `SmeltError` SM091 names what is wrong."""
    file = MappedFile(path)
    if file.bytes(4, "the magic number") != b"GGUF":
        raise file.fault("it is no GGUF file")
    version = file.unsigned(4, "the version")
    if version != 3:
        raise file.fault(f"version {version}; smelt reads version 3")
    tensor_count, key_count = (file.unsigned(8, "the counts") for _ in range(2))
    metadata: dict[str, Any] = {}
    for _ in range(_count(file, key_count, 13, "keys")):
        key = _string(file, "the name of a key", _MOST_NAME)
        if key in metadata:
            raise file.fault(f"the key {key!r} appears twice")
        metadata[key] = _value(file, file.unsigned(4, f"the key {key!r}"), f"the key {key!r}", 0)
    infos: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for _ in range(_count(file, tensor_count, 24, "tensors")):
        name = _string(file, "the name of a tensor", _MOST_NAME)
        if name in infos:
            raise file.fault(f"the tensor {name!r} appears twice")
        infos[name] = _info(file, name)
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 0 < alignment <= 1 << 20 or alignment & (alignment - 1):
        raise file.fault(f"general.alignment is {alignment!r}")
    start = -(-file.place // alignment) * alignment
    tensors: dict[str, Tensor | QuantizedTensor] = {}
    _check_apart(file, infos)
    for name, (shape, kind, offset) in infos.items():
        if offset % alignment:
            raise file.fault(f"tensor {name!r} is at byte {offset}, no multiple of {alignment}")
        tensors[name] = _tensor(file, name, shape, kind, start + offset)
    return GgufFile(metadata, tensors, {name: shape for name, (shape, _, _) in infos.items()})


def _count(file: MappedFile, count: int, least_bytes: int, what: str) -> int:
    """How many there are, each of so many bytes at least."""
    if count * least_bytes > file.size - file.place:
        raise file.fault(f"there are no {count} {what} in {file.size} bytes")
    return count


def _string(file: MappedFile, what: str, most: int = 1 << 62) -> str:
    length = file.unsigned(8, what)
    if length > most:
        raise file.fault(f"{what} has {length} bytes")
    try:
        return file.bytes(length, what).decode("utf-8")
    except UnicodeDecodeError:
        raise file.fault(f"{what} is no UTF-8 text") from None


def _value(file: MappedFile, kind: int, what: str, depth: int) -> Any:
    if kind in _NUMBERS:
        form = _NUMBERS[kind]
        return struct.unpack(form, file.bytes(struct.calcsize(form), what))[0]
    if kind == _STRING:
        return _string(file, what)
    if kind != _ARRAY or depth >= _MOST_DEPTH:
        raise file.fault(f"{what} is of type {kind}, or nested too deep")
    inner, count = file.unsigned(4, what), file.unsigned(8, what)
    if inner in _NUMBERS:
        size = struct.calcsize(_NUMBERS[inner])
        raw = file.bytes(_count(file, count, size, f"items in {what}") * size, what)
        return [item for (item,) in struct.iter_unpack(_NUMBERS[inner], raw)]
    least = 8 if inner == _STRING else 12
    return [_value(file, inner, what, depth + 1) for _ in range(_count(file, count, least, f"items in {what}"))]


def _info(file: MappedFile, name: str) -> tuple[tuple[int, ...], int, int]:
    """The shape, type and offset of a tensor."""
    what = f"tensor {name!r}"
    dims = file.unsigned(4, what)
    if not 1 <= dims <= _MOST_DIMS:
        raise file.fault(f"{what} has {dims} dims")
    shape = tuple(file.unsigned(8, what) for _ in range(dims))[::-1]
    kind, offset = file.unsigned(4, what), file.unsigned(8, what)
    if any(not 0 < size < 1 << 48 for size in shape):
        raise file.fault(f"{what} has the impossible shape {shape}")
    if kind not in FORMATS and kind not in FLOATS:
        names = [*(each.name for each in FORMATS.values()), "f32", "f16", "bf16"]
        raise file.fault(f"{what} is of type {kind}; smelt reads {', '.join(names)}")
    return shape, kind, offset


def _check_apart(file: MappedFile, infos: Mapping[str, tuple[tuple[int, ...], int, int]]) -> None:
    """No byte belongs to two tensors, so that all of them together are no larger than the file."""
    place = 0
    for name, (shape, kind, offset) in sorted(infos.items(), key=lambda item: item[1][2]):
        if offset < place:
            raise file.fault(f"tensor {name!r} overlaps the one before it")
        if kind in FLOATS:
            place = offset + prod(shape) * FLOATS[kind].itemsize
        else:
            place = offset + prod(shape) // FORMATS[kind].weights * FORMATS[kind].nbytes


def _tensor(file: MappedFile, name: str, shape: tuple[int, ...], kind: int, start: int) -> Tensor | QuantizedTensor:
    what = f"tensor {name!r}"
    if kind in FLOATS:
        return file.tensor(start, shape, FLOATS[kind], what)
    form = FORMATS[kind]
    *outer, columns = shape
    if columns % form.weights:
        raise file.fault(f"{what} has rows of {columns}, and {form.name} has blocks of {form.weights}")
    rows = prod(outer)
    read: Callable[[Tensor], QuantizedTensor] = form.read
    return read(file.tensor(start, (rows, columns // form.weights, form.nbytes), torch.uint8, what))
