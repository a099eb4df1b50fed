"""Runs one benchmark model in processes of its own and gathers the figures.

    measure(Key("gpt2", "train", "float32"), ["eager", "smelt"], rounds=15)
    → {"first": {backend: seconds}, "steady": {backend: [seconds of a step, by rounds]}, "saved": …, "error": …}

Each backend has a process (`benchmarks.worker`). It does its first step when nothing else of ours runs; then the
processes take turns at later steps. Disk caches are off, smelt's and torch.compile's, and the cache
folder of torch.compile is a new empty one each time. `PEERS` can be measured beside smelt in inference.
"""

import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BACKENDS = ("eager", "smelt", "torch.compile")
FREEZING, ORT, AOTI = "torch.compile-freezing", "ort", "aotinductor"
PEERS = ("torch.compile", FREEZING, ORT)  # the last two in inference only
SPINS, PAUSE = (ORT,), 0.3  # whose threads spin after a call, and the seconds after which they are asleep for sure
MODES = ("train", "infer", "step")
DTYPES = ("float32", "bfloat16")
FIRST_RUNS, FIRST_SECONDS = 3, 20.0  # the first step: up to three fresh processes, no further one after 20 s


def compiled_by(backend: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` as the backend wants it called."""
    if backend == "smelt":
        import smelt

        compiled: Callable[..., Any] = smelt.compile(function)
        return compiled
    if backend == "torch.compile":
        import torch

        return torch.compile(function)
    if backend == FREEZING:
        import torch

        return torch.compile(function, options={"freezing": True})
    if backend == ORT:
        from torch import nn

        from benchmarks.onnx_peer import OnnxModel

        assert isinstance(function, nn.Module), "ONNX Runtime runs modules"
        return OnnxModel(function)
    if backend == AOTI:
        from torch import nn

        from benchmarks.aoti_peer import AotInductorModel

        assert isinstance(function, nn.Module), "AOTInductor compiles modules"
        return AotInductorModel(function)
    return function


@dataclass(frozen=True, slots=True)
class Key:
    """What is measured: a model, "train" (forward and backward), "infer" or "step" (the optimizer too), and the dtype
    of its weights."""

    model: str
    mode: str = "train"
    dtype: str = "float32"
    device: str = "cpu"

    def __str__(self) -> str:
        return f"{self.model}, {self.mode}, {self.dtype}" + (f", {self.device}" if self.device != "cpu" else "")


class WorkerFailed(RuntimeError):
    """A worker ended before it answered; the text is the last line it wrote to stderr."""


def environment(cache: str) -> dict[str, str]:
    """Of a measured process: all caches are off."""
    return {
        # Bytecode is cached, as in an installed package.
        **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
        "TORCHINDUCTOR_CACHE_DIR": cache,
        "SMELT_CACHE": "0",
    }


def in_fresh_process(
    arguments: Sequence[str], timeout: float = 900, settings: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run `python -m <arguments>` and read the JSON on its last line; a failure comes back as {"failed": why}.

    Nobody's caches are on, unless `settings` of the environment have them so.
    """
    with tempfile.TemporaryDirectory() as cache:
        try:
            done = subprocess.run(
                [sys.executable, "-m", *arguments],
                cwd=ROOT,
                env=environment(cache) | dict(settings or {}),
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"failed": f"took longer than {timeout:.0f} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return {"failed": reason, "stderr": done.stderr}
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


class Stepping:
    """A process that holds a model and steps on request: it is told how many, and answers with a line of JSON."""

    process: subprocess.Popen[str]

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            raise WorkerFailed(self._reason())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _reason(self) -> str:
        """Why it ended."""
        return f"exit code {self.process.returncode}"

    def steps(self, count: int) -> dict[str, float]:
        """Seconds of one step, out of `count`: on the clock, and of the processor."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Worker(Stepping):
    """One backend's copy of a model (`benchmarks.worker`)."""

    def __init__(self, key: Key, backend: str, results: Path | None = None) -> None:
        self.folder = tempfile.TemporaryDirectory()
        words = [sys.executable, "-m", "benchmarks.worker", key.model, key.mode, key.dtype, key.device, backend]
        self.errors = Path(self.folder.name, "stderr")
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [*words, *([str(results)] if results else [])],
                cwd=ROOT,
                env=environment(self.folder.name),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        try:
            self.first = self._answer()
        except BaseException:
            self.close()
            raise

    def _reason(self) -> str:
        said = self.errors.read_text().strip().splitlines()
        return said[-1] if said else super()._reason()

    def close(self) -> None:
        super().close()
        self.folder.cleanup()


def measure(
    key: Key, backends: Sequence[str], rounds: int, say: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Every figure of one model. What failed is under "failed", by backend."""
    result: dict[str, Any] = {"model": key.model, "mode": key.mode, "dtype": key.dtype, "failed": {}}
    if key.device != "cpu":
        result["device"] = key.device
    first: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        workers: dict[str, Worker] = {}
        for backend in backends:
            say(f"{key}: first step, {backend}")
            try:
                worker = Worker(key, backend, folder / backend)
            except WorkerFailed as failed:
                result["failed"][backend] = str(failed)
                continue
            stack.callback(worker.close)
            workers[backend], first[backend] = worker, [worker.first["seconds"]]
        for backend in [b for b in workers if b != ORT]:  # its first step is mostly the export
            while len(first[backend]) < FIRST_RUNS and sum(first[backend]) < FIRST_SECONDS:
                fresh = Worker(key, backend)
                first[backend].append(fresh.first["seconds"])
                fresh.close()
        say(f"{key}: steady steps, {', '.join(workers)} alternately")
        result["steady"] = by_turns(workers, rounds, pause=PAUSE if any(b in SPINS for b in workers) else 0.0)
        result["error"], result["within"] = _errors(key, folder, list(workers))
    result["first"] = {backend: sorted(seconds)[len(seconds) // 2] for backend, seconds in first.items()}
    if key.device != "cpu":
        result["peak"] = {backend: worker.first["peak"] for backend, worker in workers.items()}
    elif key.mode == "step":
        say(f"{key}: memory")
        result["peak"] = _peaks(key, [backend for backend in workers if backend != "torch.compile"])
    for what in ("saved", "breaks"):
        result[what] = {backend: worker.first[what] for backend, worker in workers.items() if what in worker.first}
    return result


def by_turns(
    workers: Mapping[str, Worker], rounds: int, per_round: float = 0.15, pause: float = 0.0
) -> dict[str, list[dict[str, float]]]:
    """Seconds per step of each worker, one figure a round: they are interleaved, so a busy minute hits them all.

    With a pause each turn begins with that and with a step that does not count: threads of the worker before have gone
    to sleep by then, and its own are awake.
    """
    repeats = {}
    for backend, worker in workers.items():
        worker.steps(3)
        repeats[backend] = max(1, int(per_round / worker.steps(1)["seconds"]))
    seconds: dict[str, list[dict[str, float]]] = {backend: [] for backend in workers}
    for _ in range(rounds):
        for backend, worker in workers.items():
            if pause:
                time.sleep(pause)
                worker.steps(1)
            seconds[backend].append(worker.steps(repeats[backend]))
    return seconds


def _peaks(key: Key, backends: Sequence[str]) -> dict[str, float]:
    """Bytes in use at the peak of a step, by backends that can tell."""
    found = {b: in_fresh_process(["benchmarks.train_step", key.model, key.dtype, b]) for b in backends}
    return {backend: answer["peak"] for backend, answer in found.items() if "peak" in answer}


def _errors(key: Key, folder: Path, backends: Sequence[str]) -> tuple[dict[str, float], dict[str, bool]]:
    """Errors against float64, and whether the rule holds; nothing for steps that draw random numbers."""
    import torch

    from benchmarks.measure import errors
    from benchmarks.models import model_named

    if "eager" not in backends or (key.mode != "infer" and model_named(key.model, key.device).random):
        return {}, {}
    try:
        Worker(key, "exact", folder / "exact").close()
    except WorkerFailed:
        return {}, {}
    found = {backend: torch.load(folder / backend, weights_only=True) for backend in (*backends, "exact")}
    measured = {backend: errors(found[backend], found["eager"], found["exact"]) for backend in backends}
    return {b: error.scaled for b, error in measured.items()}, {b: error.within for b, error in measured.items()}


def machine() -> dict[str, Any]:
    """Where the figures come from."""
    import torch

    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        **({"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}),
    }
