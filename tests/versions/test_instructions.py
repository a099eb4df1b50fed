"""Every instruction of this Python is followed by capture or listed as left to Python, whatever the version.

The handlers are read from the source, so that this runs where torch is not installed;
tests/capture/opcodes/test_opcode_table.py holds what is read here to the table itself.
"""

import ast
import dis
import os
import pathlib
import sys
import sysconfig
import types
import warnings
from collections.abc import Iterator

import pytest

from smelt.capture.model.bytecode import _INTRINSICS, _RENAMED, VERSION, Instruction, decode

CAPTURE = pathlib.Path(__file__).parents[2] / "src" / "smelt" / "capture"
HERE = "{}.{}".format(*VERSION)
PREFIXES = {"EXTENDED_ARG", "KW_NAMES"}  # folded into the instruction they belong to
FOLDERS_LEFT_OUT = {"test", "tests", "site-packages", "idlelib", "lib2to3", "turtledemo"}
IN_ORDINARY_FUNCTIONS = {  # of what is left to Python, all that the standard library's plain functions have
    "CHECK_EG_MATCH",
    "PREP_RERAISE_STAR",
    "GET_AITER",
    "CALL_INTRINSIC_1",
    "CALL_INTRINSIC_2",
}

ONLY_IN: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("JUMP_IF_FALSE_OR_POP", "JUMP_IF_TRUE_OR_POP", "LOAD_CLASSDEREF"), ("3.11",)),
    "PREP_RERAISE_STAR": ("3.11",),  # later versions have CALL_INTRINSIC_2, which is read as the same
    "FORMAT_VALUE": ("3.11", "3.12"),
    **dict.fromkeys(("RETURN_CONST", "BINARY_SLICE", "STORE_SLICE", "LOAD_SUPER_ATTR"), ("3.12", "3.13")),
    **dict.fromkeys(("END_FOR", "END_SEND", "STOPITERATION_ERROR", "LOAD_FAST_AND_CLEAR"), ("3.12", "3.13")),
    "CLEANUP_THROW": ("3.12", "3.13"),
    **dict.fromkeys(("LOAD_LOCALS", "LOAD_FROM_DICT_OR_DEREF", "LOAD_FROM_DICT_OR_GLOBALS"), ("3.12", "3.13")),
    **dict.fromkeys(("LOAD_FAST_LOAD_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST"), ("3.13",)),
    **dict.fromkeys(("CONVERT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC"), ("3.13",)),
    **dict.fromkeys(("CALL_KW", "TO_BOOL", "SET_FUNCTION_ATTRIBUTE"), ("3.13",)),
}
"""Instructions that not every version has, of those that are followed."""

UNSUPPORTED: dict[str, str] = {
    **dict.fromkeys(("GET_AWAITABLE", "GET_AITER", "GET_ANEXT", "END_ASYNC_FOR"), "async: left alone"),
    **dict.fromkeys(("BEFORE_ASYNC_WITH", "ASYNC_GEN_WRAP"), "async: left alone"),
    **dict.fromkeys(("IMPORT_STAR", "PRINT_EXPR"), "bodies of modules"),
    **dict.fromkeys(("CALL_INTRINSIC_1", "CALL_INTRINSIC_2"), "type parameters, async, bodies of modules"),
    **dict.fromkeys(("INTERPRETER_EXIT", "EXIT_INIT_CHECK", "ENTER_EXECUTOR", "RESERVED"), "CPython's own, in no code"),
}
"""Instructions that are not followed, with where they come from: there the graph ends, or capture does not begin."""


def handled() -> set[str]:
    """The names that `@handles(...)` is given anywhere in capture."""
    names: set[str] = set()
    for file in CAPTURE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "handles":
                for argument in node.args:
                    starred = isinstance(argument, ast.Starred)
                    names |= keys_of(argument.value.id, file) if starred else {ast.literal_eval(argument)}  # type: ignore[attr-defined]
    return names


def keys_of(table: str, file: pathlib.Path) -> set[str]:
    """The keys of a table in a file or, as `UNARY`, in `interpreter/operators.py`: what `@handles(*table)` is given."""
    for place in (file, CAPTURE / "interpreter" / "operators.py"):
        for node in ast.walk(ast.parse(place.read_text())):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
            if any(isinstance(target, ast.Name) and target.id == table for target in targets):
                pairs = zip(node.value.keys, node.value.values, strict=True)  # type: ignore[attr-defined]
                found = [{ast.literal_eval(key)} if key else keys_of(value.args[0].id, file) for key, value in pairs]
                return set().union(*found)
    raise AssertionError(f"there is no table {table}")


def of_this_python() -> set[str]:
    """What code objects can hold here, in capture's names: no specialised, instrumented or pseudo instructions."""
    names = {name for name, code in dis.opmap.items() if code < 256 and not name.startswith("INSTRUMENTED_")}
    made = {_RENAMED.get(name, name) for name in names} - PREFIXES
    if "CALL_INTRINSIC_1" in names:
        made |= set(_INTRINSICS.values())
    if VERSION >= (3, 12):
        made.add("LOAD_METHOD")  # a LOAD_ATTR with a bit
    return made


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes(constant)


def functions_of_the_standard_library() -> Iterator[types.CodeType]:
    for folder, inside, files in os.walk(sysconfig.get_paths()["stdlib"]):
        inside[:] = sorted(set(inside) - FOLDERS_LEFT_OUT)
        for file in sorted(files):
            if file.endswith(".py"):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    module = compile(pathlib.Path(folder, file).read_bytes(), file, "exec")
                yield from (code for code in codes(module) if code.co_flags & 3 == 3)  # of functions only


def test_every_instruction_is_followed_or_listed() -> None:
    assert of_this_python() <= handled() | set(UNSUPPORTED)
    assert not handled() & set(UNSUPPORTED)


def test_what_differs_between_versions_is_listed() -> None:
    """Both ways: what is said to be here is, and what is followed and not here is said to be elsewhere."""
    assert {name for name, where in ONLY_IN.items() if HERE in where} <= of_this_python()
    assert handled() - of_this_python() == {name for name, where in ONLY_IN.items() if HERE not in where}
    assert set(ONLY_IN) <= handled()


@pytest.mark.slow  # compiles it all
def test_the_standard_library_has_nothing_unheard_of() -> None:
    """And in functions that are neither coroutines nor generators of them, little that is left to Python."""
    seen: set[int] = set()
    plain: set[int] = set()
    for code in functions_of_the_standard_library():
        used = set(code.co_code[::2])
        seen |= used
        if not code.co_flags & 0x380:  # coroutines, asynchronous generators
            plain |= used
    names = {_RENAMED.get(dis.opname[number], dis.opname[number]) for number in seen} - PREFIXES
    assert len(names) > 80
    assert names <= handled() | set(UNSUPPORTED)
    assert {dis.opname[number] for number in plain} & set(UNSUPPORTED) <= IN_ORDINARY_FUNCTIONS


def sample() -> list[types.CodeType]:
    """Functions of modules with much control flow."""
    import argparse
    import ast as ast_module
    import asyncio.base_events
    import dataclasses
    import inspect
    import tarfile
    import typing

    modules = (argparse, ast_module, asyncio.base_events, dataclasses, inspect, tarfile, typing)
    return [code for module in modules for code in codes(compile(inspect.getsource(module), module.__name__, "exec"))]


def test_loops_end_behind_what_ends_them() -> None:
    """A loop's iterator is popped by FOR_ITER itself here: only what would pop it may be skipped."""
    skipped = {(3, 11): [], (3, 12): ["END_FOR"], (3, 13): ["END_FOR", "POP_TOP"]}[VERSION]
    loops = 0
    for code in sample():
        raw = {each.offset: each for each in dis.get_instructions(code)}
        for mine in decode(code).instructions:
            if mine.name != "FOR_ITER":
                continue
            loops += 1
            its_own = next(raw[at] for at in range(mine.offset, mine.next, 2) if raw[at].opname == "FOR_ITER")
            assert [raw[at].opname for at in range(its_own.argval, mine.target, 2)] == skipped
    assert loops > 200


def test_the_stack_has_one_depth_wherever_ways_meet() -> None:
    """Jumps, handlers and folded prefixes taken as decoded, every way to an instruction brings the same stack."""
    for code in sample():
        info = decode(code)
        raw = {each.offset: each for each in dis.get_instructions(code)}
        depths: dict[int, int] = {0: 0}
        waiting = [0]
        while waiting:
            index = waiting.pop()
            instruction = info.instructions[index]
            for target, depth in ways(raw, instruction, depths[index]):
                following = info.index_at[target] if target < len(code.co_code) else None
                if following is not None and following not in depths:
                    depths[following] = depth
                    waiting.append(following)
                assert following is None or depths[following] == depth, (code.co_qualname, instruction)
            handler = info.handler_of(instruction)
            if handler is not None:
                at, depth = info.index_at[handler.target], handler.depth + 1 + handler.push_offset
                if at not in depths:
                    depths[at] = depth
                    waiting.append(at)
                assert depths[at] == depth, (code.co_qualname, instruction)
        assert max(depths.values()) <= code.co_stacksize


def ways(raw: dict[int, dis.Instruction], instruction: Instruction, depth: int) -> list[tuple[int, int]]:
    """Where an instruction goes and how deep the stack is there."""
    if instruction.name in ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"):
        return []
    if instruction.name == "FOR_ITER":
        return [(instruction.next, depth + 1), (instruction.target, depth - 1)]
    if instruction.name == "RETURN_GENERATOR":  # leaves what the first `next` sends; not every `dis` says so
        return [(instruction.next, depth + 1)]
    parts = [raw[at] for at in range(instruction.offset, instruction.next, 2) if at in raw]
    parts = [part for part in parts if part.opname not in ("EXTENDED_ARG", "CACHE")]
    found = [(instruction.target, depth + effect(parts, True))] if instruction.target >= 0 else []
    return found if instruction.name == "JUMP" else [*found, (instruction.next, depth + effect(parts, False))]


def effect(parts: list[dis.Instruction], jump: bool) -> int:
    return sum(dis.stack_effect(part.opcode, part.arg, jump=jump) for part in parts)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="comprehensions are functions of their own before 3.12")
def test_comprehensions_are_inlined() -> None:
    def f(items):
        return [a + 1 for a in items]

    assert "LOAD_FAST_AND_CLEAR" in {each.name for each in decode(f.__code__).instructions}
