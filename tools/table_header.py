"""Writes the layout of tables and of artifacts' files as a header for C: `python tools/table_header.py`.

    ir/table/records.py, ir/artifact_file/layout.py, symbolic/postfix.py   →   csrc/executor/records.h
"""

import re
import textwrap
from collections.abc import Iterable
from enum import IntEnum
from pathlib import Path
from typing import Any

from smelt.ir.artifact_file import layout as files
from smelt.ir.table import layout
from smelt.ir.table import records as tables
from smelt.ir.table.dtypes import DTYPES
from smelt.symbolic import postfix

HEADER = Path(__file__).parents[1] / "src" / "smelt" / "csrc" / "executor" / "records.h"

INTRODUCTION = """\
/* Tables of programs, and the files of artifacts, record by record. Written by tools/table_header.py: this is declared
   and explained in ir/table/{records,layout}.py and ir/artifact_file/layout.py.

   Everything is a little-endian 64-bit word. A field is F(name, rule, section or limit). FREE: any number, or one that
   has a check of its own. */
#ifndef SMELT_RECORDS_H
#define SMELT_RECORDS_H

#include <stdint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "tables are read where they lie, in little-endian words"
#endif
"""

# The members of an enumeration, as C calls them.
NAMES: dict[type[IntEnum], str] = {
    files.Kind: "{}_SECTION",
    files.Machine: "{}_MACHINE",
    tables.RegisterKind: "{}_REGISTER",
    tables.Bind: "BIND_{}",
    tables.ValueKind: "{}_VALUE",
    tables.ItemKind: "{}_ITEM",
    tables.Draws: "DRAWS_{}",
    tables.StepKind: "{}_STEP",
    tables.NextKind: "{}_NEXT",
}
STRUCTS: dict[str, Any] = {
    "FileHeader": files.FileHeader,
    "FileSection": files.SectionRecord,
    "CodeHeader": files.CodeHeader,
    "SlotRecord": files.SlotRecord,
}
LIMITS = {
    "FILE_VERSION": files.VERSION,
    "TABLE_VERSION": layout.VERSION,
    "FILE_PAGE": files.PAGE,
    "FILE_ALIGN": files.ALIGN,
    "MOST_SECTIONS": files.MOST_SECTIONS,
    "MOST_CAPABILITY": files.MOST_CAPABILITY,
    "MOST_DEPTH": postfix.DEPTH,
    "MOST_CODE": tables.MOST_CODE,
    "MOST_BUFFERS": tables.MOST_BUFFERS,
    "MOST_BLOCKS": tables.MOST_BLOCKS,
    "MOST_GRID_THREADS": tables.MOST_GRID_THREADS,
    "MOST_SHARED": tables.MOST_SHARED,
}


def wrapped(parts: Iterable[str], width: int = 112) -> list[str]:
    """Lines of whole parts."""
    lines = textwrap.wrap(" ".join(part.replace(" ", "\0") for part in parts), width, break_on_hyphens=False)
    return ["    " + line.replace("\0", " ") for line in lines]


def macro(head: str, parts: Iterable[str]) -> str:
    """A definition, its lines joined by backslashes in one column."""
    lines = [head, *wrapped(parts)]
    return "".join(f"{line:<119}\\\n" for line in lines[:-1]) + lines[-1] + "\n"


def block(head: str, parts: Iterable[str], tail: str) -> str:
    return "\n".join([head, *wrapped(parts), tail]) + "\n"


def fields(words: Iterable[layout.Word]) -> Iterable[str]:
    for word in words:
        name = "register_" if word.name == "register" else word.name
        rule = "FREE, 0" if word.rule is None else f"{word.rule.kind}, {str(word.rule.of).upper()}"
        yield f"F({name}, {rule})"


def record_name(section: str) -> str:
    """Of the records of a section: steps → Step."""
    record = tables.SECTIONS[section]
    names = {tables.PostfixCode: "Expression", tables.Step: "Step", tables.Value: "Value"}
    return names.get(record) or str(record.__name__)


def macro_name(name: str) -> str:
    """TableHeader → TABLE_HEADER_FIELDS, Step → STEP_FIELDS."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper() + "_FIELDS"


def header() -> str:
    """The whole file."""
    parts = [INTRODUCTION]
    parts.append(f"#define FILE_MAGIC INT64_C({files.MAGIC:#x})\n#define TABLE_MAGIC INT64_C({layout.MAGIC:#x})\n")
    parts.append(block("enum {", [f"{name} = {value}," for name, value in LIMITS.items()], "};"))
    parts[-1] += f"#define MOST_BYTES INT64_C({tables.MOST_BYTES})\n"
    for kind, form in NAMES.items():
        name = "SectionKind" if kind is files.Kind else kind.__name__
        members = [f"{form.format(each.name)} = {each.value}," for each in kind]
        parts.append(block("typedef enum {", members, f"}} {name};"))
    for name, record in STRUCTS.items():
        parts.append(f"typedef struct {{\n    int64_t {', '.join(record._fields)};\n}} {name};\n")
    head = [word for field in layout.fields_of(tables.TableHeader) for word in field.words]
    macros = [macro(f"#define {macro_name('TableHeader')}(F)", fields(head))]
    sections = []
    for section in tables.SECTIONS:
        name = record_name(section)
        macros.append(macro(f"#define {macro_name(name)}(F)", fields(layout.words_of(section))))
        sections.append(f"S({section}, {section.upper()}, {name}Record, {macro_name(name)})")
    parts.append("".join(macros))
    parts.append("/* S(section, its number, type of its records, their fields) */\n")
    parts[-1] += macro("#define TABLE_SECTIONS(S)", sections)
    instructions = [f"O({op.name}, {postfix.ARITY[op]})" for op in postfix.Op]
    parts.append("/* O(instruction, how many numbers it takes off the stack), in the order of their numbers. */\n")
    parts[-1] += macro("#define EXPRESSION_OPS(O)", instructions)
    sizes = [f"D({name}, {size})" for name, size in DTYPES.items()]
    parts.append("/* D(dtype, bytes of an element), in the order of their numbers. */\n")
    parts[-1] += macro("#define TABLE_DTYPES(D)", sizes)
    return "\n".join([*parts, "#endif\n"])


if __name__ == "__main__":
    HEADER.write_text(header())
