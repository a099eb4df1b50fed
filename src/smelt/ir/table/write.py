"""Writing a table: sections as lists of words, then all of them as bytes.

    writer = TableWriter("forward0")
    writer.add("steps", StepKind.LAUNCH, 0)
    writer.pack()   →   bytes

What occurs several times (strings, lists of references) is written once.
"""

import struct
from collections.abc import Sequence
from itertools import accumulate

from smelt.ir.table.layout import HEADER_WORDS, MAGIC, SECTIONS, VERSION, TableHeader

_WIDTHS = {section: len(record._fields) for section, record in SECTIONS.items()}


class TableWriter:
    """The sections of one table as they grow, each a list of words."""

    def __init__(self, name: str) -> None:
        self.words: dict[str, list[int]] = {section: [] for section in SECTIONS}
        self._strings: dict[str, int] = {name: 0}
        self._references: dict[tuple[int, ...], int] = {}

    def string(self, text: str) -> int:
        """The number of a string."""
        return self._strings.setdefault(text, len(self._strings))

    def length_of(self, section: str) -> int:
        """How many records a section has so far."""
        return len(self.words[section]) // _WIDTHS[section]

    def add(self, section: str, *words: int) -> int:
        """The number of a new record."""
        number = self.length_of(section)
        self.words[section] += words
        return number

    def references(self, numbers: Sequence[int]) -> tuple[int, int]:
        """Where a list begins, and its length."""
        key = tuple(numbers)
        first = self._references.get(key)
        if first is None:
            first = self._references[key] = len(self.words["references"])
            self.words["references"] += key
        return first, len(key)

    def pack(self) -> bytes:
        """The whole table."""
        encoded = [text.encode() for text in self._strings]
        ends = accumulate(len(text) + 1 for text in encoded)
        self.words["strings"] = [
            word for end, text in zip(ends, encoded, strict=True) for word in (end - len(text) - 1, len(text))
        ]
        directory: list[int] = []
        sections: list[int] = []
        for section, records in self.words.items():
            directory += (HEADER_WORDS + len(sections), self.length_of(section), _WIDTHS[section])
            sections += records
        end = 8 * (HEADER_WORDS + len(sections))
        blob = b"\0".join((*encoded, b""))
        words = (*TableHeader(MAGIC, VERSION, end + len(blob), end, name=0), *directory, *sections)
        return struct.pack(f"<{len(words)}q", *words) + blob
