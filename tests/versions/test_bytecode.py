"""Decoded code objects: one vocabulary, whole instructions, true jump targets, locals that are really dead."""

import collections
import contextlib
import dataclasses
import dis
import inspect
import json
import textwrap
import types
from collections.abc import Iterator

import pytest

from smelt.capture.model.bytecode import CodeInfo, decode, shim_code

MODULES = [collections, contextlib, dataclasses, inspect, json.decoder, textwrap]


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes(constant)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_instruction_is_what_dis_says(module: types.ModuleType) -> None:
    prefixes = ("EXTENDED_ARG", "PRECALL", "KW_NAMES")
    for code in codes(compile(inspect.getsource(module), module.__name__, "exec")):
        line = code.co_firstlineno
        told = [each for each in dis.get_instructions(code) if each.opname not in prefixes]
        for mine, theirs in zip(decode(code).instructions, told, strict=True):
            positions = theirs.positions
            line = (positions.lineno if positions is not None else None) or line
            value = theirs.argrepr if theirs.opname == "BINARY_OP" else theirs.argval
            assert (mine.value, mine.arg, mine.line) == (value, theirs.arg or 0, line), theirs
            assert mine.offset <= theirs.offset < mine.next
            if theirs.opcode in (*dis.hasjrel, *dis.hasjabs) and mine.name != "FOR_ITER":
                assert mine.target == theirs.argval


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_real_code_decodes(module: types.ModuleType) -> None:
    source = inspect.getsource(module)
    seen = 0
    for code in codes(compile(source, module.__name__, "exec")):
        info = decode(code)
        offsets = [instruction.offset for instruction in info.instructions]
        assert offsets == sorted(offsets) and len(set(offsets)) == len(offsets)
        assert info.instructions[-1].next == len(code.co_code)
        for before, after in zip(info.instructions, info.instructions[1:], strict=False):
            assert before.next == after.offset
        for instruction in info.instructions:
            assert instruction.target == -1 or instruction.target in info.index_at
        for handler in info.handlers:
            assert handler.target in info.index_at
        seen += len(info.instructions)
    assert seen > 100


def live_at(info: CodeInfo, name: str) -> set[str]:
    """Names live before the first instruction that loads the global `name`."""
    index = next(i for i, each in enumerate(info.instructions) if each.name == "LOAD_GLOBAL" and each.value == name)
    return {slot for number, slot in enumerate(info.slot_names) if info.is_live(index, number)}


def test_liveness_of_locals() -> None:
    def f(a, b, c):
        d = a + b
        mark()  # type: ignore[name-defined]  # noqa: F821
        c = 2
        return d + c

    assert live_at(decode(f.__code__), "mark") == {"d"}


def test_liveness_of_thousands_of_locals() -> None:
    """Written-out graphs have them."""
    lines = [*(f"v{number} = a" for number in range(5000)), "mark()", "return v4999 + v7"]
    scope: dict[str, types.FunctionType] = {}
    exec("\n    ".join(["def f(a):", *lines]), scope)
    assert live_at(decode(scope["f"].__code__), "mark") == {"v4999", "v7"}


def test_liveness_across_loops_and_handlers() -> None:
    def f(items, a, b):
        total = 0
        for item in items:
            total += item
            mark()  # type: ignore[name-defined]  # noqa: F821
        try:
            total += 1
        except ValueError:
            total = a
        return total

    assert live_at(decode(f.__code__), "mark") == {"total", "a"}


def test_liveness_behind_a_call_is_that_of_its_handler_too() -> None:
    """A frame that waits for a call stands behind it; what the call raises goes to the handler of the call."""
    seen = 0
    modules = [compile(inspect.getsource(module), module.__name__, "exec") for module in MODULES]
    for info in (decode(code) for module in modules for code in codes(module)):
        for index, instruction in enumerate(info.instructions[:-1]):
            handler = info.handler_of(instruction)
            at_handler = info.index_at[handler.target] if handler else index + 1
            for slot, name in enumerate(info.slot_names):
                live = info.is_live(index + 1, slot) or not info.is_live(at_handler, slot)
                assert live, (info.code.co_qualname, instruction, name)
                seen += handler is not None
    assert seen > 100


def test_everything_is_live_where_the_frame_can_be_seen() -> None:
    def f(a, b):
        mark()  # type: ignore[name-defined]  # noqa: F821
        return locals()

    assert live_at(decode(f.__code__), "mark") == {"a", "b"}


def test_keyword_calls_start_at_their_first_prefix() -> None:
    def f(g):
        return g(1, key=2)

    calls = [each for each in decode(f.__code__).instructions if each.name in ("CALL", "CALL_KW")]
    assert len(calls) == 1
    if calls[0].name == "CALL":
        assert calls[0].keywords == ("key",)


def test_the_shim_claims_the_users_line_without_columns() -> None:
    def f():
        pass

    info = decode(f.__code__)
    code = shim_code(info, 77)
    assert (code.co_filename, code.co_name) == (__file__, "f")
    assert {line for _, _, line in code.co_lines() if line is not None} == {77}
    assert {position[2] for position in code.co_positions()} == {None}
    assert shim_code(info, 77) is code
