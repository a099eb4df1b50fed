"""Writing a table: sections as lists of words, then all of them as bytes.

    writer = TableWriter("forward0")
    writer.add("kernels", Kernel("k0", 2))   →   0, its number
    writer.pack()                            →   bytes

What occurs several times (strings, expressions, lists, layouts, objects) is written once.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any

from smelt.ir.table.layout import (
    HEADER_WORDS,
    MAGIC,
    VERSION,
    double_bits,
    row_of,
    section_of,
    spread_row_of,
    words_of,
)
from smelt.ir.table.records import (
    KINDS,
    SECTIONS,
    Allocate,
    Device,
    Dtype,
    Expression,
    ItemKind,
    Kernel,
    Layout,
    Next,
    PostfixCode,
    ProgramTable,
    Ref,
    Step,
    StepKind,
    Table,
    TableHeader,
    Value,
)

# What PyTorch's C interface has for a dtype, -1: nothing; and for a device: the numbers of its kind and its own.
DtypeCode = Callable[[Any], int]
DeviceCode = Callable[[Any], tuple[int, int] | None]

_SPREAD: dict[type, Any] = {record: union for union in (Value, Next) for record in KINDS[union]}
_STEPS = {record: (int(kind), section_of(record)) for record, kind in KINDS[Step].items() if record is not Allocate}
_SHARED = ("instructions", "dims")  # sections in which equal records are written once
_ITEM_WIDTH = 4
# As plain integers, which are quicker than members of an enum.
_OBJECT, _VALUE, _TUPLE, _LIST, _NONE, _BOOL, _INTEGER, _DOUBLE = map(int, ItemKind)
_ALLOCATE = int(StepKind.ALLOCATE)


class TableWriter:
    """The sections of one table as they grow, each a list of words; and the objects that it refers to."""

    def __init__(self, name: str, objects: Iterable[Any] = ()) -> None:
        self.words: dict[str, list[int]] = {section: [] for section in SECTIONS}
        self.objects = list(objects)
        self.numbers, self.items, self.steps = self.words["numbers"], self.words["items"], self.words["steps"]
        # What is there already, and its number.
        self._strings: dict[str, int] = {name: 0}
        self._expressions: dict[Expression, int] = {}
        self._references: dict[tuple[int, ...], int] = {}
        self._shared: dict[tuple[str, tuple[Any, ...]], int] = {}
        self._numbers: dict[Any, int] = {}  # layouts, codes: where they begin
        self._objects: dict[int, int] = {}  # by identity
        self._names: dict[tuple[str, ...], tuple[str, ...]] = {}

    # --- records --------------------------------------------------------------------------------------

    def length_of(self, section: str) -> int:
        """How many records a section has so far."""
        return len(self.words[section]) // len(words_of(section))

    def add(self, section: str, record: Any) -> int:
        """The number of a new record."""
        kind: Any = type(record)
        row = self.spread(record) if kind in _SPREAD else row_of(kind)(self, record)
        words = self.words[section]
        number = len(words) // len(row)
        words += row
        return number

    def step(self, step: Step) -> tuple[int, int]:
        """The kind of a step, and the number of its record."""
        if type(step) is Allocate:
            return _ALLOCATE, step.value
        kind, section = _STEPS[type(step)]
        return kind, self.add(section, step)

    def spread(self, record: Any) -> tuple[int, ...]:
        """The words of one of several records."""
        kind: Any = type(record)
        return spread_row_of(_SPREAD[kind], kind)(self, record)

    def span(self, section: str, records: tuple[Any, ...]) -> tuple[int, int]:
        """Where records stand one after the other, and how many they are."""
        first = self._shared.get((section, records)) if section in _SHARED else None
        if first is None:
            first = self.length_of(section)
            for each in records:
                if section == "steps":
                    self.steps += self.step(each)
                else:
                    self.add(section, each)
            if section in _SHARED:
                self._shared[section, records] = first
        return first, len(records)

    # --- what records refer to ------------------------------------------------------------------------

    def string(self, text: str) -> int:
        """The number of a string."""
        return self._strings.setdefault(text, len(self._strings))

    def expression(self, code: Expression) -> int:
        number = self._expressions.get(code)
        if number is None:
            number = self._expressions[code] = self.add("expressions", PostfixCode(code))
        return number

    def references(self, numbers: Sequence[int]) -> tuple[int, int]:
        """Where a list begins, and its length."""
        key = tuple(numbers)
        first = self._references.get(key)
        if first is None:
            first = self._references[key] = len(self.words["references"])
            self.words["references"] += key
        return first, len(key)

    def numbers_of(self, numbers: tuple[int, ...]) -> tuple[int, int]:
        """Where plain words begin, and how many they are."""
        first = self._numbers.get(numbers)
        if first is None:
            first = self._numbers[numbers] = len(self.numbers)
            self.numbers += numbers
        return first, len(numbers)

    def layout(self, layout: Layout) -> int:
        """Where sizes, strides and the offset are."""
        place = self._numbers.get(layout)
        if place is None:
            shape, stride, offset = layout
            if len(shape) != len(stride):
                raise ValueError(f"sizes {shape} and strides {stride} are not of one length")
            place = self._numbers[layout] = len(self.numbers)
            self.numbers += (*shape, *stride, offset)
        return place

    def object(self, referenced: Any) -> int:
        """The place of an object among those beside the table."""
        number = self._objects.get(id(referenced))
        if number is None:
            number = self._objects[id(referenced)] = len(self.objects)
            self.objects.append(referenced)
        return number

    def names(self, names: tuple[str, ...]) -> int:
        """The same of names, which are equal more often than one object."""
        return self.object(self._names.setdefault(names, names))

    # --- arguments ------------------------------------------------------------------------------------

    def items_of(self, values: Sequence[Any]) -> tuple[int, int]:
        """A row of items: the number of the first, and how many. What is inside of them comes later in the table, in
        the order of the items."""
        first = len(self.items) // _ITEM_WIDTH
        lists = self._row(values)
        for place, inside in lists:
            self.items[place + 1] = len(self.items) // _ITEM_WIDTH
            lists += self._row(inside)
        return first, len(values)

    def _row(self, values: Sequence[Any]) -> list[tuple[int, Sequence[Any]]]:
        """The places of those that are lists of items."""
        items = self.items
        lists: list[tuple[int, Sequence[Any]]] = []
        for value in values:
            if type(value) is Ref:
                number, layout = value
                if layout is None:
                    items += (_VALUE, number, 0, -1)
                else:
                    items += (_VALUE, number, len(layout[0]), self.layout(layout))
            elif type(value) in (tuple, list) and _has_refs(value):
                lists.append((len(items), value))
                items += (_TUPLE if type(value) is tuple else _LIST, 0, len(value), -1)
            else:
                items += self._plain(value)
        return lists

    def item(self, values: tuple[Any, ...]) -> int:
        """A tuple even if no tensor is in it."""
        place = len(self.items)
        self.items += (_TUPLE, 0, len(values), -1)
        self.items[place + 1] = self.items_of(values)[0]
        return place // _ITEM_WIDTH

    def _plain(self, value: Any) -> tuple[int, int, int, int]:
        """An item without tensors."""
        kind = type(value)
        if value is None:
            return _NONE, 0, 0, -1
        if kind is bool:
            return _BOOL, int(value), 0, -1
        if value.__class__ is int and (kind is not int or -(1 << 63) <= value < 1 << 63):  # a `SymSize` too
            return _INTEGER, value, 0, -1
        if kind is float:
            return _DOUBLE, double_bits(value), 0, -1
        return _OBJECT, self.object(value), 0, -1

    # --- the whole ------------------------------------------------------------------------------------

    def pack(self) -> bytes:
        """The whole table."""
        words, strings = self.complete()
        return struct.pack(f"<{len(words)}q", *words) + strings

    def complete(self) -> tuple[list[int], bytes]:
        """All words of the table, and the bytes of the strings behind them."""
        encoded = [text.encode() for text in self._strings]
        ends = accumulate(len(text) + 1 for text in encoded)
        self.words["strings"] = [
            word for end, text in zip(ends, encoded, strict=True) for word in (end - len(text) - 1, len(text))
        ]
        directory: list[int] = []
        sections: list[int] = []
        for section, words in self.words.items():
            directory += (HEADER_WORDS + len(sections), self.length_of(section), len(words_of(section)))
            sections += words
        end = 8 * (HEADER_WORDS + len(sections))
        blob = b"\0".join((*encoded, b""))
        if blob.count(0) != len(encoded):
            raise ValueError(f"a string has a zero byte: {next(text for text in self._strings if chr(0) in text)!r}")
        return [*TableHeader(MAGIC, VERSION, end + len(blob), end, name=0), *directory, *sections], blob


def _has_refs(value: Sequence[Any]) -> bool:
    return any(type(each) is Ref or (isinstance(each, tuple | list) and _has_refs(each)) for each in value)


class ProgramWriter(TableWriter):
    """The table of a program of a process. Programs of dynamic shapes are written for each combination of sizes, so
    that this is to be quick."""

    def __init__(self, name: str, constants: Sequence[Any], dtype_code: DtypeCode, device_code: DeviceCode) -> None:
        super().__init__(name, constants)
        self._dtype_code, self._device_code = dtype_code, device_code
        self._described: dict[tuple[str, Any], int] = {}
        self._kernels: dict[tuple[str, int, int], int] = {}

    @property
    def step_count(self) -> int:
        return len(self.steps) // 2

    def add_step(self, step: Step) -> None:
        """The next step."""
        self.steps += self.step(step)

    def described(self, section: str, described: Any) -> int:
        """The number of a dtype or of a device."""
        number = self._described.get((section, described))
        if number is None:
            name = str(described).removeprefix("torch.")
            if section == "dtypes":
                number = self.add(section, Dtype(name, self._dtype_code(described), described))
            else:
                number = self.add(section, Device(name, *(self._device_code(described) or (-1, -1)), described))
            self._described[section, described] = number
        return number

    def kernel(self, name: str, launcher: Any, buffers: int, target: str) -> int:
        """The number of a kernel."""
        key = (name, id(launcher), buffers)
        number = self._kernels.get(key)
        if number is None:
            number = self._kernels[key] = self.add("kernels", Kernel(name, buffers, target=target, object=launcher))
        return number


def write_program(
    program: ProgramTable, dtype_code: DtypeCode, device_code: DeviceCode
) -> tuple[bytes, tuple[Any, ...]]:
    """The table of a program that is known as a whole, and the objects that it refers to."""
    writer = ProgramWriter(program.name, program.constants, dtype_code, device_code)
    for section in ("tensors", "kernels"):
        for record in getattr(program, section):
            writer.add(section, record)
    for step in program.steps:
        writer.add_step(step)
    writer.add("programs", program.program)
    return writer.pack(), tuple(writer.objects)


def table_bytes(table: Table) -> bytes:
    """The table of a file; a `ValueError` says what cannot be written."""
    writer = TableWriter(table.name)
    try:
        for section in ("registers", "outputs", "kernels", "states"):
            for record in getattr(table, section):
                writer.add(section, record)
        return writer.pack()
    except KeyError as error:
        raise ValueError(f"there is no dtype {error}") from error
    except struct.error as error:
        raise ValueError(str(error)) from error
