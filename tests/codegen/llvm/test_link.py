"""Images: object files of both processor families linked without a linker, and what is refused."""

import ctypes
import struct
from collections.abc import Sequence
from typing import Any

import pytest

from smelt import _native
from smelt.base.errors import SmeltError
from smelt.codegen.cpu import target as cpu
from smelt.codegen.llvm import compile as engine
from smelt.codegen.llvm.link import CannotLink, link
from smelt.codegen.loops.builder import Builder
from smelt.ir.artifact_file.code import CodeSlot
from smelt.ir.loops import Module
from smelt.runtime.program.code_image import Image, load

CALLS = """
declare double @cbrt(double)
@table = private constant [4 x i64] [i64 10, i64 20, i64 30, i64 40]
@pool = internal global <{ <4 x float> }> <{ <4 x float> <float 1.0, float 2.0, float 3.0, float 4.0> }>, align 64
define internal i64 @inner(i64 %x) noinline {
  %p = getelementptr [4 x i64], ptr @table, i64 0, i64 %x
  %v = load i64, ptr %p
  ret i64 %v
}
define i64 @looked(i64 %x) {
  %v = call i64 @inner(i64 %x)
  ret i64 %v
}
define double @rooted(double %x) {
  %r = call double @cbrt(double %x)
  %s = fadd double %r, 1.0
  ret double %s
}
define ptr @outside() {
  ret ptr @cbrt
}
define float @constant_pool(i64 %x) {
  %p = getelementptr float, ptr @pool, i64 %x
  %v = load float, ptr %p
  ret float %v
}
define ptr @itself() {
  ret ptr @inner
}
"""


def object_for(text: str, triple: str, machine: str) -> bytes:
    llvm = engine.llvm()
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly(text)
    module.triple = triple
    generator = llvm.Target.from_triple(triple).create_target_machine(
        cpu=machine, opt=2, reloc="pic", codemodel="small"
    )
    return bytes(generator.emit_object(module))


def native_object(text: str) -> bytes:
    return engine._object(text, cpu.describe_host())


def call(loaded: Any, symbol: str, result: Any, arguments: Sequence[Any], values: Sequence[Any]) -> Any:
    return ctypes.CFUNCTYPE(result, *arguments)(loaded.address(symbol))(*values)


def test_code_that_was_linked_runs() -> None:
    loaded = load(link(native_object(CALLS)))
    assert [call(loaded, "looked", ctypes.c_int64, [ctypes.c_int64], [n]) for n in range(4)] == [10, 20, 30, 40]
    assert call(loaded, "rooted", ctypes.c_double, [ctypes.c_double], [27.0]) == 4.0
    assert call(loaded, "constant_pool", ctypes.c_float, [ctypes.c_int64], [2]) == 3.0
    root = call(loaded, "outside", ctypes.c_void_p, [], [])
    assert ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(root)(8.0) == 2.0
    inner = call(loaded, "itself", ctypes.c_void_p, [], [])
    assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(inner)(3) == 40


@pytest.mark.parametrize(
    ("triple", "machine", "stub"),
    [
        ("x86_64-unknown-linux-gnu", "x86-64-v3", b"\xff\x25\x02\x00\x00\x00"),
        ("aarch64-unknown-linux-gnu", "generic", struct.pack("<II", 0x58000050, 0xD61F0200)),
    ],
)
def test_both_families_link_wherever_they_are_built(triple: str, machine: str, stub: bytes) -> None:
    image = link(object_for(CALLS, triple, machine))
    symbols = dict(image.symbols)
    assert set(symbols) == {"looked", "rooted", "outside", "constant_pool", "itself"}
    assert {slot.name for slot in image.slots} == {"cbrt"}
    assert stub in image.code
    for slot in image.slots:
        assert image.code[slot.offset : slot.offset + 8] == bytes(8)
        assert slot.offset % 8 == 0
    assert struct.pack("<4q", 10, 20, 30, 40) in image.code


def test_references_lead_to_what_they_name_on_x86() -> None:
    """Follows the one call of `looked` by hand: a 32-bit distance from the end of the instruction."""
    text = "define internal i64 @inner(i64 %x) noinline {\n ret i64 7\n}\n"
    text += "define i64 @outer(i64 %x) {\n %v = call i64 @inner(i64 %x)\n %w = add i64 %v, %x\n ret i64 %w\n}\n"
    text += "declare void @cbrt()\ndefine void @far() {\n call void @cbrt()\n call void @cbrt()\n ret void\n}\n"
    image = link(object_for(text, "x86_64-unknown-linux-gnu", "x86-64"))
    start = dict(image.symbols)["far"]
    place = image.code.index(b"\xe8", start)
    target = place + 5 + struct.unpack_from("<i", image.code, place + 1)[0]
    assert image.code[target : target + 6] == b"\xff\x25\x02\x00\x00\x00"
    (slot,) = image.slots
    assert slot == CodeSlot(target + 8, "cbrt")


@pytest.mark.parametrize(
    ("text", "triple", "reason"),
    [
        ("@x = thread_local global i32 3\ndefine ptr @f() {\n ret ptr @x\n}", "x86_64-unknown-linux-gnu", "section"),
        ("@x = global i32 0\ndefine ptr @f() {\n ret ptr @x\n}", "aarch64-unknown-linux-gnu", "section"),
        ("define i32 @f() {\n ret i32 0\n}", "arm64-apple-macosx", "not 64-bit little-endian ELF"),
        ("define i32 @f() {\n ret i32 0\n}", "powerpc64le-unknown-linux-gnu", "machine"),
    ],
)
def test_what_is_refused(text: str, triple: str, reason: str) -> None:
    with pytest.raises(CannotLink, match=reason):
        link(object_for(text, triple, ""))


def test_what_cannot_be_linked_is_loaded_by_llvm(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(data: bytes, library: dict[str, bytes]) -> Image:
        raise CannotLink("not today")

    monkeypatch.setattr(engine, "link", refuse)
    b = Builder(cpu.describe_host())
    b.give(b.const("i64", 7))
    (built,) = engine.load([Module((b.function("seven", (), "entry", result="i64"),))], cpu.describe_host())
    assert built.image is None
    assert ctypes.CFUNCTYPE(ctypes.c_int64)(built.address("seven"))() == 7


def test_a_function_that_nobody_has_is_an_error_not_a_crash() -> None:
    with pytest.raises(SmeltError, match="surely_not_there"):
        load(Image(bytes(16), (("f", 0),), (CodeSlot(8, "surely_not_there"),)))


@pytest.mark.parametrize("offset", [-1, 9, 16, 1 << 62])
def test_slots_and_functions_outside_the_image_are_refused(offset: int) -> None:
    with pytest.raises(ValueError, match="outside"):
        _native.Code(bytes(16), struct.pack("<4q", offset, 0, 1, 0))
    if offset != 9:
        with pytest.raises(SmeltError, match="outside"):
            load(Image(bytes(16), (("f", offset),), ()))


def test_slots_may_count_from_the_image() -> None:
    code = _native.Code(bytes(16), struct.pack("<8q", 0, 0, 0, 5, 8, 0, 1, 5))
    assert code.address % 4096 == 0
    held = ctypes.string_at(code.address, 16)
    assert struct.unpack("<QQ", held) == (code.address + 5, 5)


@pytest.mark.parametrize("slots", [None, [1], "text", bytearray(32)])
def test_slots_of_another_form_are_refused(slots: Any) -> None:
    with pytest.raises(TypeError):
        _native.Code(bytes(16), slots)
    with pytest.raises(ValueError, match="four words"):
        _native.Code(bytes(16), bytes(31))
