"""Tests of schedules take LLVM's code generator without optimization, which is most of their time otherwise; one in
eight, by the checksum of its name, takes the level that programs get, as all other tests do."""

import zlib
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from tests.codegen.quick_code import quick_code

_FULL = 8  # one of so many


@pytest.fixture(autouse=True)
def code_of_schedules(request: pytest.FixtureRequest) -> Iterator[None]:
    is_quick = zlib.crc32(request.node.nodeid.encode()) % _FULL > 0
    with quick_code() if is_quick else nullcontext():
        yield
