"""A failing program made small: calls and statements are left out while it still fails.

    shrunk(program, fails)   →   the program with whatever is not needed taken away
"""

import dataclasses
from collections.abc import Callable, Iterator

from tests.capture.generated.grammar import Program

Fails = Callable[[Program], bool]


def shrunk(program: Program, fails: Fails) -> Program:
    """The smallest program found that still `fails`."""
    smaller: Program | None = program
    while smaller is not None:
        program = smaller
        smaller = next((each for each in _smaller(program) if _valid(each) and fails(each)), None)
    return program


def _smaller(program: Program) -> Iterator[Program]:
    if program.backend != "eager":
        yield dataclasses.replace(program, backend="eager")
    for number in range(len(program.calls)):
        calls = program.calls[:number] + program.calls[number + 1 :]
        if calls:
            yield dataclasses.replace(program, calls=calls)
    lines = program.text.splitlines(keepends=True)
    for start in range(len(lines) - 1, 0, -1):
        end = start + 1
        while end < len(lines) and _indent(lines[end]) > _indent(lines[start]):
            end += 1
        yield dataclasses.replace(program, text="".join(lines[:start] + lines[end:]))
        if end > start + 1:  # the block without its head
            inner = [line[4:] for line in lines[start + 1 : end]]
            yield dataclasses.replace(program, text="".join(lines[:start] + inner + lines[end:]))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _valid(program: Program) -> bool:
    try:
        compile(program.text, "<program>", "exec")
    except SyntaxError:
        return False
    return True
