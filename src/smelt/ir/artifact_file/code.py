"""CODE sections: machine code as an image, where in it functions begin, and its slots.

    code_bytes(Code(image, entries=(0, 64), slots=(CodeSlot(4088, "smelt_parallel_for"),)))   →   the section
    read_code(section)                                                                       →   the same again

Code for a GPU or a chip is text, or files, that a driver compiles or loads: an image in `pieces`, an entry each.
"""

import itertools
import struct
from collections.abc import Sequence
from typing import Any

from smelt.base.fast_dataclass import dataclass
from smelt.ir.artifact_file.container import ArtifactError, Section, require, rounded
from smelt.ir.artifact_file.layout import PAGE, CodeHeader, Kind, SlotRecord


@dataclass(frozen=True, slots=True)
class CodeSlot:
    """Eight bytes at `offset` that get the address of `name` plus `addend`; no name: of the image itself."""

    offset: int
    name: str
    addend: int = 0


@dataclass(frozen=True, slots=True)
class Code:
    """An image, where in it each kernel of a table begins (or each function of a list), and what it is to be told."""

    image: bytes
    entries: tuple[int, ...]
    slots: tuple[CodeSlot, ...] = ()

    @classmethod
    def of_pieces(cls, pieces: Sequence[bytes]) -> "Code":
        return cls(b"".join(pieces), tuple(_places(pieces)))

    @property
    def pieces(self) -> list[bytes]:
        """From each entry to the next."""
        return [self.image[begin:end] for begin, end in itertools.pairwise((*self.entries, len(self.image)))]


def check_code(code: Code, kernels: int) -> None:
    """The rules of an image."""
    size = len(code.image)
    require(len(code.entries) == kernels, "the code", f"has {len(code.entries)} entries for {kernels} kernels")
    require(all(0 <= entry < size for entry in code.entries), "the code", "has an entry outside its image")
    for number, slot in enumerate(code.slots):
        require(0 <= slot.offset <= size - 8, f"slot {number} of the code", "is outside the image")
        inside = slot.name or 0 <= slot.addend <= size
        require(inside, f"slot {number} of the code", "is the address of something outside the image")


def code_bytes(code: Code) -> bytes:
    """A CODE section."""
    names = list(dict.fromkeys(slot.name.encode() for slot in code.slots))
    places = dict(zip(names, _places(names), strict=True))
    blob = 8 * (len(CodeHeader._fields) + len(code.entries) + len(SlotRecord._fields) * len(code.slots))
    text = b"".join(names)
    image = rounded(blob + len(text), PAGE)
    words = [*CodeHeader(len(code.entries), len(code.slots), blob, image, len(code.image)), *code.entries]
    for slot in code.slots:
        name = slot.name.encode()
        words += SlotRecord(slot.offset, places[name], len(name), slot.addend)
    head = struct.pack(f"<{len(words)}q", *words) + text
    return head + bytes(image - len(head)) + code.image


def code_section(code: Code) -> Section:
    """A CODE section that is of no target."""
    return Section.of(Kind.CODE, code_bytes(code))


def _places(pieces: Sequence[bytes]) -> list[int]:
    """Where each begins, one behind the other."""
    return list(itertools.accumulate(map(len, pieces[:-1]), initial=0)) if pieces else []


def read_code(section: Any) -> Code:
    """What `code_bytes` made, every rule checked."""
    view = memoryview(section)
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
        slots.append(CodeSlot(slot.offset, _text(view[begin : begin + slot.length]), slot.addend))
    code = Code(bytes(view[header.image :]), entries, tuple(slots))
    check_code(code, header.kernels)
    return code


def _text(data: memoryview) -> str:
    try:
        return bytes(data).decode()
    except UnicodeDecodeError as error:
        raise ArtifactError("the code: a string is not UTF-8") from error
