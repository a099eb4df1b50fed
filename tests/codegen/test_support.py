"""Functions of the C library that compiled code brings along (`codegen/llvm/support.py`), as machine code."""

import ctypes
from typing import Any

import pytest

from smelt.codegen.llvm.compile import make_all_targets_ready, object_codes
from smelt.codegen.llvm.link import link_all, undefined
from smelt.codegen.llvm.support import support_text
from smelt.codegen.processors import PROCESSORS, described
from smelt.device import find
from smelt.ir.kernel import HOST
from smelt.runtime.program.code_image import load

NAMES = ("memcpy", "memmove", "memset")
BYTES = 97


def compiled() -> tuple[Any, Any]:
    """The functions, and what owns their code. If LLVM took a loop for a call of its own function, it would not end."""
    target = find(HOST)
    loaded = load(link_all(object_codes([support_text(NAMES, target)], target)))
    size, address = ctypes.c_size_t, ctypes.c_void_p
    kinds: dict[str, Any] = {"memcpy": (address, address, size), "memmove": (address, address, size)}
    kinds["memset"] = (address, ctypes.c_int, size)
    made = {name: ctypes.CFUNCTYPE(address, *kinds[name])(loaded.address(name)) for name in NAMES}
    return loaded, made


@pytest.mark.parametrize("name", [name for name in PROCESSORS if not name.startswith("wasm")])
def test_they_call_nothing(name: str) -> None:
    make_all_targets_ready()
    target = described(name)
    for function in NAMES:
        (code,) = object_codes([support_text([function], target)], target)
        assert not undefined(code)


@pytest.mark.parametrize("count", [0, 1, 7, 64, 65, BYTES])
def test_memory_is_copied_and_filled(count: int) -> None:
    owner, functions = compiled()
    source = bytes(range(1, BYTES + 1))
    buffer = ctypes.create_string_buffer(BYTES + 2)
    to = ctypes.addressof(buffer) + 1
    assert functions["memcpy"](to, source, count) == to
    assert buffer.raw == b"\0" + source[:count] + bytes(BYTES + 1 - count)
    assert functions["memset"](to, 0x1AB, count) == to
    assert buffer.raw == b"\0" + b"\xab" * count + bytes(BYTES + 1 - count)
    del owner


@pytest.mark.parametrize("distance", [-40, -1, 0, 1, 40])
@pytest.mark.parametrize("count", [0, 1, 33, 90])
def test_memory_that_overlaps_is_moved(count: int, distance: int) -> None:
    owner, functions = compiled()
    buffer = ctypes.create_string_buffer(bytes(range(1, 201)), 200)
    expected, first = bytearray(buffer.raw), 50
    expected[first + distance : first + distance + count] = buffer.raw[first : first + count]
    functions["memmove"](ctypes.addressof(buffer) + first + distance, ctypes.addressof(buffer) + first, count)
    assert buffer.raw == bytes(expected)
    del owner
