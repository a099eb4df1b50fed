"""All that an artifact's file holds, as Python's objects, and its rules: who writes a file and who reads one holds it
against these.

    check_artifact(artifact)                  →  None, or `ArtifactError` (SM050), which says what is wrong
    check_table(table, weights, state, …)     →  the same for the bytes of one table, by the code that will run it

What depends on sizes (whether a value lies inside its register, whether a sum fits 64 bits) is checked when it runs.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from smelt import _native
from smelt.base.fast_dataclass import dataclass
from smelt.ir.artifact_file.code import Code, check_code
from smelt.ir.artifact_file.container import ArtifactError, require, rounded
from smelt.ir.artifact_file.layout import ALIGN, FEATURES, MOST_CAPABILITY, Machine
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
    with. `entries`: how many entry points it has; parts of one target follow each other, one for each."""

    manifest: Mapping[str, Any]
    targets: tuple[TargetPart, ...]
    weights: Data
    state: Data
    entries: int = 1


def check_table(table: bytes | memoryview, weights: int, state: int, kernels: int) -> None:
    """`weights`, `state`: bytes of those sections; `kernels`: how many the code has."""
    try:
        _native.check_table(table, weights, state, kernels)
    except ValueError as error:
        raise ArtifactError(str(error)) from error


def check_artifact(artifact: ArtifactFile) -> None:
    """The rules of all but tables."""
    require(artifact.targets, "the artifact", "has no target")
    count = artifact.entries
    require(count > 0 and len(artifact.targets) % count == 0, "the artifact", "has targets without all entry points")
    names = [part.table.name for part in artifact.targets[:count]]
    is_named = count == 1 or all(all(name.rpartition(".")) for name in names)
    require(is_named, "the artifact", "has a table that is not named MODEL.ENTRY")
    entries = {name.rpartition(".")[2] for name in names}
    require(len(entries) == count, "the artifact", "has two entry points of one name")
    states = None
    for number, part in enumerate(artifact.targets):
        where, first = f"target {number // count}", artifact.targets[number // count * count]
        require((part.machine, part.features) == (first.machine, first.features), where, "is of several machines")
        require(count == 1 or part.table.name == names[number % count], where, "has other entry points than target 0")
        require(part.machine in FEATURES, where, f"has no machine: {part.machine!r}")
        is_grid = part.machine == Machine.CUDA
        known = MOST_CAPABILITY if is_grid else (1 << len(FEATURES[Machine(part.machine)])) - 1
        fits = 0 < part.features <= known if is_grid else part.features & ~known == 0
        require(fits, where, "needs features that have no name")
        check_code(part.code, len(part.table.kernels))
        require(not is_grid or part.code.image.endswith(b"\0"), where, "has text that does not end")
        described = of_kind(part.table, RegisterKind.STATE)
        require(states in (None, described), where, "has other STATE registers than target 0")
        states = described


def of_kind(table: Table, kind: RegisterKind) -> list[Register]:
    """The registers of a kind, in order."""
    return [register for register in table.registers if register.kind == kind]
