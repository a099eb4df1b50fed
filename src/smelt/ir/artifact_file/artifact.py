"""All that an artifact's file holds, as Python's objects.

    check_table(table, weights, state, …)     →  None, or `ArtifactError` (SM050), which says what is wrong

Tables are checked when they are written, the rest of a file when it is opened (csrc/deploy/model.c). What depends on
sizes (whether a value lies inside its register, whether a sum fits 64 bits) is checked when it runs.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from smelt import _native
from smelt.base.fast_dataclass import dataclass
from smelt.ir.artifact_file.code import Code
from smelt.ir.artifact_file.container import ArtifactError, rounded
from smelt.ir.artifact_file.layout import ALIGN, Machine
from smelt.ir.table.records import Register, RegisterKind, Table


@dataclass(frozen=True, slots=True)
class TargetPart:
    """An entry point for a target: what that needs (`feature_mask`), a state machine and its machine code."""

    machine: Machine
    features: int
    table: Table
    code: Code


@dataclass(frozen=True, slots=True)
class Data:
    """Bytes of registers one after the other, each part aligned; `parts`: bytes, or anything with a buffer of them, by
    where they begin."""

    parts: dict[int, Any] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """How many there are."""
        last = next(reversed(self.parts), None)
        return 0 if last is None else last + memoryview(self.parts[last]).nbytes

    def add(self, data: Any) -> int:
        """Where new bytes begin."""
        begin = rounded(self.bytes, ALIGN)
        self.parts[begin] = data
        return begin


@dataclass(frozen=True, slots=True)
class ArtifactFile:
    """All that a file holds. `weights` is what registers that are CONSTANT hold, `state` what those of STATE begin
    with. `entries`: how many entry points it has; parts of one target follow each other, one for each.
    `has_weights`: they are in the file, not in one of their own."""

    manifest: Mapping[str, Any]
    targets: tuple[TargetPart, ...]
    weights: Data
    state: Data
    entries: int = 1
    has_weights: bool = True


def check_table(table: bytes | memoryview, weights: int, state: int, kernels: int) -> None:
    """`weights`, `state`: bytes of those sections; `kernels`: how many the code has."""
    try:
        _native.check_table(table, weights, state, kernels)
    except ValueError as error:
        raise ArtifactError(str(error)) from error


def of_kind(table: Table, kind: RegisterKind) -> list[Register]:
    """The registers of a kind, in order."""
    return [register for register in table.registers if register.kind == kind]
