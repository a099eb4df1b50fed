"""The layout of a table: which words each record has, by the types of its fields (`ir/table/records.py`).

    bytes    header │ strings │ instructions │ … │ programs │ the bytes of all strings
    header   magic, version, bytes, blob, name, then of each section (first word, records, words of a record)

Every field is signed 64-bit words, little-endian. A record refers to others by number, to text by the number of a
string, and to Python's objects by their place in a tuple that comes beside the table. There are no addresses: the same
bytes are good in another process.

    int, bool, an enumeration    the number               float                         its bits
    str, an expression, a record the number of a record   X | None                      the same, or -1
    tuple[X, ...] of records     the first of them, and how many
    tuple[X, ...] of all else    where in `references` their numbers begin, and how many
    a union of records           its kind and the fields of all of them; a step: its kind and the number of its record

A word may have a rule, which every table must keep to. It is the number of a record of a section (INDEX; OPTIONAL: or
-1), or of a member of an enumeration (BELOW: how many there are). It is the first of several records (SPAN: the next
word says how many), or of several references to records of a section (LIST; OPTIONAL_LIST: or -1). It is where in
`numbers` sizes, as many strides and an offset begin (LAYOUT: the next word is the rank).
"""

import functools
import struct
from collections.abc import Callable
from types import NoneType
from typing import Any, NamedTuple, get_args, get_origin

from smelt.ir.table.dtypes import DTYPE_NAMES
from smelt.ir.table.records import (
    KINDS,
    SECTIONS,
    Expression,
    Index,
    Instruction,
    Layout,
    Mark,
    Step,
    TableHeader,
)

MAGIC = int.from_bytes(b"smelttab", "little")
VERSION = 3
HEADER_WORDS = len(TableHeader._fields) + 3 * len(SECTIONS)
Row = Callable[[Any, Any], tuple[int, ...]]  # of a writer and a record: its words
Read = Callable[[Any, tuple[int, ...]], Any]  # of a reader and the words of a field: what it holds

_SECTION_OF = {record: section for section, record in SECTIONS.items()}


def double_bits(number: float) -> int:
    """The bits of a double, as a signed integer."""
    bits: int = struct.unpack("<q", struct.pack("<d", number))[0]
    return bits


def double_of(bits: int) -> float:
    number: float = struct.unpack("<d", struct.pack("<q", bits))[0]
    return number


class Rule(NamedTuple):
    """What a word must keep to, and the section that it refers to, or how many members there are."""

    kind: str
    of: str | int


class Word(NamedTuple):
    """`absent`: what it is in a record of another kind."""

    name: str
    rule: Rule | None = None
    absent: int = 0


class Field(NamedTuple):
    """A field of a record. `write`: its words, as Python over the writer `w` and the value `{v}`."""

    name: str
    words: tuple[Word, ...]
    write: str
    read: Read


def section_of(record: Any) -> str:
    return _SECTION_OF[record]


@functools.cache
def fields_of(record: Any) -> tuple[Field, ...]:
    """The fields of a record."""
    return tuple(_field(name, hint) for name, hint in record.__annotations__.items())


@functools.cache
def words_of(section: str) -> tuple[Word, ...]:
    """The words of a section's records."""
    return _words(SECTIONS[section])


def _words(record: Any) -> tuple[Word, ...]:
    if record == Step:
        return (_kind("kind", record), Word("place"))
    if record in KINDS:
        return (_kind("kind", record), *_spread(record))
    return tuple(word for field in fields_of(record) for word in field.words)


def _kind(name: str, union: Any) -> Word:
    return Word(name, Rule("BELOW", len(KINDS[union])))


@functools.cache
def _members(union: Any) -> dict[int, Any]:
    """The records of a union, by their kinds."""
    return {int(kind): record for record, kind in KINDS[union].items()}


def _spread(union: Any) -> tuple[Word, ...]:
    """The words of all records of a union, by name: a record of another kind has none of its own there."""
    words: dict[str, Word] = {}
    for record in KINDS[union]:
        for field in fields_of(record):
            for word in field.words:
                rule = word.rule
                if rule is not None and rule.kind == "INDEX":
                    word = word._replace(rule=Rule("OPTIONAL", rule.of), absent=-1)
                words[word.name] = word
    return tuple(words.values())


# --- records to words and back --------------------------------------------------------------------------------------


@functools.cache
def row_of(record: Any) -> Row:
    """Writes a record that has a section of its own."""
    parts = [field.write.format(v=f"r.{field.name}") for field in fields_of(record)]
    return _compiled(record.__name__, parts)


@functools.cache
def spread_row_of(union: Any, record: Any) -> Row:
    """Writes a record as one of a union."""
    fields = {word.name: field for field in fields_of(record) for word in field.words}
    parts, written = [str(int(KINDS[union][record]))], set()
    for word in _spread(union):
        field = fields.get(word.name)
        if field is None:
            parts.append(str(word.absent))
        elif field.name not in written:
            written.add(field.name)
            parts.append(field.write.format(v=f"r.{field.name}"))
    return _compiled(record.__name__, parts)


def _compiled(name: str, parts: list[str]) -> Row:
    scope: dict[str, Any] = {"bits": double_bits, "DTYPES": {name: place for place, name in enumerate(DTYPE_NAMES)}}
    exec(compile(f"def row(w, r): return ({', '.join(parts)},)", f"<row of {name}>", "exec"), scope)
    row: Row = scope["row"]
    return row


def read_record(reader: Any, record: Any, words: tuple[int, ...]) -> Any:
    """The record of these words."""
    if record == Step:
        kind = _members(record)[words[0]]
        return kind(words[1]) if kind not in _SECTION_OF else reader.record(section_of(kind), words[1])
    if record in KINDS:
        return _read_spread(reader, record, words)
    values, at = [], 0
    for field in fields_of(record):
        values.append(field.read(reader, words[at : at + len(field.words)]))
        at += len(field.words)
    return record(*values)


def _read_spread(reader: Any, union: Any, words: tuple[int, ...]) -> Any:
    kind = _members(union)[words[0]]
    by_name = {word.name: value for word, value in zip(_spread(union), words[1:], strict=True)}
    return kind(*(
        field.read(reader, tuple(by_name[word.name] for word in field.words)) for field in fields_of(kind)
    ))  # fmt: skip


# --- fields ---------------------------------------------------------------------------------------------------------


def _field(name: str, hint: Any) -> Field:
    base, *marks = (hint.__origin__, *hint.__metadata__) if hasattr(hint, "__metadata__") else (hint,)
    if marks:
        return _marked(name, base, marks[0])
    is_optional = NoneType in get_args(base)
    plain = next(each for each in get_args(base) if each is not NoneType) if is_optional and base not in KINDS else base
    if plain == Expression:
        return _indexed(name, "expressions", is_optional, "w.expression({v})", lambda r, n: r.expressions[n])
    if plain is str:
        return _indexed(name, "strings", is_optional, "w.string({v})", lambda r, n: r.strings[n])
    words: tuple[Word, ...]
    if plain is Layout:
        words = (Word("numbers", Rule("LAYOUT", "numbers")), Word("rank"))
        return Field(name, words, "w.layout({v}), len({v}[0])", lambda r, words: r.layout(*words))
    if base in KINDS:
        words = (_kind(name, base), *_spread(base))
        return Field(name, words, "*w.spread({v})", lambda r, words: _read_spread(r, base, words))
    if get_origin(plain) is tuple:
        return _list(name, get_args(plain)[0])
    if plain in _SECTION_OF:
        section = section_of(plain)
        return _indexed(name, section, is_optional, f"w.add({section!r}, {{v}})", lambda r, n: r.record(section, n))
    if plain is float:
        return Field(name, (Word(name),), "bits({v})", lambda r, words: double_of(words[0]))
    if plain is int:
        return Field(name, (Word(name),), "{v}", lambda r, words: words[0])
    members = 2 if plain is bool else len(plain)
    return Field(name, (Word(name, Rule("BELOW", members)),), "{v}", lambda r, words: plain(words[0]))


def _indexed(name: str, section: str, is_optional: bool, write: str, read: Callable[[Any, int], Any]) -> Field:
    if not is_optional:
        word = Word(name, Rule("INDEX", section), -1)
        return Field(name, (word,), write, lambda r, words: read(r, words[0]))
    word = Word(name, Rule("OPTIONAL", section), -1)
    write = f"-1 if {{v}} is None else {write}"
    return Field(name, (word,), write, lambda r, words: None if words[0] < 0 else read(r, words[0]))


def _spanned(name: str, section: str, write: str, read: Callable[[Any, int, int], Any], rule: str = "SPAN") -> Field:
    count = "rank" if name == "dims" else f"{name.removesuffix('s')}_count"
    words = (Word(name, Rule(rule, section)), Word(count))
    return Field(name, words, f"*{write}", lambda r, words: read(r, *words))


def _list(name: str, of: Any) -> Field:
    if of in _SECTION_OF:
        section = section_of(of)
        return _spanned(name, section, f"w.span({section!r}, {{v}})", lambda r, n, count: r.span(section, n, count))
    item = _field("", of)  # one word
    rule = item.words[0].rule
    lists = {"INDEX": "LIST", "OPTIONAL": "OPTIONAL_LIST"}
    section, kind = ("references", "SPAN") if rule is None else (str(rule.of), lists[rule.kind])
    write = "{v}" if item.write == "{v}" else f"[{item.write.format(v='each')} for each in {{v}}]"
    return _spanned(
        name, section, f"w.references({write})",
        lambda r, first, count: tuple(item.read(r, (each,)) for each in r.references(first, count)), kind,
    )  # fmt: skip


def _marked(name: str, base: Any, mark: Any) -> Field:
    is_optional = NoneType in get_args(base)
    if isinstance(mark, Index):
        if mark.section == "objects":
            return _indexed(name, mark.section, is_optional, "w.object({v})", lambda r, n: r.objects[n])
        return _indexed(name, mark.section, is_optional, "{v}", lambda r, n: n)
    if mark is Mark.DTYPE:
        if not is_optional:
            word = Word(name, Rule("BELOW", len(DTYPE_NAMES)))
            return Field(name, (word,), "DTYPES[{v}]", lambda r, words: DTYPE_NAMES[words[0]])
        write = "-1 if {v} is None else DTYPES[{v}]"
        return Field(name, (Word(name),), write, lambda r, words: None if words[0] < 0 else DTYPE_NAMES[words[0]])
    if mark is Mark.CODE:
        return _list(name, Instruction)
    if mark is Mark.NUMBERS:
        return _spanned(name, "numbers", "w.numbers_of({v})", lambda r, n, count: r.numbers[n : n + count])
    if mark is Mark.ITEMS:
        return _spanned(name, "items", "w.items_of({v})", lambda r, n, count: r.items_of(n, count))
    if mark is Mark.ITEM:
        return _indexed(name, "items", False, "w.item({v})", lambda r, n: r.item(n))
    if mark is Mark.NAMES:
        return _indexed(name, "objects", False, "w.names({v})", lambda r, n: r.objects[n])
    section = "dtypes" if mark is Mark.DTYPE_OBJECT else "devices"
    write = f"w.described({section!r}, {{v}})"
    return _indexed(name, section, False, write, lambda r, n: r.objects[r.rows(section)[n].object])
