"""Steps on a GPU: eager, smelt and torch.compile side by side, each program in a process of its own.

    python -m benchmarks.gpu_steps [gpt2 vit …] [--ways eager smelt torch.compile …] [--jobs 8] [--json FILE]
                                   [--out FOLDER]
    python -m benchmarks.gpu_steps --list

The processes build and run their first steps side by side, `--jobs` at a time, because a first step of torch.compile
takes up to a minute. They are timed one after the other, when all are ready. In a process the ways of running a program
alternate in blocks, and the median of all steps counts.

    first    seconds of the first step of a compiled program, when eager has run it before
    step     milliseconds until the GPU is done, one step after the other
    host     milliseconds until the call returns, with the GPU idle before
    busy     milliseconds in which the GPU ran kernels, and how many it ran
    memory   mebibytes at the peak of a step, with parameters and gradients
    off      largest difference to eager's result of the first step, divided by the largest absolute value of it

The folder gets the kernels of each program and way by the time they take; `benchmarks.gpu_time` draws where it goes.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

import smelt
from benchmarks.gpu_tasks import TASKS, Compiler, Step

BLOCKS, BLOCK_SECONDS = 3, 0.3
START_SECONDS = 300.0  # after which a process that has not run its first steps is ended
MEASURING_SECONDS = 90.0


def _smelt(**settings: Any) -> Compiler:
    return lambda program: smelt.compile(program, **settings)


WAYS: dict[str, Compiler] = {
    "eager": lambda program: program,
    "smelt": _smelt(),
    "smelt-graphs": _smelt(mode="reduce-overhead"),
    "smelt-no-graphs": _smelt(options={"cuda_graphs": "never"}),
    "torch.compile": lambda program: torch.compile(program),
    "torch.compile-graphs": lambda program: torch.compile(program, mode="reduce-overhead"),
}
DEFAULT_WAYS = ("eager", "smelt", "smelt-graphs")


@dataclass
class Figures:
    """The figures of one way to run a program."""

    first: float = 0.0
    off: float = 0.0
    times: list[float] = field(default_factory=list)
    hosts: list[float] = field(default_factory=list)
    busy: float = 0.0
    kernels: int = 0
    memory: float = 0.0
    error: str = ""

    def summary(self) -> dict[str, Any]:
        """For a file of results."""
        fields = {name: value for name, value in asdict(self).items() if name not in ("times", "hosts")}
        if self.times:
            fields |= {"step": statistics.median(self.times), "host": statistics.median(self.hosts)}
        return fields


def line(name: str, way: str, figures: dict[str, Any]) -> str:
    if figures["error"] or "step" not in figures:
        return f"{name:16} {way:20} failed: {figures['error'] or 'not timed'}"
    step, host, busy = (figures[key] for key in ("step", "host", "busy"))
    times = f"step {step:8.3f} ms, host {host:7.3f}, busy {busy:7.3f} in {figures['kernels']:4}"
    rest = f"{figures['memory']:6.0f} MiB, off {figures['off']:.1e}"
    return f"{name:16} {way:20} first {figures['first']:6.2f} s, {times}, {rest}"


# One process: a program and its ways.


def _timed(step: Step) -> tuple[torch.Tensor, float, float]:
    """The result; seconds until the GPU was done, and until the call returned."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    result = step()
    returned = time.perf_counter()
    torch.cuda.synchronize()
    return result, time.perf_counter() - start, returned - start


def _difference(result: torch.Tensor, expected: torch.Tensor) -> float:
    scale = expected.double().abs().max().item() or 1.0
    return (result.double() - expected.double()).abs().max().item() / scale


def _start(program: Callable[[Compiler], Step], ways: Sequence[str]) -> tuple[dict[str, Step], dict[str, Figures]]:
    """Run the first steps. A way that fails keeps its error and is not timed."""
    steps: dict[str, Step] = {}
    figures = {way: Figures() for way in ways}
    expected: torch.Tensor | None = None
    for way in ways:
        try:
            step = program(WAYS[way])
            result, figures[way].first, _ = _timed(step)
            expected = result.clone() if expected is None else expected
            figures[way].off = _difference(result, expected)
            for _ in range(4):  # a CUDA graph is recorded after a few steps
                step()
            steps[way] = step
        except Exception as error:
            figures[way].error = f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"
    return steps, figures


def _measure(steps: dict[str, Step], figures: dict[str, Figures]) -> None:
    """Time the ways in alternating blocks, so that other work on the machine disturbs all alike."""
    for _ in range(BLOCKS):
        for way, step in steps.items():
            for _ in range(3):
                step()
            end = time.perf_counter() + BLOCK_SECONDS
            while time.perf_counter() < end:
                _, done, returned = _timed(step)
                figures[way].times.append(done * 1e3)
                figures[way].hosts.append(returned * 1e3)
    for way, step in steps.items():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        figures[way].memory = torch.cuda.max_memory_allocated() / 2**20


def kernel_times(step: Step) -> tuple[Counter[str], Counter[str]]:
    """Microseconds of each kernel of a step, whoever launches it, and how often it runs."""
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        step()
        torch.cuda.synchronize()
    times: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for event in profiler.events() or ():
        if event.device_type == DeviceType.CUDA:
            times[event.name] += event.time_range.elapsed_us()
            counts[event.name] += 1
    return times, counts


def write_kernel_times(path: Path, times: Counter[str], counts: Counter[str]) -> None:
    lines = [f"{times[name]:9.1f} us {counts[name]:5} x  {name[:160]}" for name, _ in times.most_common()]
    path.write_text("\n".join(lines) + "\n")


def _profile(step: Step, figures: Figures, path: Path | None) -> None:
    """Add what the GPU was busy with; write it to `path`."""
    times, counts = kernel_times(step)
    figures.busy, figures.kernels = sum(times.values()) / 1e3, sum(counts.values())
    if path is not None:
        write_kernel_times(path, times, counts)


def run_program(name: str, ways: Sequence[str], out: Path | None) -> None:
    """Print `ready`, wait for a line of input, measure, and print the figures as JSON."""
    steps, figures = _start(TASKS[name].build(), ways)
    torch.cuda.synchronize()
    print("ready", flush=True)
    sys.stdin.readline()
    _measure(steps, figures)
    for way, step in steps.items():
        _profile(step, figures[way], out / f"{name}_{way}.txt" if out is not None else None)
    print(json.dumps({way: of_way.summary() for way, of_way in figures.items()}), flush=True)


# All processes


def _started(name: str, ways: Sequence[str], out: Path | None) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "benchmarks.gpu_steps", name, "--child", "--ways", *ways]
    if out is not None:
        command += ["--out", str(out)]
    environment = {**os.environ, "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "SMELT_CACHE": "0", "OMP_NUM_THREADS": "2"}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def _lines(process: "subprocess.Popen[str]") -> Iterator[str]:
    """The lines it prints. Whoever stops early leaves the file open, unlike with `yield from`."""
    assert process.stdout is not None
    for text in process.stdout:  # noqa: UP028
        yield text


def _ready(process: "subprocess.Popen[str]", end: float) -> bool:
    """Whether the process has run its first steps before `end`. It is ended otherwise."""
    timer = threading.Timer(max(1.0, end - time.monotonic()), process.kill)
    timer.start()
    try:
        return any(text.strip() == "ready" for text in _lines(process))
    finally:
        timer.cancel()


def _results(process: "subprocess.Popen[str]") -> dict[str, Any] | None:
    assert process.stdin is not None
    try:
        process.stdin.write("go\n")
        process.stdin.flush()
    except BrokenPipeError:
        return None
    timer = threading.Timer(MEASURING_SECONDS, process.kill)
    timer.start()
    texts = [text for text in _lines(process) if text.startswith("{")]
    timer.cancel()
    process.wait()
    results: dict[str, Any] | None = json.loads(texts[-1]) if texts else None
    return results


def run_all(
    names: Sequence[str], ways: Sequence[str], jobs: int, out: Path | None, write: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """The figures by program and way, given to `write` after each program.

    `jobs` programs at a time start side by side and are timed one by one.
    """
    found: dict[str, Any] = {}
    for first in range(0, len(names), jobs):
        group = {name: _started(name, ways, out) for name in names[first : first + jobs]}
        end = time.monotonic() + START_SECONDS
        ready = {name: _ready(process, end) for name, process in group.items()}
        for name, process in group.items():
            results = _results(process) if ready[name] else None
            if results is None:
                print(f"{name:16} ended with status {process.wait()}", flush=True)
                continue
            found[name] = results
            write(found)
            for way, figures in results.items():
                print(line(name, way, figures), flush=True)
    return found


def ratios(found: dict[str, Any], ours: str, other: str) -> dict[str, float]:
    """How many times as fast as another way a way is, by program."""
    return {
        name: ways[other]["step"] / ways[ours]["step"]
        for name, ways in found.items()
        if "step" in ways.get(other, {}) and "step" in ways.get(ours, {})
    }


def geometric_mean(values: Sequence[float]) -> float:
    return statistics.geometric_mean(values)


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.gpu_steps", description="steps on a GPU")
    parser.add_argument("programs", nargs="*", help="names of --list; all by default")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(DEFAULT_WAYS))
    parser.add_argument("--peers", action="store_true", help="all ways, both modes of torch.compile included")
    parser.add_argument(
        "--jobs", type=int, default=8, help="processes side by side until all have run their first steps"
    )
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--out", type=Path, help="a folder for the kernels of each program and the time they take")
    parser.add_argument("--list", action="store_true", help="print the programs and stop")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.list:
        for task in TASKS.values():
            print(f"{task.name:16} {task.description}")
        return 0
    if unknown := [name for name in given.programs if name not in TASKS]:
        parser.error(f"no program {', '.join(unknown)}; there are {', '.join(TASKS)}")
    ways = list(WAYS) if given.peers else given.ways
    if given.child:
        run_program(given.programs[0], ways, given.out)
        return 0
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
    device = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    print(device, flush=True)

    def write(found: dict[str, Any]) -> None:
        if given.json is not None:
            given.json.write_text(json.dumps({"device": device, "programs": found}, indent=1) + "\n")

    found = run_all(given.programs or list(TASKS), ways, given.jobs, given.out, write)
    for ours in ("smelt", "smelt-graphs"):
        for other in ways:
            if not other.startswith("smelt") and (of_programs := ratios(found, ours, other)):
                texts = ", ".join(f"{name} {ratio:.2f}" for name, ratio in of_programs.items())
                print(f"{ours} against {other}: {geometric_mean(list(of_programs.values())):.2f} in the mean; {texts}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
