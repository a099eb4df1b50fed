"""Files of sections: what artifacts and the files of the disk cache are made of. One writer, and one reader, in C.

    pack([Section.of(Kind.MANIFEST, b"{}"), …])   →   the bytes of a file
    unpack(data)                                  →   the sections again, as views, or an error (SM050)

`layout` has the records. The reader (`csrc/executor/format/file.c`) holds every byte against a place or a checksum.
That tells damage, not who wrote a file: whoever reads code out of one asks first whose it is.
"""

import contextlib
import json
import mmap
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from smelt import _native
from smelt.base.errors import SmeltError
from smelt.base.fast_dataclass import dataclass
from smelt.ir.artifact_file.layout import (
    ALIGN,
    MAGIC,
    MOST_SECTIONS,
    PAGE,
    VERSION,
    WEIGHTS_ELSEWHERE,
    FileHeader,
    Kind,
    Machine,
    SectionRecord,
)

_CHUNK_BYTES = 1 << 20
_ZEROS = bytes(_CHUNK_BYTES)
KEY = "key"  # of a manifest in the disk cache: what the file was written for


class ArtifactError(SmeltError):
    """A file, or what is to become one, breaks a rule."""

    def __init__(self, message: str) -> None:
        super().__init__("SM050", message)


def require(holds: object, where: str, what: str) -> None:
    """An error unless a rule holds."""
    if not holds:
        raise ArtifactError(f"{where}: {what}")


@dataclass(frozen=True, slots=True)
class Section:
    """`parts`: bytes, or anything with a buffer of them, and where in the section they begin, in order."""

    kind: int
    parts: tuple[tuple[int, Any], ...]
    target: int = -1
    machine: int = Machine.ANY
    features: int = 0

    @classmethod
    def of(cls, kind: int, data: Any, target: int = -1, machine: int = Machine.ANY, features: int = 0) -> "Section":
        """A section of one part."""
        return cls(kind, ((0, data),), target, machine, features)

    @property
    def data(self) -> Any:
        """Of one part: its bytes."""
        ((_, data),) = self.parts
        return data

    @property
    def bytes(self) -> int:
        return self.parts[-1][0] + len(self.parts[-1][1]) if self.parts else 0

    @property
    def is_elsewhere(self) -> bool:
        """Whether its bytes are in another file."""
        return _is_elsewhere(self)


def _is_elsewhere(section: Section | SectionRecord) -> bool:
    return section.kind == Kind.WEIGHTS and section.features == WEIGHTS_ELSEWHERE


def _stored(record: SectionRecord) -> int:
    """How many of its bytes the file has."""
    return 0 if _is_elsewhere(record) else record.bytes


def manifest_section(manifest: Mapping[str, Any]) -> Section:
    """What a file says of itself: JSON. Strings may be names of files, which need not be text."""
    text = json.dumps(manifest, ensure_ascii=False, separators=(",", ":"))
    return Section.of(Kind.MANIFEST, text.encode(errors="surrogatepass"))


def manifest_in(sections: Sequence[Section]) -> dict[str, Any]:
    """What `manifest_section` made, which comes first."""
    require(sections[0].kind == Kind.MANIFEST, "the file", "does not begin with a manifest")
    try:
        manifest = json.loads(bytes(sections[0].data))
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"the manifest is not JSON: {error}") from error
    require(isinstance(manifest, dict), "the manifest", "is not an object")
    return dict(manifest)


def unpack(data: Any, is_artifact: bool = False) -> list[Section]:
    """The sections of a file that nothing is wrong with, views of it. `is_artifact`: they are those of an artifact.
    Weights that are in another file are zeros."""
    view = memoryview(data).cast("B").toreadonly()
    sections = []
    for each in read_sections(view, is_artifact):
        held = bytes(each.bytes) if _is_elsewhere(each) else view[each.offset : each.offset + each.bytes]
        sections.append(Section.of(each.kind, held, each.target, each.machine, each.features))
    return sections


def read_sections(view: memoryview, is_artifact: bool = False) -> list[SectionRecord]:
    """The directory of a file that nothing is wrong with."""
    try:
        directory = _native.read_sections(view, is_artifact)
    except ValueError as error:
        raise ArtifactError(str(error)) from error
    return list(map(SectionRecord._make, struct.iter_unpack(f"<{len(SectionRecord._fields)}q", directory)))


# --- writing ------------------------------------------------------------------------------------------------


def pack(sections: Sequence[Section]) -> bytes:
    """The bytes of a file."""
    records = _placed(sections)
    buffer = bytearray(_end(records))
    for place, data in _pieces(sections, records):
        buffer[place : place + len(data)] = data
    _seal(memoryview(buffer), records)
    return bytes(buffer)


def save(sections: Sequence[Section], path: str | os.PathLike[str]) -> None:
    """The file itself, part after part, nothing copied in memory."""
    records = _placed(sections)

    def fill(file: Any) -> None:
        file.truncate(_end(records))
        for place, data in _pieces(sections, records):
            for begin in range(0, len(data), _CHUNK_BYTES):
                chunk = bytes(data[begin : begin + _CHUNK_BYTES])
                if chunk != _ZEROS[: len(chunk)]:  # a file system stores no zeros that nobody writes
                    file.seek(place + begin)
                    file.write(chunk)
        file.flush()
        with mmap.mmap(file.fileno(), 0) as mapped, memoryview(mapped) as view:
            _seal(view, records)

    _replace(path, fill)


def replace_file(path: str | os.PathLike[str], pieces: Iterable[bytes]) -> None:
    """A file with these bytes, one piece after the other."""
    _replace(path, lambda file: file.writelines(pieces))


def _replace(path: str | os.PathLike[str], fill: Callable[[Any], object]) -> None:
    """A file that `fill` writes. All of it is there, or it is as it was before. A symbolic link stays a link; a file
    that is replaced keeps its mode."""
    path = Path(os.path.realpath(path))
    require(not path.exists() or path.is_file(), str(path), "is no file, and is not replaced")  # such as /dev/null
    unfinished = path.with_name(f".{os.urandom(8).hex()}")  # nobody else's, and short: there is room for it
    descriptor, is_named = _open_unfinished(path.parent, unfinished)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            fill(file)
            file.flush()
            if path.exists():
                os.fchmod(file.fileno(), path.stat().st_mode & 0o7777)
            if not is_named:
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
    return os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666), True


def _placed(sections: Sequence[Section]) -> list[SectionRecord]:
    """Their records, without checksums."""
    require(len(sections) <= MOST_SECTIONS, "the file", f"has {len(sections)} sections, more than {MOST_SECTIONS}")
    end = 8 * (len(FileHeader._fields) + len(SectionRecord._fields) * len(sections))
    records = []
    for each in sections:
        offset = rounded(end, ALIGN if each.kind in (Kind.MANIFEST, Kind.TABLE) else PAGE)
        end = offset + (0 if each.is_elsewhere else each.bytes)
        records.append(SectionRecord(each.kind, each.target, each.machine, each.features, offset, each.bytes, 0))
    return records


def _pieces(sections: Sequence[Section], records: Sequence[SectionRecord]) -> Iterator[tuple[int, Any]]:
    for section, record in zip(sections, records, strict=True):
        for place, data in () if section.is_elsewhere else section.parts:
            yield record.offset + place, data


def rounded(place: int, to: int) -> int:
    return -(-place // to) * to


def _end(records: Sequence[SectionRecord]) -> int:
    return records[-1].offset + _stored(records[-1])


def _seal(view: memoryview, records: Sequence[SectionRecord]) -> None:
    """Header and directory, once all sections are in their places."""
    words = [*FileHeader(MAGIC, VERSION, len(view), len(records), reserved=0, checksum=0)]
    for each in records:
        checksum = _native.checksum(view[each.offset : each.offset + _stored(each)])
        words += each._replace(checksum=signed(checksum))
    packed = struct.pack(f"<{len(words)}q", *words)
    words[FileHeader._fields.index("checksum")] = signed(_native.checksum(packed))
    struct.pack_into(f"<{len(words)}q", view, 0, *words)


def signed(word: int) -> int:
    """64 bits as a signed integer."""
    return word - (1 << 64) if word >> 63 else word
