"""Many random tensor programs against eager PyTorch: `make test-tensors`, or

    python -m tests.pipeline.generated.campaign --count 20000 --start 7 --jobs 2 --keep failures/
    python -m tests.pipeline.generated.campaign --device cuda --jobs 16 --seconds 500
    python -m tests.pipeline.generated.campaign --target simt-host --count 300

For each failure the program is printed, made small.
"""

import dataclasses
import sys
from collections.abc import Callable, Iterator
from typing import Any

from tests import targets
from tests.campaigns import Campaign
from tests.capture.generated.campaign import alone
from tests.pipeline.generated.grammar import Program, program_of
from tests.pipeline.generated.running import failure_of


def told(program: Program) -> str:
    """The program and how it is called, as text to run `failure_of` on."""
    imports = "from tests.pipeline.generated.grammar import Input, Program\n"
    imports += "from tests.pipeline.generated.running import failure_of\n\n"
    if targets.chosen != (targets.HOST, targets.HOST):
        imports = f"from tests import targets\n{imports}targets.use{targets.chosen}\n\n"
    return f'{imports}"""\n{program.text}"""\nprint(failure_of({program!r}))\n'


def report(program: Program, failure: str) -> str:
    """A failure with the smallest program that has one like it."""
    kind = _kind(failure)
    small = shrunk(program, lambda smaller: _kind(_verdict(smaller)) == kind)
    return f"program {program.seed}: {failure}\n\n{told(small)}"


def _kind(failure: str | None) -> str | None:
    return failure and " ".join(word for word in failure.split() if word.isalpha())[:30]


def _verdict(program: Program) -> str | None:
    try:
        return failure_of(program)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def shrunk(program: Program, fails: Callable[[Program], bool]) -> Program:
    """The smallest program found that still `fails`."""
    smaller: Program | None = program
    while smaller is not None:
        program = smaller
        smaller = next((each for each in _smaller(program) if fails(each)), None)
    return program


def _without(items: tuple[Any, ...], number: int) -> tuple[Any, ...]:
    return items[:number] + items[number + 1 :]


def _smaller(program: Program) -> Iterator[Program]:
    for name in ("sizes", "returned"):
        items = getattr(program, name)
        for number in range(len(items) if len(items) > 1 else 0):
            yield dataclasses.replace(program, **{name: _without(items, number)})
    for number in reversed(range(len(program.lines))):
        made = program.lines[number].split(" = ")[0]
        left = dataclasses.replace(program, lines=_without(program.lines, number))
        if made not in program.returned:
            yield left
        elif number and len(program.returned) == 1:  # return what was made before instead
            before = program.lines[number - 1].split(" = ")[0]
            if before.isidentifier():
                yield dataclasses.replace(left, returned=(before,))
    for number, each in enumerate(program.inputs):
        for change in ({"grad": False}, {"layout": "straight"}, {"special": False}, {"place": None}):
            changed = dataclasses.replace(each, **change)  # type: ignore[arg-type]
            if changed != each:
                inputs = (*program.inputs[:number], changed, *program.inputs[number + 1 :])
                yield dataclasses.replace(program, inputs=inputs)


def examine(seed: int) -> dict[str, Any]:
    """Program `seed` run all ways."""
    program = program_of(seed)
    failure, calls = _verdict(program), len(program.sizes)
    why = targets.why_dead()
    if why is not None:  # and no smaller program can be tried
        told_so = f"program {seed}: {failure}; nothing runs on the device any more: {why}\n\n{told(program)}"
        return {"calls": calls, "failure": told_so, "ended": True}
    return {"calls": calls, "failure": failure and report(program, failure)}


CAMPAIGN = Campaign(
    "tests.pipeline.generated.campaign",
    examine,
    lambda seed: told(program_of(seed)),
    ("calls",),
    alone,
    count=20_000,
    devices=True,
)


if __name__ == "__main__":
    sys.exit(CAMPAIGN.main())
