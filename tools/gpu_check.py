"""Runs checks on a GPU for a limited time, each in many processes, and writes one summary and all logs into a folder.

    python tools/gpu_check.py --list                                   the checks, and what each runs
    python tools/gpu_check.py gpu nn --seconds 560 --out build/gpu     these two, half of the time each
    python tools/gpu_check.py ops=300 programs --share 2/4 --seconds 560

A check is a name of `--list`, or name=seconds; the others divide what is left of `--seconds`. Checks run one after the
other, the processes of each `--jobs` at a time; what is still under way when its time is over is ended and said to be,
so that the whole ends within `--seconds`. Where there is no GPU, or a tool is not installed, a check is left out with
the reason. `--device cpu` runs everything that can on the host, to try the checks themselves.

The exit code is 1 if something failed; `summary.txt` in the folder is written anew after every process.
"""

import argparse
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]
SANITIZER = "compute-sanitizer"
GRACE = 10.0
"""Seconds that are kept back for ending processes and writing the summary."""
_FINE_FOR_PYTEST = (0, 5)  # 5: none of the tests was chosen
_SHARED = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}  # many processes have few pages to spare each
DTYPES = "float32,float16,bfloat16,float64"


@dataclass(frozen=True)
class Setup:
    """What was asked for on the command line."""

    device: str
    target: str
    jobs: int
    share: str
    samples: int
    first: int
    count: int
    start: int
    only: str
    peer: bool
    out: Path

    @property
    def places(self) -> list[str]:
        return ["--device", self.device, "--target", self.target]


@dataclass
class Job:
    """One process, and what became of it."""

    name: str
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    fine: tuple[int, ...] = (0,)
    log: Path | None = None
    process: "subprocess.Popen[bytes] | None" = None
    began: float = 0.0
    took: float = 0.0
    outcome: str = "not begun"

    def start(self, log: Path) -> None:
        self.log, self.began = log, time.monotonic()
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
        environment = {"SMELT_CACHE": "0", **os.environ, "PYTHONPATH": paths, **self.environment}
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                self.command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def ended(self) -> bool:
        assert self.process is not None
        code = self.process.poll()
        if code is None:
            return False
        self.took = time.monotonic() - self.began
        self.outcome = "passed" if code in self.fine else f"failed with status {code}"
        return True

    def end(self) -> None:
        """With all that it has started: it leads a group of its own."""
        assert self.process is not None
        for kind in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, kind)
            except ProcessLookupError:
                break
            try:
                self.process.wait(GRACE / 4)
            except subprocess.TimeoutExpired:
                continue
        self.took = time.monotonic() - self.began
        self.outcome = "not done in time"

    def tail(self, count: int) -> list[str]:
        if self.log is None or not self.log.exists():
            return []
        return [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()][-count:]


@dataclass(frozen=True)
class Check:
    """Processes that ask one thing of the GPU."""

    says: str
    jobs: Callable[[Setup, float], list[Job]]
    needs: tuple[str, ...] = ()
    tool: str = ""
    alone: bool = False
    """Its processes run one by one: they measure."""
    parallel: bool = False
    """It is one process that starts others."""


def _python(*arguments: str) -> list[str]:
    return [sys.executable, "-X", "faulthandler", *arguments]


def _ops(setup: Setup, seconds: float) -> list[Job]:
    command = _python("-m", "tests.ops_db.sweep", *setup.places, "--dtypes", DTYPES, "--threads", "1")
    command += ["--samples", str(setup.samples), "--share", setup.share, "--jobs", str(setup.jobs)]
    command += ["--seconds", str(seconds - 2 * GRACE), "--first", str(setup.first)]
    command += ["--only", setup.only] if setup.only else []
    return [Job("sweep", command, dict(_SHARED))]


def _programs(setup: Setup, seconds: float) -> list[Job]:
    command = _python("-m", "tests.pipeline.generated.campaign", *setup.places, "--jobs", str(setup.jobs))
    command += ["--count", str(setup.count), "--start", str(setup.start), "--seconds", str(seconds - 2 * GRACE)]
    return [Job("campaign", [*command, "--keep", str(setup.out / "programs" / "failures")], dict(_SHARED))]


def _pytest(*patterns: str, parts: int | dict[str, int] = 1, slow: bool = True) -> Callable[[Setup, float], list[Job]]:
    """A process for each file, or for each part of its tests; `parts` by the name of the file, or of all."""

    def jobs(setup: Setup, seconds: float) -> list[Job]:
        made = []
        for path in sorted(path for pattern in patterns for path in (ROOT / "tests").glob(pattern)):
            several = parts if isinstance(parts, int) else parts.get(path.stem, 1)
            for number in range(1, several + 1):
                command = _python("-m", "pytest", "-q", "-rfE", "--tb=short", "--no-header", "-p", "no:cacheprovider")
                command += ["-o", "faulthandler_timeout=200", "--sharing", str(setup.jobs), *setup.places]
                command += ["-m", "slow or not slow"] if slow else []
                command += ["-k", setup.only] if setup.only else []
                command += ["--part", f"{number}/{several}", str(path.relative_to(ROOT))]
                place = path.relative_to(ROOT / "tests").with_suffix("").as_posix().replace("/", ".")
                name = f"{place} {number} of {several}" if several > 1 else place
                variables = {**_SHARED, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
                made.append(Job(name, command, variables, _FINE_FOR_PYTEST))
        return sorted(made, key=lambda job: " of " not in job.name)  # the long ones first

    return jobs


def _sanitized(tool: str) -> Callable[[Setup, float], list[Job]]:
    def jobs(setup: Setup, seconds: float) -> list[Job]:
        from tests.gpu.schedules import SCHEDULES

        names = [name for name in SCHEDULES if setup.only in name]
        made = []
        for number in range(min(setup.jobs, len(names))):
            command = [SANITIZER, "--tool", tool, "--error-exitcode", "99", "--target-processes", "all"]
            command += [sys.executable, "-m", "tests.gpu.schedules", "--device", setup.device]
            # Without PyTorch's cache each tensor has memory of its own, whose ends are watched.
            job = Job(f"{tool} {number + 1}", [*command, *names[number :: setup.jobs]])
            job.environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
            made.append(job)
        return made

    return jobs


def _schedules(setup: Setup, seconds: float) -> list[Job]:
    command = _python("-m", "tests.gpu.schedules", *setup.places)
    return [Job("schedules", [*command, *([setup.only] if setup.only else [])])]


def _benchmarks(setup: Setup, seconds: float) -> list[Job]:
    from benchmarks.models import models_for

    made = []
    for model in [name for name in models_for(setup.device) if setup.only in name]:
        command = _python("-m", "benchmarks.run", "--device", setup.device, "--models", model, "--modes", "train")
        command += ["--backends", "eager", "smelt", *(["torch.compile"] if setup.peer else [])]
        made.append(Job(model, [*command, "--json", str(setup.out / "benchmarks" / "results.json")]))
    return made


def _bandwidth(setup: Setup, seconds: float) -> list[Job]:
    command = _python("-m", "benchmarks.bandwidth", "--device", setup.device)
    return [Job("bandwidth", [*command, *(["--torch-compile"] if setup.peer else [])])]


_TESTS, _MODELS = ("pytest", "hypothesis"), ("pytest", "transformers")
CHECKS: dict[str, Check] = {
    "schedules": Check("every GPU schedule once, against float64", _schedules),
    "gpu": Check(
        "tests/gpu, tests/deploy/gpu: random numbers, streams, memory, errors, precision, attention, graphs, files",
        _pytest(
            "gpu/test_*.py",
            "deploy/gpu/test_*.py",
            parts={"test_schedules": 8, "test_random_numbers": 4, "test_attention": 2},
        ),
        _TESTS,
    ),
    "ops": Check("PyTorch's operator database by the rule for generated code", _ops, parallel=True),
    "programs": Check("random tensor programs against eager", _programs, parallel=True),
    "operators": Check(
        "operator by operator", _pytest("ops/test_*.py", parts={"test_records": 4, "test_decompositions": 4}), _TESTS
    ),
    "nn": Check("every class of torch.nn", _pytest("nn/test_*.py", parts=16), _TESTS),
    "optim": Check(
        "every optimizer with its flags, whole steps, recipes",
        _pytest("optim/test_[!f]*.py", parts={"test_optimizers": 16, "test_step": 2, "test_recipes": 2}),
        _TESTS,
    ),
    "steps": Check("fifty steps of four models by three optimizers", _pytest("optim/test_f*.py", parts=16), _MODELS),
    "models": Check(
        "Hugging Face architectures",
        _pytest("models/test_*.py", parts={"test_models": 16, "test_contexts": 4, "test_generate": 2}),
        _MODELS,
    ),
    "hooks": Check(
        "compiled autograd and hooks",
        _pytest("compiled_autograd/test_*.py", "runtime/autograd/test_hooks.py", parts={"test_hook_zoo": 4}),
        _TESTS,
    ),
    "autograd": Check("ahead-of-time autograd", _pytest("autograd/**/test_*.py"), _TESTS),
    "memcheck": Check("no schedule reads or writes beside its tensors", _sanitized("memcheck"), tool=SANITIZER),
    "racecheck": Check("no schedule lacks a barrier", _sanitized("racecheck"), tool=SANITIZER),
    "bandwidth": Check("memory-bound kernels against a copy", _bandwidth, alone=True),
    "benchmarks": Check("training steps of the models", _benchmarks, _MODELS[1:], alone=True),
}


def why_not(check: Check, setup: Setup) -> str | None:
    """Why a check cannot run here, if so."""
    missing = [name for name in ("torch", "llvmlite", *check.needs) if find_spec(name) is None]
    if missing:
        return f"{', '.join(missing)} is not installed"
    if check.tool and shutil.which(check.tool) is None:
        return f"{check.tool} is not on the path"
    if check.tool and setup.device == "cpu":
        return f"{check.tool} watches GPUs only"
    if setup.device == "cpu":
        return None
    import torch

    return None if torch.cuda.is_available() else "PyTorch sees no GPU here"


class Summary:
    """What is known so far, as text in a file."""

    def __init__(self, setup: Setup, checks: dict[str, float]) -> None:
        self.setup, self.began = setup, time.monotonic()
        self.found: dict[str, list[Job] | str] = dict.fromkeys(checks, "not begun")
        self.head = [f"{name} {value}" for name, value in _machine(setup.device).items()]
        setup.out.mkdir(parents=True, exist_ok=True)
        self.write()

    @property
    def failed(self) -> list[tuple[str, Job]]:
        jobs = [(name, job) for name, jobs in self.found.items() if not isinstance(jobs, str) for job in jobs]
        return [(name, job) for name, job in jobs if job.outcome.startswith("failed")]

    def lines(self) -> list[str]:
        made = [", ".join(self.head), f"after {time.monotonic() - self.began:.0f} s", ""]
        for name, jobs in self.found.items():
            if isinstance(jobs, str):
                made.append(f"{name}: {jobs}")
                continue
            counts = {kind: sum(job.outcome.startswith(kind) for job in jobs) for kind in ("passed", "failed", "not")}
            made.append(
                f"{name}: {counts['passed']} of {len(jobs)} processes passed, {counts['failed']} failed, "
                f"{counts['not']} not done in time"
            )
            made += [f"    {job.name}: {job.outcome}, {job.took:.0f} s; {_last(job)}" for job in jobs]
        for name, job in self.failed:
            made += ["", f"== {name}: {job.name}: {job.outcome} ({job.log})", *_telling(job)]
        return made

    def write(self) -> None:
        (self.setup.out / "summary.txt").write_text("\n".join(self.lines()) + "\n")


def _last(job: Job) -> str:
    return (job.tail(1) or ["nothing printed"])[-1].strip()[:160]


def _telling(job: Job) -> list[str]:
    """What a log says of failures: pytest's own list of them, or its end."""
    lines = job.tail(4000)
    told = [line for line in lines if re.match(r"(FAILED|ERROR) ", line)]
    return [line[:400] for line in (told[:60] or lines[-60:])]


def _machine(device: str) -> dict[str, str]:
    found = {"python": platform.python_version(), "cores": str(os.cpu_count())}
    if find_spec("torch") is not None:
        import torch

        found["torch"] = torch.__version__
        if device != "cpu" and torch.cuda.is_available():
            found["GPU"] = torch.cuda.get_device_name()
    return found


def run(name: str, jobs: list[Job], at_once: int, end: float, summary: Summary) -> None:
    """All of a check's processes, so many at a time, until `end`."""
    folder = summary.setup.out / name
    folder.mkdir(parents=True, exist_ok=True)
    waiting, running = list(jobs), list[Job]()
    while (waiting or running) and time.monotonic() < end:
        while waiting and len(running) < at_once:
            job = waiting.pop(0)
            job.start(folder / f"{re.sub(r'[^a-zA-Z0-9_.-]+', '_', job.name)}.log")
            running.append(job)
        done = [job for job in running if job.ended()]
        running = [job for job in running if job not in done]
        for job in done:
            print(f"{name}: {job.name}: {job.outcome}, {job.took:.0f} s; {_last(job)}", flush=True)
        if done:
            summary.write()
        time.sleep(0.1)
    for job in running:
        job.end()
        print(f"{name}: {job.name}: {job.outcome}, {job.took:.0f} s; {_last(job)}", flush=True)
    summary.write()


def build() -> str | None:
    """Build the C part where it is not there; what went wrong, if anything."""
    there = subprocess.run(
        [sys.executable, "-c", "import smelt._native"], cwd=ROOT / "src", capture_output=True, text=True
    )
    if there.returncode == 0:
        return None
    made = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=ROOT, capture_output=True, text=True
    )
    return None if made.returncode == 0 else made.stderr


def chosen(names: Sequence[str], seconds: float) -> dict[str, float]:
    """The checks with the seconds for each."""
    asked: dict[str, float | None] = {}
    for each in names or CHECKS:
        name, _, limit = each.partition("=")
        if name not in CHECKS:
            raise SystemExit(f"there is no check {name}: {', '.join(CHECKS)}")
        asked[name] = float(limit) if limit else None
    left = seconds - GRACE - sum(limit for limit in asked.values() if limit is not None)
    free = sum(limit is None for limit in asked.values())
    if left < 0 or (free and left / free < 2 * GRACE):
        raise SystemExit(f"{seconds:.0f} seconds are too few for {', '.join(asked)}")
    return {name: left / free if limit is None else limit for name, limit in asked.items()}


def _read() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools/gpu_check.py", description="checks on a GPU, for a limited time")
    parser.add_argument("checks", nargs="*", help="names, or name=seconds; all by default")
    parser.add_argument("--list", action="store_true", help="say what there is, and run nothing")
    parser.add_argument("--seconds", type=float, default=560.0, help="within which all of it ends")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu_check", help="folder for summary and logs")
    parser.add_argument("--device", default="cuda", help="cpu to try the checks on the host")
    parser.add_argument("--target", default="cpu", help="with --device cpu: simt-host, for a GPU's kernels on the host")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--share", default="1/1", help="ops: 2/5 for every fifth sample, from the second on")
    parser.add_argument("--samples", type=int, default=0, help="ops: samples of each operator; 0 for all")
    parser.add_argument("--first", type=int, default=0, help="ops: the case to go on with, as the run before said")
    parser.add_argument("--count", type=int, default=20_000, help="programs: how many")
    parser.add_argument("--start", type=int, default=700_000_000, help="programs: the number of the first")
    parser.add_argument("--only", default="", help="ops: operators; tests: -k; benchmarks, sanitizer: part of a name")
    parser.add_argument("--peer", action="store_true", help="benchmarks: measure torch.compile too")
    return parser.parse_args()


def main() -> int:
    given = _read()
    if given.list:
        print("\n".join(f"{name:12}{check.says}" for name, check in CHECKS.items()))
        return 0
    sys.path[:0] = [str(ROOT / "src"), str(ROOT)]
    end = time.monotonic() + given.seconds - GRACE
    checks = chosen(given.checks, given.seconds)
    setup = Setup(
        given.device, given.target, given.jobs, given.share, given.samples, given.first, given.count, given.start,
        given.only, given.peer, given.out.resolve(),
    )  # fmt: skip
    summary = Summary(setup, checks)
    wrong = build()
    if wrong is not None:
        summary.found = dict.fromkeys(checks, f"left out: the C part cannot be built:\n{wrong}")
        summary.write()
        print(wrong)
        return 1
    for number, (name, seconds) in enumerate(checks.items()):
        check = CHECKS[name]
        reason = why_not(check, setup)
        if reason is not None:
            summary.found[name] = f"left out: {reason}"
            print(f"{name}: left out: {reason}", flush=True)
            continue
        # Time that a check leaves over is for those behind it.
        later = sum(list(checks.values())[number + 1 :])
        until = min(end, max(time.monotonic() + seconds, end - later))
        jobs = check.jobs(setup, until - time.monotonic())
        summary.found[name] = jobs
        run(name, jobs, 1 if check.alone or check.parallel else setup.jobs, until, summary)
    summary.write()
    print(f"{len(summary.failed)} processes failed; {setup.out / 'summary.txt'}")
    return 1 if summary.failed else 0


if __name__ == "__main__":
    sys.exit(main())
