"""The rules of an artifact's records: whoever writes a file and whoever reads one holds them against these.

    check_artifact(artifact)                  →  None, or `ArtifactError` (SM050), which says what is wrong
    check_table(table, weights, state, …)     →  the same for the bytes of one table, by the code that will run it

What depends on sizes (whether a value lies inside its register, whether a sum fits 64 bits) is checked when it runs.
"""

import math
from collections.abc import Mapping
from typing import Any

from smelt import _native
from smelt.base.fast_dataclass import dataclass
from smelt.ir.artifact_file import records as r
from smelt.ir.artifact_file.code import check_code
from smelt.ir.artifact_file.container import ArtifactError, require
from smelt.ir.artifact_file.layout import ALIGN, FEATURES, MOST_CAPABILITY, Machine
from smelt.ir.table.layout import DTYPES, RegisterKind


def check_table(table: bytes | memoryview, weights: int, state: int, kernels: int) -> None:
    """`weights`, `state`: bytes of those sections; `kernels`: how many the code has."""
    try:
        _native.check_table(table, weights, state, kernels)
    except ValueError as error:
        raise ArtifactError(str(error)) from error


def check_artifact(artifact: r.ArtifactFile) -> None:
    """The rules of all but tables."""
    require(artifact.targets, "the artifact", "has no target")
    states = None
    for number, part in enumerate(artifact.targets):
        where = f"target {number}"
        require(part.machine in FEATURES, where, f"has no machine: {part.machine!r}")
        is_grid = part.machine == Machine.CUDA
        known = MOST_CAPABILITY if is_grid else (1 << len(FEATURES[Machine(part.machine)])) - 1
        fits = 0 < part.features <= known if is_grid else part.features & ~known == 0
        require(fits, where, "needs features that have no name")
        check_code(part.code, len(part.table.kernels))
        require(not is_grid or part.code.image.endswith(b"\0"), where, "has text that does not end")
        for register in part.table.registers:
            _check_data(register, artifact.weights)
        described = of_kind(part.table, RegisterKind.STATE)
        require(states in (None, described), where, "has other STATE registers than target 0")
        states = described
    data_places(artifact)


def of_kind(table: r.Table, kind: RegisterKind) -> list[r.Register]:
    """The registers of a kind, in order."""
    return [register for register in table.registers if register.kind == kind]


def _check_data(register: r.Register, weights: Mapping[str, Any]) -> None:
    where = f"register {register.name}"
    require(register.dtype in DTYPES, where, f"has no dtype: {register.dtype!r}")
    stored = register.kind in (RegisterKind.CONSTANT, RegisterKind.STATE)
    require((register.data is not None) == stored, where, "has data, or has none, against its kind")
    if register.data is None:
        return
    require(register.data in weights, where, f"has no data: {register.data!r}")
    require(register.offset >= 0, where, "begins before its data")
    has_strides = register.strides is None or len(register.strides) == len(register.dims)
    require(has_strides, where, "has strides that do not fit")
    size, end = memoryview(weights[register.data]).nbytes, register.offset + data_bytes(register)
    require(end <= size, where, f"has {size} bytes of data, and needs {end}")


def data_bytes(register: r.Register) -> int:
    """From the first element of what has data to the last, both counted."""
    sizes = [dim.low for dim in register.dims]
    if register.strides is None:
        return math.prod(sizes) * DTYPES[register.dtype]
    span = 1 + sum((size - 1) * stride for size, stride in zip(sizes, register.strides, strict=True))
    return span * DTYPES[register.dtype] if all(sizes) else 0


@dataclass(frozen=True, slots=True)
class DataPlaces:
    """Where the data of registers goes: offsets by key in their section, and the keys of each section in order."""

    offsets: dict[str, int]
    constants: tuple[str, ...]
    states: tuple[str, ...]
    constant_bytes: int
    state_bytes: int


def data_places(artifact: r.ArtifactFile) -> DataPlaces:
    """One after the other, each aligned."""
    used: dict[RegisterKind, set[str]] = {RegisterKind.CONSTANT: set(), RegisterKind.STATE: set()}
    for part in artifact.targets:
        for kind, keys in used.items():
            keys.update(register.data for register in of_kind(part.table, kind) if register.data is not None)
    both = used[RegisterKind.CONSTANT] & used[RegisterKind.STATE]
    require(not both, "the artifact", f"{sorted(both)} is both CONSTANT and STATE")
    unused = artifact.weights.keys() - used[RegisterKind.CONSTANT] - used[RegisterKind.STATE]
    require(not unused, "the artifact", f"no register holds {sorted(unused)}")
    offsets: dict[str, int] = {}
    constants, constant_bytes = _in_order(artifact, used[RegisterKind.CONSTANT], offsets)
    states, state_bytes = _in_order(artifact, used[RegisterKind.STATE], offsets)
    return DataPlaces(offsets, constants, states, constant_bytes, state_bytes)


def _in_order(artifact: r.ArtifactFile, keys: set[str], offsets: dict[str, int]) -> tuple[tuple[str, ...], int]:
    end = 0
    ordered = tuple(key for key in artifact.weights if key in keys)
    for key in ordered:
        offsets[key] = -(-end // ALIGN) * ALIGN
        end = offsets[key] + memoryview(artifact.weights[key]).nbytes
    return ordered, end
