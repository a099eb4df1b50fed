"""The records of a table as a C header declares them, to be held against Python's.

    sections_of(header)   →   [Declared("strings", "StringRecord", (Field("offset", "FREE", "0"), …)), …]
"""

import re
from pathlib import Path
from typing import NamedTuple

CSRC = Path(__file__).parents[2] / "src" / "smelt" / "csrc"


class Field(NamedTuple):
    """A name, its rule, and the section that the rule is about."""

    name: str
    rule: str
    section: str


class Declared(NamedTuple):
    """A section: its name, the type of its records, and their fields."""

    name: str
    type: str
    fields: tuple[Field, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)


def header_text(path: str) -> str:
    """A header of csrc, lines that go on joined."""
    return (CSRC / path).read_text().replace("\\\n", " ")


def fields_of(text: str, macro: str, numbers: dict[str, str] | None = None) -> tuple[Field, ...]:
    """The fields that a macro lists; `numbers`: sections by what C calls their numbers."""
    body = re.search(rf"#define {macro}\(F\)(.*)", text)
    assert body is not None
    found = re.findall(r"F\((\w+), (\w+), (\w+)\)", body[1])
    return tuple(Field(name.rstrip("_"), rule, (numbers or {}).get(section, section)) for name, rule, section in found)


def sections_of(text: str) -> list[Declared]:
    """In their order."""
    body = re.search(r"#define TABLE_SECTIONS\(S\)(.*)", text)
    assert body is not None
    sections = re.findall(r"S\((\w+), (\w+), (\w+), (\w+)\)", body[1])
    numbers = {number: name for name, number, *_ in sections}
    return [Declared(name, kind, fields_of(text, macro, numbers)) for name, _, kind, macro in sections]
