"""Records: a `Check` and its `Outcome`, a `Measurement` and its `Speed`, and the `Level` that groups them."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from smelt.base.fast_dataclass import dataclass
from smelt_conform.bench import Bench

PASSED = "passed"
ON_HOST = "host"
MISSING = "missing"
FAILED = "failed"
NOT_RUN = "not run"

STATUSES: dict[str, str] = {
    PASSED: "the chip does this",
    ON_HOST: "correct, but the host computed a part of it (a fallback)",
    MISSING: "the chip does not support this",
    FAILED: "a wrong result, an error, a timeout, or a crash",
    NOT_RUN: "skipped after too many crashes or timeouts",
}


@dataclass(frozen=True, slots=True)
class Check:
    """One property of a chip. `run` raises if the chip does not have it."""

    name: str
    proves: str
    look_at: str  # what to implement or inspect if it fails
    run: Callable[[Bench], None]


@dataclass(frozen=True, slots=True)
class Measurement:
    """The speed of one operation. `prepare` returns the function to time and the bytes it must read and write."""

    name: str
    prepare: Callable[[Bench], tuple[Callable[[], object], int]]


@dataclass(frozen=True, slots=True)
class Level:
    """Checks of one subject. `--level` takes `name`."""

    name: str
    title: str
    checks: tuple[Check, ...]
    speeds: tuple[Measurement, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a check."""

    check: str  # "memory.addresses"
    status: str
    reason: str = ""
    seconds: float = 0.0
    launches: int = 0
    fallbacks: tuple[tuple[str, int], ...] = ()  # operators that the host computed, with counts
    raised_at: str = ""  # the line of the chip's code that raised

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"fallbacks": dict(self.fallbacks)}


@dataclass(frozen=True, slots=True)
class Speed:
    """The result of a measurement: the seconds of one run, and its bytes."""

    name: str
    seconds: float
    nbytes: int
    reason: str = ""  # why nothing was measured

    @property
    def bandwidth(self) -> float:
        """Bytes a second."""
        return self.nbytes / self.seconds if self.seconds else 0.0
