"""Writing an artifact's file: records → bytes.

    write(artifact)             →  the bytes
    save(artifact, "m.smelt")   →  the file, weights written one after the other, nothing of them copied
"""

import contextlib
import json
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from smelt import _native
from smelt.ir.artifact_file.check import (
    ArtifactError,
    check_artifact,
    check_table,
)
from smelt.ir.artifact_file.layout import (
    ALIGN,
    MAGIC,
    PAGE,
    VERSION,
    ArtifactFile,
    Code,
    CodeHeader,
    FileHeader,
    Kind,
    Machine,
    SectionRecord,
    SlotRecord,
)
from smelt.ir.table.write import table_bytes

_HEADER_WORDS = len(FileHeader._fields)
_SECTION_WORDS = len(SectionRecord._fields)


def write(artifact: ArtifactFile) -> bytes:
    """The file's bytes; an error SM050 says what is wrong with the records."""
    sections = _sections(artifact)
    buffer = bytearray(_end(sections))
    for section in sections:
        for place, data in section.parts:
            buffer[place : place + len(data)] = data
    _seal(memoryview(buffer), sections)
    return bytes(buffer)


def save(artifact: ArtifactFile, path: str | os.PathLike[str]) -> None:
    """The file itself: all of it is there, or it is as it was before. A symbolic link stays a link; a file that is
    replaced keeps its mode."""
    sections = _sections(artifact)
    path = Path(os.path.realpath(path))
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.unfinished")
    descriptor, is_named = _open_unfinished(path.parent, unfinished)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            file.truncate(_end(sections))
            for section in sections:
                for place, data in section.parts:
                    file.seek(place)
                    file.write(data)
            file.flush()
            with mmap.mmap(file.fileno(), 0) as mapped, memoryview(mapped) as view:
                _seal(view, sections)
            if path.exists():
                os.fchmod(file.fileno(), path.stat().st_mode & 0o7777)
            if not is_named:
                unfinished.unlink(missing_ok=True)  # of an earlier process of this number
                os.link(f"/proc/self/fd/{file.fileno()}", unfinished, src_dir_fd=0)
        unfinished.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


def _open_unfinished(folder: Path, unfinished: Path) -> tuple[int, bool]:
    """A file that has no name until it is complete, so that a process that is killed leaves nothing behind; where the
    file system cannot do that, one with a name."""
    with contextlib.suppress(OSError):
        return os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o666), False
    return os.open(unfinished, os.O_CREAT | os.O_TRUNC | os.O_RDWR, 0o666), True


class _Section:
    """A section on its way into the file: `parts` are bytes and where in the file they go."""

    __slots__ = ("bytes", "features", "kind", "machine", "offset", "parts", "target")

    def __init__(self, kind: Kind, parts: Sequence[tuple[int, Any]], size: int, target: int = -1) -> None:
        self.kind, self.parts, self.bytes, self.target = kind, parts, size, target
        self.machine, self.features, self.offset = Machine.ANY, 0, 0


def _sections(artifact: ArtifactFile) -> list[_Section]:
    """In the order of the file, each in its place."""
    check_artifact(artifact)
    manifest = json.dumps(artifact.manifest, ensure_ascii=False, separators=(",", ":")).encode()
    sections = [_Section(Kind.MANIFEST, [(0, manifest)], len(manifest))]
    for number, part in enumerate(artifact.targets):
        try:
            table = table_bytes(part.table)
        except ValueError as error:
            raise ArtifactError(f"the table cannot be written: {error}") from error
        check_table(table, artifact.weights.bytes, artifact.state.bytes, len(part.code.entries))
        for kind, data in ((Kind.TABLE, table), (Kind.CODE, code_bytes(part.code))):
            section = _Section(kind, [(0, data)], len(data), number)
            section.machine, section.features = part.machine, part.features
            sections.append(section)
    for kind, held in ((Kind.WEIGHTS, artifact.weights), (Kind.STATE, artifact.state)):
        parts = [(begin, memoryview(data).cast("B")) for begin, data in held.parts.items()]
        sections.append(_Section(kind, parts, held.bytes))
    end = 8 * (_HEADER_WORDS + _SECTION_WORDS * len(sections))
    for section in sections:
        section.offset = rounded(end, alignment(section.kind))
        section.parts = [(section.offset + place, data) for place, data in section.parts]
        end = section.offset + section.bytes
    return sections


def alignment(kind: Kind) -> int:
    """Of a section of the file."""
    return PAGE if kind in (Kind.CODE, Kind.WEIGHTS, Kind.STATE) else ALIGN


def rounded(place: int, to: int) -> int:
    return -(-place // to) * to


def _end(sections: Sequence[_Section]) -> int:
    return sections[-1].offset + sections[-1].bytes


def _seal(view: memoryview, sections: Sequence[_Section]) -> None:
    """Header and directory, once all sections are in their places."""
    words = [MAGIC, VERSION, len(view), len(sections), 0, 0]
    for each in sections:
        checksum = _native.checksum(view[each.offset : each.offset + each.bytes])
        words += (each.kind, each.target, each.machine, each.features, each.offset, each.bytes, signed(checksum))
    packed = struct.pack(f"<{len(words)}q", *words)
    words[FileHeader._fields.index("checksum")] = signed(_native.checksum(packed))
    struct.pack_into(f"<{len(words)}q", view, 0, *words)


def signed(word: int) -> int:
    """64 bits as a signed integer."""
    return word - (1 << 64) if word >> 63 else word


# --- CODE ---------------------------------------------------------------------------------------------------


def code_bytes(code: Code) -> bytes:
    """A CODE section."""
    names = list(dict.fromkeys(slot.name.encode() for slot in code.slots))
    places = dict(zip(names, _ends(names), strict=True))
    blob = 8 * (len(CodeHeader._fields) + len(code.entries) + len(SlotRecord._fields) * len(code.slots))
    text = b"".join(names)
    image = rounded(blob + len(text), PAGE)
    words = [*CodeHeader(len(code.entries), len(code.slots), blob, image, len(code.image)), *code.entries]
    for slot in code.slots:
        name = slot.name.encode()
        words += SlotRecord(slot.offset, places[name], len(name), slot.addend)
    head = struct.pack(f"<{len(words)}q", *words) + text
    return head + bytes(image - len(head)) + code.image


def _ends(names: Sequence[bytes]) -> Iterator[int]:
    place = 0
    for name in names:
        yield place
        place += len(name)
