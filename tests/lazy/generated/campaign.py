"""Many random tensor programs on lazy tensors: `python -m tests.lazy.generated.campaign --count 10000 --start 7`."""

import sys
from typing import Any

from tests.campaigns import Campaign
from tests.capture.generated.campaign import alone
from tests.lazy.generated.running import failure_of
from tests.pipeline.generated.grammar import Program, program_of


def told(program: Program) -> str:
    """The program and how it is called, as text to run `failure_of` on."""
    imports = "from tests.pipeline.generated.grammar import Input, Program\n"
    imports += "from tests.lazy.generated.running import failure_of\n\n"
    return f'{imports}"""\n{program.text}"""\nprint(failure_of({program!r}))\n'


def examine(seed: int) -> dict[str, Any]:
    """Program `seed` on lazy tensors."""
    program = program_of(seed)
    try:
        failure = failure_of(program)
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
    return {"calls": len(program.sizes), "failure": failure and f"program {seed}: {failure}\n\n{told(program)}"}


CAMPAIGN = Campaign(
    "tests.lazy.generated.campaign", examine, lambda seed: told(program_of(seed)), ("calls",), alone, count=10_000
)


if __name__ == "__main__":
    sys.exit(CAMPAIGN.main())
