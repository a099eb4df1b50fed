"""Writes the weights of an artifact as a safetensors file, under the names that its registers have.

    save_weights(artifact, "weights.safetensors")

`csrc/deploy/opening/weights.c` reads such files, and finds tensors by these names.
"""

import itertools
import json
import math
import os
from typing import Any

import numpy

from smelt.ir.artifact_file.artifact import ArtifactFile, of_kind
from smelt.ir.artifact_file.container import ArtifactError, replace_file
from smelt.ir.table.dtypes import DTYPES
from smelt.ir.table.records import Register, RegisterKind

DTYPE_NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64", "bool": "BOOL",
    "complex64": "C64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip
"""The names of dtypes in the format; complex128 has none."""


def save_weights(artifact: ArtifactFile, path: str | os.PathLike[str]) -> None:
    """One file with all constants of all targets and entry points."""
    registers: dict[str, Register] = {}
    for part in artifact.targets:
        for register in of_kind(part.table, RegisterKind.CONSTANT):
            _check(register, registers.setdefault(register.name, register))
    header: dict[str, Any] = {}
    end = 0
    for name, register in sorted(registers.items()):
        shape = [dim.low for dim in register.dims]
        begin, end = end, end + math.prod(shape) * DTYPES[register.dtype]
        header[name] = {"dtype": DTYPE_NAMES[register.dtype], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    data = (_bytes(artifact, registers[name]) for name in header)
    replace_file(path, itertools.chain([len(text).to_bytes(8, "little"), text], data))


def _check(register: Register, earlier: Register) -> None:
    """The file's names must be those of one tensor each."""
    name = register.name
    if register.dtype not in DTYPE_NAMES:
        raise ArtifactError(f"weight {name} is {register.dtype}, which safetensors files cannot have")
    if any(ord(letter) < 32 or letter in '"\\' for letter in name) or name == "__metadata__":
        raise ArtifactError(f"weight {name!r} has a name that a file of weights cannot have")
    if (register.data, register.dtype, register.dims, register.strides) != (
        earlier.data, earlier.dtype, earlier.dims, earlier.strides,
    ):  # fmt: skip
        raise ArtifactError(f"two weights are named {name}: give them names of their own to save weights separately")


def _bytes(artifact: ArtifactFile, register: Register) -> bytes:
    """Its elements, contiguous."""
    held = artifact.weights.parts
    begin = max((each for each in held if each <= register.data), default=0)
    data = memoryview(held[begin]).cast("B") if held else memoryview(b"")
    first = register.data - begin
    piece = numpy.frombuffer(data[first : first + register.bytes], numpy.uint8)
    if not register.strides:
        return piece.tobytes()
    item = DTYPES[register.dtype]
    shape, strides = [dim.low for dim in register.dims], [stride * item for stride in register.strides]
    elements = numpy.lib.stride_tricks.as_strided(piece, (*shape, item), (*strides, 1), writeable=False)
    return numpy.ascontiguousarray(elements).tobytes()
