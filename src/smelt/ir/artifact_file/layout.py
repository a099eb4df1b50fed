"""The layout of an artifact's file: header, directory, and the records of a CODE section, field by field.

Every field is a signed 64-bit word, little-endian. `ir/table` has the layout of a TABLE. `tools/table_header.py` writes
both as C (csrc/executor/records.h).
"""

from enum import IntEnum
from typing import Any, NamedTuple

MAGIC = int.from_bytes(b"smeltart", "little")
VERSION = 2
PAGE = 4096  # what CODE, WEIGHTS and STATE are aligned to
ALIGN = 64  # what the other sections and each tensor are aligned to
MOST_SECTIONS = 256
MOST_CAPABILITY = 999  # of a GPU
WEIGHTS_ELSEWHERE = 1  # as the features of a WEIGHTS section: its bytes are in a file of their own


class Kind(IntEnum):
    """Of a section."""

    MANIFEST = 1
    TABLE = 2
    CODE = 3
    WEIGHTS = 4
    STATE = 5


class Machine(IntEnum):
    """What a target's code runs on."""

    ANY = 0  # sections that are not of one target
    X86_64 = 1
    AARCH64 = 2
    RISCV64 = 3
    CUDA = 4  # PTX; what it needs is no mask of features but a compute capability: 90 for 9.0


# What code may need of a processor beyond what every one of its machine has: bit 0, 1, … by LLVM's names.
FEATURES: dict[Machine, tuple[str, ...]] = {
    Machine.X86_64: (
        "sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "cx16", "sahf", "avx", "avx2", "bmi", "bmi2", "f16c", "fma",
        "lzcnt", "movbe", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512vnni", "avx512bf16",
        "avx512fp16", "avxvnni", "avx512vbmi", "avx512vbmi2", "avx512ifma", "avx512bitalg", "avx512vpopcntdq",
        "gfni", "vaes", "vpclmulqdq", "aes", "pclmul",
    ),
    Machine.AARCH64: (
        "crc", "lse", "rdm", "fullfp16", "fp16fml", "dotprod", "bf16", "i8mm", "sve", "sve2", "rcpc", "jsconv",
        "complxnum", "aes", "sha2", "sha3", "flagm",
    ),
    Machine.RISCV64: ("v", "zba", "zbb", "zbs", "zfh", "zvfh"),
    Machine.CUDA: (),
}  # fmt: skip


def feature_mask(machine: Machine, names: Any) -> int:
    """The features of these names as bits; a KeyError for one that has no bit."""
    places = {name: place for place, name in enumerate(FEATURES.get(machine, ()))}
    return sum({1 << places[name] for name in names})


class FileHeader(NamedTuple):
    """What a file begins with."""

    magic: int
    version: int
    bytes: int
    sections: int
    reserved: int  # 0
    checksum: int


class SectionRecord(NamedTuple):
    """A section of the file. `target`: -1 where it is not of one target."""

    kind: int
    target: int
    machine: int
    features: int
    offset: int
    bytes: int
    checksum: int


class CodeHeader(NamedTuple):
    """What a CODE section begins with; then an entry for each kernel, slots, the bytes of names, the image.

    An entry is where in the image a kernel's function begins. All offsets count bytes from the start of the section.
    """

    kernels: int
    slots: int
    blob: int
    image: int  # a multiple of PAGE
    image_bytes: int


class SlotRecord(NamedTuple):
    """Eight bytes of the image, at `offset`, that get the address of something outside, by name, plus `addend`; of the
    image itself where the name is empty. `name`: where in the blob it begins."""

    offset: int
    name: int
    length: int
    addend: int
