"""The file's layout is declared twice, in Python and in C: one is held against the other, word by word."""

import re

import pytest

from smelt.ir.artifact_file import layout
from smelt.symbolic import postfix
from tests.native.c_layout import fields_of, header_text, sections_of
from tests.native.deploy.c_library import INCLUDE


@pytest.fixture(scope="module")
def text() -> str:
    return header_text("deploy/format/records.h")


def test_records_have_the_same_fields_under_the_same_rules(text: str) -> None:
    sections = sections_of(text)
    declared = [(section.name, section.type, section.names) for section in sections]
    assert declared == [(name, record.__name__, record._fields) for name, record in layout.TABLE_SECTIONS.items()]
    for section in sections:
        rules = {field.name: (field.rule, field.section) for field in section.fields if field.rule != "FREE"}
        assert rules == layout.RULES.get(section.name, {}), section.name


def test_headers_have_the_same_fields(text: str) -> None:
    assert tuple(field.name for field in fields_of(text, "TABLE_HEADER_FIELDS")) == layout.TableHeader._fields
    for struct, record in (
        ("FileHeader", layout.FileHeader),
        ("FileSection", layout.SectionRecord),
        ("CodeHeader", layout.CodeHeader),
        ("SlotRecord", layout.SlotRecord),
    ):
        body = re.search(rf"typedef struct {{\s*int64_t ([^;]*);\s*}} {struct};", text)
        assert body is not None and tuple(body[1].split(", ")) == record._fields


def test_instructions_have_the_same_numbers() -> None:
    text = header_text("executor/expression.h")
    body = re.search(r"#define EXPRESSION_OPS\(O\)(.*)", text)
    assert body is not None
    found = re.findall(r"O\((\w+), (\d)\)", body[1])
    assert found == [(op.name, str(postfix.ARITY[op])) for op in postfix.Op]
    assert f"EXPRESSION_MOST_DEPTH = {postfix.DEPTH} " in text


def members(text: str, name: str) -> list[str]:
    body = re.search(rf"typedef enum {{([^}}]*)}} {name};", text)
    assert body is not None
    return re.findall(r"\w+", re.sub(r"= \d+", "", body[1]))


def test_kinds_have_the_same_numbers(text: str) -> None:
    for name, kind, suffix in (
        ("RegisterKind", layout.RegisterKind, "_REGISTER"),
        ("ValueKind", layout.ValueKind, "_VALUE"),
        ("StepKind", layout.StepKind, "_STEP"),
        ("NextKind", layout.NextKind, "_NEXT"),
    ):
        assert members(text, name) == [f"{each.name}{suffix}" for each in kind]
    assert members(text, "Bind") == [f"BIND_{each.name}" for each in layout.Bind]
    assert members(text, "SectionKind") == [f"{each.name}_SECTION" for each in layout.Kind]
    assert members(text, "Machine")[:-1] == [f"{each.name}_MACHINE" for each in layout.Machine]


def test_limits_are_the_same(text: str) -> None:
    for name, value in (
        ("FORMAT_VERSION", layout.VERSION),
        ("FILE_PAGE", layout.PAGE),
        ("FILE_ALIGN", layout.ALIGN),
        ("MOST_CODE", layout.MOST_CODE),
        ("MOST_BUFFERS", layout.MOST_BUFFERS),
    ):
        found = re.search(rf"\b{name} = (\d+)", text)
        assert found is not None and int(found[1]) == value
    for name, value in (("FILE_MAGIC", layout.MAGIC), ("TABLE_MAGIC", layout.TABLE_MAGIC)):
        assert f"#define {name} INT64_C({value:#x})" in text


def test_dtypes_have_the_same_numbers_and_sizes() -> None:
    header = (INCLUDE / "smelt.h").read_text()
    numbers = {name.lower(): int(number) for name, number in re.findall(r"SMELT_(\w+) = (\d+)", header)}
    for number, name in enumerate(layout.DTYPE_NAMES):
        assert numbers[name] == number
    sizes = re.search(r"item_sizes\[\] = {([^}]*)}", header_text("deploy/format/check.c"))
    assert sizes is not None and [int(size) for size in sizes[1].split(",")] == list(layout.DTYPES.values())
