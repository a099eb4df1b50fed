"""Generated programs whose captures are kept and loaded, against plain Python:

    python -m tests.capture.generated.loaded --count 20000 --start 7 --jobs 2 --keep failures/

Each call has a compiled function of its own, which knows nothing but what is on the disk. Every program is run twice in
new worlds: in the second, what the first has kept is tried at every call, also for states that have changed since.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import smelt
from smelt.base.options import config
from smelt.capture import CompiledRegion
from tests.campaigns import Campaign
from tests.capture.generated.campaign import alone
from tests.capture.generated.grammar import Program, program_of
from tests.capture.generated.picture import difference
from tests.capture.generated.repro import repro
from tests.capture.generated.running import run
from tests.capture.stored_captures import Plainly


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        return CompiledRegion(Plainly()).call(function, *args)

    return call


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function in a frame of its own, as the other is."""

    def call(*args: Any) -> Any:
        return function(*args)

    call.__code__ = call.__code__.replace(co_firstlineno=compiled.__code__.co_firstlineno + 1)
    return call


def failure_of(program: Program) -> tuple[str | None, int]:
    """What differs, and how many captures were loaded."""
    wanted, _ = run(program, plain)
    loaded, before = 0, config.disk_cache_dir
    folder = tempfile.mkdtemp()
    config.disk_cache_dir, settings = folder, os.environ.pop("SMELT_CACHE", None)
    try:
        for turn in ("first", "second"):
            smelt.reset()
            got, _ = run(program, compiled)
            loaded += smelt.counters["captures_loaded"]
            for number, (ours, theirs) in enumerate(zip(got, wanted, strict=True)):
                found = difference(ours, theirs, exact=True)
                if found is not None:
                    return f"call {number} of the {turn} time: {found}", loaded
        return None, loaded
    finally:
        shutil.rmtree(folder)
        config.disk_cache_dir = before
        if settings is not None:
            os.environ["SMELT_CACHE"] = settings


def examine(seed: int) -> dict[str, Any]:
    """Program `seed` run all three ways."""
    program = program_of(seed)
    try:
        failure, loaded = failure_of(program)
    except Exception as error:
        failure, loaded = f"{type(error).__name__}: {error}", 0
    report = failure and f"program {seed}: {failure}\n\n{repro(program)}"
    return {"calls": len(program.calls), "loaded": loaded, "failure": report}


CAMPAIGN = Campaign(
    "tests.capture.generated.loaded",
    examine,
    lambda seed: repro(program_of(seed)),
    ("calls", "loaded"),
    alone,
    count=20_000,
)


if __name__ == "__main__":
    sys.exit(CAMPAIGN.main())
