"""Records of the conformance kit: a `Check`, its `Outcome`, a `Measurement` and the `Speed` that it found."""

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
    PASSED: "the chip does it",
    ON_HOST: "right, but the host computed a part of it (a fallback)",
    MISSING: "the chip does not offer it",
    FAILED: "wrong, an error, no answer in time, or the end of the process",
    NOT_RUN: "the chip failed too often before it",
}


@dataclass(frozen=True, slots=True)
class Check:
    """One property of a chip. `run` raises where the chip does not have it."""

    name: str
    proves: str
    look_at: str  # what to implement or to look at where it fails
    run: Callable[[Bench], None]


@dataclass(frozen=True, slots=True)
class Measurement:
    """How fast a part is. `prepare` returns what is timed, and the bytes that it reads and writes at least."""

    name: str
    prepare: Callable[[Bench], tuple[Callable[[], object], int]]


@dataclass(frozen=True, slots=True)
class Level:
    """Checks of one subject. `name` is what `--level` takes."""

    name: str
    title: str
    checks: tuple[Check, ...]
    speeds: tuple[Measurement, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a check."""

    check: str  # "memory.addresses"
    status: str
    reason: str = ""
    seconds: float = 0.0
    launches: int = 0
    fallbacks: tuple[tuple[str, int], ...] = ()  # operators that the host computed, and how often
    raised_at: str = ""  # the line of the chip's own that raised

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"fallbacks": dict(self.fallbacks)}


@dataclass(frozen=True, slots=True)
class Speed:
    """What a measurement found: the seconds of one run, and its bytes."""

    name: str
    seconds: float
    nbytes: int
    reason: str = ""  # why nothing was measured

    @property
    def bandwidth(self) -> float:
        """Bytes a second."""
        return self.nbytes / self.seconds if self.seconds else 0.0
