"""Many generated programs against plain Python: `make test-programs`, or

    python -m tests.capture.generated.campaign --count 50000 --start 7 --jobs 2 --keep failures/

For each failure a stand-alone script is printed, made small, and with `--keep` also saved.
"""

import signal
import sys
import time
from typing import Any

import torch

from smelt.base.options import config
from tests.campaigns import PATIENCE, Campaign
from tests.capture.generated.grammar import Program, program_of
from tests.capture.generated.repro import repro
from tests.capture.generated.running import verdict
from tests.capture.generated.shrink import shrunk


def failure_of(program: Program) -> str | None:
    """What is wrong with `program`, in words; None if nothing is."""
    try:
        return verdict(program).failure
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _in_time(program: Program) -> str | None:
    """`failure_of` a program that may run for ever: without its `break`, say."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)  # the one that does not wait for the compiler
    signal.alarm(PATIENCE // 10)
    try:
        return failure_of(program)
    except KeyboardInterrupt:
        return None
    finally:
        signal.alarm(0)


def report(program: Program, failure: str, name: str) -> str:
    """A failure with its smallest script."""
    kind = failure.startswith("call ")  # a difference; else smelt raised an error of its own
    deadline = time.monotonic() + PATIENCE / 2

    def fails(smaller: Program) -> bool:
        found = _in_time(smaller) if time.monotonic() < deadline else None
        return found is not None and found.startswith("call ") == kind

    small = shrunk(program, fails)
    return f"{name}: {failure}\n\n{repro(small)}"


def examine(seed: int) -> dict[str, Any]:
    """Program `seed` run both ways."""
    program = program_of(seed)
    found: dict[str, Any] = {"calls": len(program.calls)}
    try:
        outcome = verdict(program)
        found |= {"graphs": outcome.graphs, "breaks": outcome.breaks, "recompiles": outcome.recompiles}
        failure = outcome.failure
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
    return found | {"failure": failure and report(program, failure, f"program {seed}")}


def alone() -> None:
    """A worker of its own: errors of the compiler count, and the other cores have workers too."""
    config.suppress_errors = False
    torch.set_num_threads(1)


CAMPAIGN = Campaign(
    "tests.capture.generated.campaign",
    examine,
    lambda seed: repro(program_of(seed)),
    ("calls", "graphs", "breaks", "recompiles"),
    alone,
)


if __name__ == "__main__":
    sys.exit(CAMPAIGN.main())
