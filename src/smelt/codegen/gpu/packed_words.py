"""Packs pairs of 16-bit numbers into words for values that a loop carries, so that each pair takes one register."""

from collections.abc import Sequence

from smelt.codegen.gpu.simt import Simt
from smelt.ir.loops import BITS, Value


def words_of(kind: str, count: int) -> int:
    """How many values so many numbers are carried as."""
    return count // 2 if _is_packed(kind, count) else count


def _is_packed(kind: str, count: int) -> bool:
    return BITS[kind] == 16 and count % 2 == 0


def packed(b: Simt, values: Sequence[Value]) -> list[Value]:
    if not _is_packed(values[0].kind, len(values)):
        return list(values)
    words = [b.convert("zext", b.bits(each) if each.kind.startswith("f") else each, "i32") for each in values]
    return [b.or_(low, b.shl(high, 16)) for low, high in zip(words[::2], words[1::2], strict=True)]


def unpacked(b: Simt, words: Sequence[Value], kind: str, count: int) -> list[Value]:
    if not _is_packed(kind, count):
        return list(words)
    halves = [b.convert("trunc", each, "i16") for word in words for each in (word, b.lshr(word, 16))]
    return [b.from_bits(each) for each in halves] if kind.startswith("f") else halves
