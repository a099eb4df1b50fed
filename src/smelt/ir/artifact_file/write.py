"""Writing an artifact's file: records → bytes.

    write(artifact)             →  the bytes
    save(artifact, "m.smelt")   →  the file, weights written one after the other, nothing of them copied
"""

import os

from smelt.ir.artifact_file.artifact import ArtifactFile, check_table
from smelt.ir.artifact_file.code import code_bytes
from smelt.ir.artifact_file.container import ArtifactError, Section, manifest_section, pack
from smelt.ir.artifact_file.container import save as save_sections
from smelt.ir.artifact_file.layout import WEIGHTS_ELSEWHERE, Kind
from smelt.ir.table.write import table_bytes


def write(artifact: ArtifactFile) -> bytes:
    """The file's bytes; an error SM050 says what is wrong with the records."""
    return pack(_sections(artifact))


def save(artifact: ArtifactFile, path: str | os.PathLike[str]) -> None:
    """The file itself."""
    save_sections(_sections(artifact), path)


def _sections(artifact: ArtifactFile) -> list[Section]:
    """In the order of the file."""
    sections = [manifest_section(artifact.manifest)]
    for number, part in enumerate(artifact.targets):
        try:
            table = table_bytes(part.table)
        except ValueError as error:
            raise ArtifactError(f"the table cannot be written: {error}") from error
        check_table(table, artifact.weights.bytes, artifact.state.bytes, len(part.code.entries))
        for kind, data in ((Kind.TABLE, table), (Kind.CODE, code_bytes(part.code))):
            sections.append(Section.of(kind, data, number // artifact.entries, part.machine, part.features))
    for kind, held in ((Kind.WEIGHTS, artifact.weights), (Kind.STATE, artifact.state)):
        parts = [(begin, memoryview(data).cast("B")) for begin, data in held.parts.items()]
        is_elsewhere = kind == Kind.WEIGHTS and not artifact.has_weights
        sections.append(Section(kind, tuple(parts), features=WEIGHTS_ELSEWHERE if is_elsewhere else 0))
    return sections
