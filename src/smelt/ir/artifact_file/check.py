"""The rules of an artifact's records: whoever writes a file and whoever reads one holds them against these.

    check_artifact(artifact)                  →  None, or `ArtifactError` (SM050), which says what is wrong
    check_table(table, weights, state, …)     →  the same for the bytes of one table, by the code that will run it

What depends on sizes (whether a value lies inside its register, whether a sum fits 64 bits) is checked when it runs.
"""

from smelt import _native
from smelt.base.errors import SmeltError
from smelt.ir.artifact_file.layout import FEATURES, MOST_CAPABILITY, ArtifactFile, Code, Machine
from smelt.ir.table.records import Register, RegisterKind, Table


class ArtifactError(SmeltError):
    """A file, or what is to become one, breaks a rule."""

    def __init__(self, message: str) -> None:
        super().__init__("SM050", message)


def require(holds: object, where: str, what: str) -> None:
    """An error unless a rule holds."""
    if not holds:
        raise ArtifactError(f"{where}: {what}")


def check_table(table: bytes | memoryview, weights: int, state: int, kernels: int) -> int:
    """`weights`, `state`: bytes of those sections; `kernels`: how many the code has. Returns how many bytes the arrays
    of a run take."""
    try:
        return _native.check_table(table, weights, state, kernels)
    except ValueError as error:
        raise ArtifactError(str(error)) from error


def check_artifact(artifact: ArtifactFile) -> None:
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
        described = of_kind(part.table, RegisterKind.STATE)
        require(states in (None, described), where, "has other STATE registers than target 0")
        states = described


def of_kind(table: Table, kind: RegisterKind) -> list[Register]:
    """The registers of a kind, in order."""
    return [register for register in table.registers if register.kind == kind]


def check_code(code: Code, kernels: int) -> None:
    """The rules of an image."""
    size = len(code.image)
    require(len(code.entries) == kernels, "the code", f"has {len(code.entries)} entries for {kernels} kernels")
    require(all(0 <= entry < size for entry in code.entries), "the code", "has an entry outside its image")
    for number, slot in enumerate(code.slots):
        require(0 <= slot.offset <= size - 8, f"slot {number} of the code", "is outside the image")
        inside = slot.name or 0 <= slot.addend <= size
        require(inside, f"slot {number} of the code", "is the address of something outside the image")
