"""Reading a table: sections as rows of named fields.

    TableReader(table).rows("calls")[0].name   →   7

For people and tools; what runs a table reads the same bytes in C.
"""

import struct
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from smelt.ir.table.layout import HEADER_WORDS, MAGIC, SECTIONS, VERSION, TableHeader

_DIRECTORY = {section: len(TableHeader._fields) + 3 * number for number, section in enumerate(SECTIONS)}


class BadTable(ValueError):
    """Bytes that are no table, or break a rule."""


def require(holds: object, where: str, what: str) -> None:
    """An error unless a rule holds."""
    if not holds:
        raise BadTable(f"{where}: {what}")


class TableReader:
    """A table, section by section. C checks what records refer to (`csrc/executor/table.c`)."""

    def __init__(self, table: bytes | memoryview, objects: Sequence[Any] = ()) -> None:
        self.table = table
        self.objects = objects
        require(len(table) >= 8 * HEADER_WORDS, "the table", "is cut")
        self._head = struct.unpack_from(f"<{HEADER_WORDS}q", table)
        self.header = TableHeader._make(self._head[: len(TableHeader._fields)])
        require(self.header.magic == MAGIC, "the table", "does not begin like one")
        require(self.header.version == VERSION, "the table", f"has version {self.header.version}")
        require(self.header.bytes == len(table), "the table", "has another length")
        self._rows: dict[str, list[Any]] = {}

    def _place(self, section: str) -> tuple[int, int, int]:
        """Where a section begins, in words, how many records it has, and of how many words."""
        at = _DIRECTORY[section]
        first, count, width = self._head[at : at + 3]
        require(width == len(SECTIONS[section]._fields), "the table", f"has {section} of another layout")
        fits = first >= HEADER_WORDS and 0 <= count * width <= len(self.table) // 8 - first
        require(fits, "the table", f"has {section} out of place")
        return first, count, width

    def words(self, section: str) -> tuple[int, ...]:
        """All words of a section."""
        first, count, width = self._place(section)
        return struct.unpack_from(f"<{count * width}q", self.table, 8 * first)

    def rows(self, section: str) -> list[Any]:
        """The records of a section."""
        rows = self._rows.get(section)
        if rows is None:
            words, width = self.words(section), len(SECTIONS[section]._fields)
            make = SECTIONS[section]._make
            rows = self._rows[section] = [make(words[at : at + width]) for at in range(0, len(words), width)]
        return rows

    def length_of(self, section: str) -> int:
        """How many records a section has."""
        return self._place(section)[1]

    @cached_property
    def strings(self) -> list[str]:
        return [self._string(number, *row) for number, row in enumerate(self.rows("strings"))]

    def _string(self, number: int, offset: int, length: int) -> str:
        where, size = f"strings {number}", len(self.table) - self.header.blob
        fits = 0 <= offset < size and 0 <= length < size - offset
        begin = self.header.blob + offset
        require(fits and not self.table[begin + length], where, "has a wrong length")
        data = bytes(self.table[begin : begin + length])
        require(0 not in data, where, "has a zero byte")
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise BadTable(f"{where}: is not UTF-8") from error

    @property
    def name(self) -> str:
        return self.strings[self.header.name]

    def references(self, first: int, count: int) -> tuple[int, ...]:
        """The numbers of a list."""
        return self._references[first : first + count]

    @cached_property
    def _references(self) -> tuple[int, ...]:
        return self.words("references")
