"""Reading an artifact's file: bytes → records, or an error (SM050) that says what is wrong with them.

    read(Path("model.smelt").read_bytes())   →   ArtifactFile
    read_manifest(…)                         →   its manifest alone, the rest only held against its checksums

Every offset, count and size is held against what it refers to before it is used. Weights are views of the given buffer:
nothing is copied, so a file may be mapped.
"""

import json
import struct
from collections.abc import Mapping
from enum import IntEnum
from itertools import pairwise
from typing import Any, TypeVar

from smelt import _native
from smelt.ir.artifact_file.check import ArtifactError, check_artifact, check_table, require
from smelt.ir.artifact_file.layout import (
    ALIGN,
    MAGIC,
    MOST_SECTIONS,
    PAGE,
    VERSION,
    ArtifactFile,
    Code,
    CodeHeader,
    CodeSlot,
    Data,
    FileHeader,
    Kind,
    Machine,
    SectionRecord,
    SlotRecord,
    TargetPart,
)
from smelt.ir.table.read import BadTable, read_table

_HEADER_BYTES = 8 * len(FileHeader._fields)
_SECTION_BYTES = 8 * len(SectionRecord._fields)
_FILE = "the file"


def read(data: Any) -> ArtifactFile:
    """All of a file, every rule checked."""
    view = memoryview(data).cast("B").toreadonly()
    sections = read_sections(view)
    parts = []
    weights, state = (Data({0: _part(view, _only(sections, kind))}) for kind in (Kind.WEIGHTS, Kind.STATE))
    for number, (table, code) in enumerate(_targets(sections)):
        machine = _member(f"target {number}", Machine, table.machine)
        image, data = _read_code(_part(view, code)), _part(view, table)
        check_table(data, weights.bytes, state.bytes, len(image.entries))
        try:
            parts.append(TargetPart(machine, table.features, read_table(data), image))
        except BadTable as error:  # C does not look into the text of strings
            raise ArtifactError(str(error)) from error
    artifact = ArtifactFile(_manifest(view, sections), tuple(parts), weights, state)
    check_artifact(artifact)
    return artifact


def read_manifest(data: Any) -> Mapping[str, Any]:
    """What a file says of itself."""
    view = memoryview(data).cast("B").toreadonly()
    return _manifest(view, read_sections(view))


def read_sections(view: memoryview) -> list[SectionRecord]:
    """The directory, once all checksums hold."""
    require(len(view) >= _HEADER_BYTES, _FILE, "is too short to be an artifact")
    header = FileHeader(*struct.unpack_from(f"<{len(FileHeader._fields)}q", view))
    require(header.magic == MAGIC, _FILE, "does not begin like an artifact")
    require(header.version == VERSION, _FILE, f"has version {header.version}; this smelt reads version {VERSION}")
    require(header.bytes == len(view), _FILE, f"has {len(view)} bytes, and was written with {header.bytes}")
    require(0 < header.sections <= MOST_SECTIONS and header.reserved == 0, _FILE, "has a damaged header")
    end = _HEADER_BYTES + _SECTION_BYTES * header.sections
    require(end <= len(view), _FILE, "is shorter than its directory")
    zeroed = bytearray(view[:end])
    struct.pack_into("<q", zeroed, 8 * FileHeader._fields.index("checksum"), 0)
    require(_holds(zeroed, header.checksum), _FILE, "has a header that its checksum does not hold for")
    words = struct.unpack_from(f"<{len(SectionRecord._fields) * header.sections}q", view, _HEADER_BYTES)
    width = len(SectionRecord._fields)
    sections = [SectionRecord(*words[place : place + width]) for place in range(0, len(words), width)]
    for number, section in enumerate(sections):
        where = f"section {number}"
        kind = _member(where, Kind, section.kind)
        step = PAGE if kind in (Kind.CODE, Kind.WEIGHTS, Kind.STATE) else ALIGN
        begin = -(-end // step) * step
        require(section.offset == begin and 0 <= section.bytes <= len(view) - begin, where, "is out of its place")
        require(not any(view[end:begin]), where, "follows bytes that are not zero")
        end = begin + section.bytes
        held = _holds(view[begin:end], section.checksum)
        require(held, where, f"({kind.name}) has bytes that its checksum does not hold for")
    require(end == len(view), _FILE, "goes on behind its last section")
    return sections


def _holds(data: Any, checksum: int) -> bool:
    return _native.checksum(data) == checksum & (1 << 64) - 1


def _only(sections: list[SectionRecord], kind: Kind) -> SectionRecord:
    matching = [section for section in sections if section.kind == kind]
    require(len(matching) == 1, _FILE, f"has {len(matching)} sections {kind.name}")
    return matching[0]


def _targets(sections: list[SectionRecord]) -> list[tuple[SectionRecord, SectionRecord]]:
    """A TABLE and a CODE for each target, in order, between the MANIFEST and WEIGHTS."""
    kinds = [section.kind for section in sections]
    count = (len(sections) - 3) // 2
    expected = [Kind.MANIFEST, *(Kind.TABLE, Kind.CODE) * count, Kind.WEIGHTS, Kind.STATE]
    require(count > 0 and kinds == expected, _FILE, "has other sections, or in another order")
    pairs = list(pairwise(sections[1:-2]))[::2]
    for number, pair in enumerate(pairs):
        require(all(each.target == number for each in pair), _FILE, "has its targets out of order")
        same = pair[0].machine == pair[1].machine and pair[0].features == pair[1].features
        require(same, f"target {number}", "has a table and code for different machines")
    for section in (sections[0], *sections[-2:]):
        require((section.target, section.machine, section.features) == (-1, 0, 0), _FILE, "names a target for all")
    return pairs


def _part(view: memoryview, section: SectionRecord) -> memoryview:
    return view[section.offset : section.offset + section.bytes]


def _manifest(view: memoryview, sections: list[SectionRecord]) -> Mapping[str, Any]:
    try:
        manifest = json.loads(bytes(_part(view, _only(sections, Kind.MANIFEST))))
    except ValueError as error:
        raise ArtifactError(f"the manifest is not JSON: {error}") from error
    require(isinstance(manifest, dict), "the manifest", "is not an object")
    return dict(manifest)


_Enum = TypeVar("_Enum", bound=IntEnum)


def _member(where: str, kind: type[_Enum], number: int) -> _Enum:
    try:
        return kind(number)
    except ValueError:
        raise ArtifactError(f"{where}: there is no {kind.__name__} {number}") from None


# --- CODE ---------------------------------------------------------------------------------------------------


def _read_code(view: memoryview) -> Code:
    head = 8 * len(CodeHeader._fields)
    require(len(view) >= head, "the code", "is cut")
    header = CodeHeader(*struct.unpack_from(f"<{len(CodeHeader._fields)}q", view))
    most = len(view) // 8
    width = len(SlotRecord._fields)
    require(0 <= header.kernels <= most and 0 <= header.slots <= most, "the code", "has too many records")
    slots_at = head + 8 * header.kernels
    require(header.blob == slots_at + 8 * width * header.slots, "the code", "has its names out of place")
    fits = header.blob <= header.image <= len(view) and header.image % PAGE == 0
    require(fits, "the code", "has its image out of place")
    require(header.image_bytes == len(view) - header.image, "the code", "has an image of another size")
    entries = struct.unpack_from(f"<{header.kernels}q", view, head)
    words = struct.unpack_from(f"<{width * header.slots}q", view, slots_at)
    slots = []
    for place in range(0, len(words), width):
        slot = SlotRecord(*words[place : place + width])
        begin = header.blob + slot.name
        require(slot.name >= 0 and 0 <= slot.length <= header.image - begin, "the code", "has a slot without a name")
        slots.append(CodeSlot(slot.offset, _text("the code", view[begin : begin + slot.length]), slot.addend))
    return Code(bytes(view[header.image :]), entries, tuple(slots))


def _text(where: str, data: memoryview) -> str:
    try:
        return bytes(data).decode()
    except UnicodeDecodeError as error:
        raise ArtifactError(f"{where}: a string is not UTF-8") from error
