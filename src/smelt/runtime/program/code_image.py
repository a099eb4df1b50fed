"""Machine code as plain bytes, and putting it into memory: no LLVM, no linker, no shared object.

    Image(code, symbols=(("k0", 64),), slots=(CodeSlot(4088, "smelt_parallel_for"),))   →   Loaded: address("k0")

An image does not depend on where it lies but for its slots: eight bytes each, which get the address of something
outside (found in the running process by name), or one inside the image.
"""

import struct
from collections.abc import Mapping

from smelt import _native
from smelt.base.errors import SmeltError
from smelt.base.fast_dataclass import dataclass
from smelt.ir.artifact_file.code import CodeSlot
from smelt.torch_abi.symbols import find_symbol


@dataclass(frozen=True, slots=True)
class Image:
    """Code, the functions in it by offset, and what it needs to be told."""

    code: bytes
    symbols: tuple[tuple[str, int], ...]
    slots: tuple[CodeSlot, ...]


@dataclass(frozen=True, slots=True)
class Loaded:
    """Machine code in memory; it stays there as long as this object does."""

    code: "_native.Code"
    offsets: Mapping[str, int]

    def address(self, symbol: str) -> int:
        return self.code.address + self.offsets[symbol]


def load(image: Image) -> Loaded:
    """Map an image. What it calls is found in this process."""
    words: list[int] = []  # of a SlotRecord (ir/artifact_file/layout.py) each, the address found as its addend
    for slot in image.slots:
        words += slot.offset, 0, len(slot.name), (_outside(slot.name) if slot.name else 0) + slot.addend
    slots = struct.pack(f"<{len(words)}q", *words)
    offsets = dict(image.symbols)
    if not all(0 <= offset < len(image.code) for offset in offsets.values()):
        raise SmeltError("SM030", "a function is outside its image")
    return Loaded(_native.Code(image.code, slots), offsets)


def _outside(name: str) -> int:
    address = find_symbol(name)
    if address is None:
        raise SmeltError("SM030", f"generated code calls {name}, which this process does not have")
    return address
