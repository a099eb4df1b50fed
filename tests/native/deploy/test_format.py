"""C has the layout of tables and files from a header that Python writes; smelt.h has the same dtypes."""

import re

from smelt.ir.table import layout
from tests.native.deploy.c_library import INCLUDE
from tools.table_header import HEADER, header


def test_the_header_is_what_the_layout_says() -> None:
    assert HEADER.read_text() == header(), "run tools/table_header.py"


def test_dtypes_have_the_same_numbers() -> None:
    pairs = re.findall(r"SMELT_(\w+) = (\d+)", (INCLUDE / "smelt.h").read_text())
    numbers = {name.lower(): int(number) for name, number in pairs}
    assert [numbers[name] for name in layout.DTYPE_NAMES] == list(range(len(layout.DTYPE_NAMES)))
