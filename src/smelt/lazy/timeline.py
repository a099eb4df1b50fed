"""What ran when, and why: the record behind `smelt.lazy.explain()` and `SMELT_LOGS=lazy`."""

from collections import Counter, deque

from smelt.base import events
from smelt.base.fast_dataclass import dataclass
from smelt.lazy.lines import Line

KEPT = 1000
"""How many runs are remembered."""


@dataclass(frozen=True, slots=True)
class LazyRun:
    """One run of what was recorded: what needed it, the line of the program, and how it ran."""

    number: int
    reason: str
    where: Line | None
    operators: int
    inputs: int
    outputs: int
    how: str  # "compiled", "cached", "meanwhile": by operators, while it is compiled, or "eager": by operators
    kernels: int  # of its program
    milliseconds: float
    started: float  # seconds, by the clock of `time.perf_counter`

    @property
    def line(self) -> str:
        """The line of the program that needed it."""
        return str(self.where or "an unknown line")

    def __str__(self) -> str:
        size = f"{self.operators} operators, {self.inputs} inputs, {self.outputs} outputs"
        kernels = f", {self.kernels} kernels" if self.how == "compiled" else ""
        what = f"run {self.number}: {self.reason} at {self.line}"
        return f"{what}: {size}: {self.how}{kernels}, {self.milliseconds:.1f} ms"


class Timeline:
    """The last runs, and counts of all."""

    def __init__(self) -> None:
        self.runs: deque[LazyRun] = deque(maxlen=KEPT)
        self.fallbacks: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.count = 0

    def add(self, run: LazyRun) -> None:
        self.runs.append(run)
        self.reasons[run.reason] += 1
        self.count += 1
        events.emit("lazy", lambda: str(run), run)

    def fall_back(self, operator: str, reason: str) -> None:
        self.fallbacks[operator] += 1
        events.count("lazy_fallbacks")
        events.emit("lazy", f"{operator} runs immediately: {reason}")


@dataclass(frozen=True, slots=True)
class LazyExplanation:
    """What lazy tensors did so far: `print()` shows it."""

    runs: tuple[LazyRun, ...]
    run_count: int
    compile_count: int
    fallbacks: dict[str, int]
    reasons: dict[str, int]
    pending: int  # operators recorded and not run
    not_compiled: dict[str, int]  # graphs that run operator by operator, by the reason
    left_to_eager: dict[str, str]  # blocks that record no more, by their line, with the reason

    def __str__(self) -> str:
        lines = [f"{self.run_count} runs, {self.compile_count} of them compiled; {self.pending} operators wait"]
        lines += [f"  {run}" for run in self.runs]
        if self.fallbacks:
            lines.append("operators that ran at once, by PyTorch:")
            lines += [f"  {name}: {count}" for name, count in sorted(self.fallbacks.items())]
        if self.not_compiled:
            lines.append("graphs that were not compiled:")
            lines += [f"  {reason}: {count}" for reason, count in sorted(self.not_compiled.items())]
        if self.left_to_eager:
            lines.append("blocks that run in eager PyTorch:")
            lines += [f"  {place}: {reason}" for place, reason in sorted(self.left_to_eager.items())]
        return "\n".join(lines)
