"""Many random functions with branches, loops and in-place writes, exported and run by the C runtime, against eager:

    python -m tests.deploy.generated.campaign --count 10000 --start 7 --jobs 2 --keep failures/

For each failure the program is printed, made small. One in ten is also run as WebAssembly, where node is installed.
"""

import dataclasses
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from tests.campaigns import Campaign
from tests.capture.generated.campaign import alone
from tests.deploy.generated.grammar import Program, program_of
from tests.deploy.generated.running import Outcome, outcome_of


def told(program: Program) -> str:
    """The program as a script that shows what becomes of it."""
    imports = "from tests.deploy.generated.grammar import Program\n"
    imports += "from tests.deploy.generated.running import outcome_of\n\n"
    text = textwrap.indent(program.text, "# ")
    return f"{imports}{text}\nprint(outcome_of({program!r}, {_in_webassembly(program)}))\n"


def _in_webassembly(program: Program) -> bool:
    return program.seed % 10 == 0


def verdict(program: Program) -> Outcome:
    """What becomes of a program; an exception that is none of ours is a failure."""
    try:
        return outcome_of(program, _in_webassembly(program))
    except Exception as error:
        return Outcome(failure=f"{type(error).__name__}: {error}")


def report(program: Program, failure: str) -> str:
    """A failure with the smallest program that has one like it."""
    kind = _kind(failure)
    small = shrunk(program, lambda smaller: _kind(verdict(smaller).failure) == kind)
    return f"program {program.seed}: {failure}\n\n{told(small)}"


def _kind(failure: str | None) -> str | None:
    return failure and " ".join(word for word in failure.split() if word.isalpha())[:24]


def shrunk(program: Program, fails: Callable[[Program], bool]) -> Program:
    """The smallest program found that still `fails`."""
    smaller: Program | None = program
    while smaller is not None:
        program = smaller
        smaller = next((each for each in _smaller(program) if fails(each)), None)
    return program


def _smaller(program: Program) -> Iterator[Program]:
    """The program without a statement and what is indented below it, or with that in its place."""
    for number in range(len(program.lines) - 1):
        depth = _depth(program.lines[number])
        end = number + 1
        while end < len(program.lines) and _depth(program.lines[end]) > depth:
            end += 1
        yield dataclasses.replace(program, lines=program.lines[:number] + program.lines[end:])
        if end > number + 1:
            inside = tuple(line[4:] for line in program.lines[number + 1 : end])
            yield dataclasses.replace(program, lines=program.lines[:number] + inside + program.lines[end:])
    if program.rows:
        yield dataclasses.replace(program, rows=False)


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def examine(seed: int) -> dict[str, Any]:
    """Program `seed` exported and run."""
    program = program_of(seed)
    found = verdict(program)
    counts = {"calls": found.calls, "refused": int(found.refused is not None), "in WebAssembly": found.in_webassembly}
    return {**counts, "failure": found.failure and report(program, found.failure)}


CAMPAIGN = Campaign(
    "tests.deploy.generated.campaign",
    examine,
    lambda seed: told(program_of(seed)),
    ("calls", "refused", "in WebAssembly"),
    alone,
    count=10_000,
)


if __name__ == "__main__":
    sys.exit(CAMPAIGN.main())
