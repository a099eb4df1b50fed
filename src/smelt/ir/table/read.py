"""Reading a table: sections as rows of words by name, and as the records that were written.

    TableReader(table).rows("calls")[0].name                →   7
    TableReader(table, objects).records("calls")[0].name    →   "aten::mm.out"

For people and tools; what runs a table reads the same bytes in C. Without its objects a table still shows its kernels,
operators, dtypes and layouts, by name.
"""

import functools
import struct
from collections import namedtuple
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from smelt.ir.table.layout import HEADER_WORDS, MAGIC, VERSION, double_of, read_record, words_of
from smelt.ir.table.records import SECTIONS, Expression, ItemKind, Layout, ProgramTable, Ref, Table, TableHeader, Tensor

_DIRECTORY = {section: len(TableHeader._fields) + 3 * number for number, section in enumerate(SECTIONS)}


class BadTable(ValueError):
    """Bytes that are no table, or break a rule."""


def require(holds: object, where: str, what: str) -> None:
    """An error unless a rule holds."""
    if not holds:
        raise BadTable(f"{where}: {what}")


@functools.cache
def _row_type(section: str) -> Any:
    return namedtuple(section, [word.name for word in words_of(section)])


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
        require(width == len(words_of(section)), "the table", f"has {section} of another layout")
        fits = first >= HEADER_WORDS and 0 <= count * width <= len(self.table) // 8 - first
        require(fits, "the table", f"has {section} out of place")
        return first, count, width

    def words(self, section: str) -> tuple[int, ...]:
        """All words of a section."""
        first, count, width = self._place(section)
        return struct.unpack_from(f"<{count * width}q", self.table, 8 * first)

    def rows(self, section: str) -> list[Any]:
        """The records of a section, as words."""
        rows = self._rows.get(section)
        if rows is None:
            words, width = self.words(section), len(words_of(section))
            make = _row_type(section)._make
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

    def record(self, section: str, number: int) -> Any:
        """The record of a number, as it was written."""
        return read_record(self, SECTIONS[section], self.rows(section)[number])

    def span(self, section: str, first: int, count: int) -> tuple[Any, ...]:
        """Records one after the other."""
        return tuple(self.record(section, number) for number in range(first, first + count))

    def records(self, section: str) -> tuple[Any, ...]:
        """All records of a section."""
        return self.span(section, 0, self.length_of(section))

    def references(self, first: int, count: int) -> tuple[int, ...]:
        """The numbers of a list."""
        return self._references[first : first + count]

    @cached_property
    def _references(self) -> tuple[int, ...]:
        return self.words("references")

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        return self.words("numbers")

    @cached_property
    def expressions(self) -> list[Expression]:
        return [each.code for each in self.records("expressions")]

    def layout(self, first: int, rank: int) -> Layout:
        """Sizes, strides and offset."""
        numbers = self.numbers[first : first + 2 * rank + 1]
        return Layout(numbers[:rank], numbers[rank:-1], numbers[-1])

    def item(self, number: int) -> Any:
        """What an item stands for."""
        item = self.rows("items")[number]
        if item.kind == ItemKind.OBJECT:
            return self.objects[item.what]
        if item.kind == ItemKind.VALUE:
            return Ref(item.what, self.layout(item.numbers, item.length) if item.numbers >= 0 else None)
        if item.kind in (ItemKind.TUPLE, ItemKind.LIST):
            items = self.items_of(item.what, item.length)
            return items if item.kind == ItemKind.TUPLE else list(items)
        if item.kind == ItemKind.BOOL:
            return bool(item.what)
        if item.kind == ItemKind.DOUBLE:
            return double_of(item.what)
        return item.what if item.kind == ItemKind.INTEGER else None

    def items_of(self, first: int, count: int) -> tuple[Any, ...]:
        return tuple(self.item(number) for number in range(first, first + count))


class ProgramReader(TableReader):
    """A table that holds a program of a process."""

    def __init__(self, table: bytes, objects: Sequence[Any] = ()) -> None:
        super().__init__(table, objects)
        require(self.length_of("programs") == 1, "the table", "has no program")
        self.program = self.rows("programs")[0]

    def check_lists(self) -> None:
        """The items of a list follow it, in the order of the lists, so that no item belongs to two lists."""
        end = 0
        for number, item in enumerate(self.rows("items")):
            if item.kind in (ItemKind.TUPLE, ItemKind.LIST):
                in_order = item.what > number and item.what >= end and item.length >= 0
                require(in_order, f"items {number}", "is out of order")
                end = item.what + item.length

    def arena_tensors(self) -> tuple[Tensor, ...]:
        """What the arena lends."""
        return self.span("tensors", self.length_of("tensors") - self.program.arena, self.program.arena)

    def arena_devices(self) -> set[Any]:
        """The devices that it lends memory of."""
        devices = [self.objects[device.object] for device in self.rows("devices")]
        if len(devices) <= 1:
            return set(devices) if self.program.arena else set()
        return {devices[row.device] for row in self.rows("tensors")[self.length_of("tensors") - self.program.arena :]}


def read_program(table: bytes, objects: Sequence[Any]) -> ProgramTable:
    """The program that a table holds; `BadTable` if it is none."""
    try:
        reader = ProgramReader(table, objects)
        reader.check_lists()
        tensors, kernels, steps = (reader.records(section) for section in ("tensors", "kernels", "steps"))
        program = reader.record("programs", 0)
        return ProgramTable(reader.name, tensors, kernels, steps, program, tuple(objects[: program.constants]))
    except (IndexError, ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, BadTable):
            raise
        raise BadTable(f"it refers to what is not there: {error}") from error


def read_table(table: bytes | memoryview) -> Table:
    """The state machine of a file."""
    reader = TableReader(table)
    sections = [reader.records(section) for section in ("registers", "outputs", "kernels", "states")]
    return Table(reader.name, *sections)
