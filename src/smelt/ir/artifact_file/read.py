"""Reading an artifact's file: bytes → records, or an error (SM050) that says what is wrong with them.

    read(Path("model.smelt").read_bytes())   →   ArtifactFile

Sections and tables are held against the rules of the code that runs them; what is of no use to this reader, such as
entries of code, is checked where it is loaded. Weights are views of the given buffer:
nothing is copied, so a file may be mapped.
"""

from typing import Any

from smelt.ir.artifact_file.artifact import ArtifactFile, Data, TargetPart, check_table
from smelt.ir.artifact_file.code import read_code
from smelt.ir.artifact_file.container import ArtifactError, manifest_in, unpack
from smelt.ir.artifact_file.layout import Machine
from smelt.ir.table.read import BadTable, read_table


def read(data: Any) -> ArtifactFile:
    """All of a file that is whole, the rules of its tables checked."""
    sections = unpack(data, is_artifact=True)
    weights, state = Data({0: sections[-2].data}), Data({0: sections[-1].data})
    parts = []
    for table, code in zip(sections[1:-2:2], sections[2:-2:2], strict=True):
        image = read_code(code.data)
        check_table(table.data, weights.bytes, state.bytes, len(image.entries))
        try:
            parts.append(TargetPart(Machine(table.machine), table.features, read_table(table.data), image))
        except BadTable as error:  # C does not look into the text of strings
            raise ArtifactError(str(error)) from error
    entries = sum(each.target == 0 for each in sections) // 2
    has_weights = not sections[-2].is_elsewhere
    return ArtifactFile(manifest_in(sections), tuple(parts), weights, state, entries, has_weights)
