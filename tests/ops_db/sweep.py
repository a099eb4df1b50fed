"""PyTorch's own operator database, every operator against eager: `python -m tests.ops_db.sweep`.

    python -m tests.ops_db.sweep --dtypes float32,bfloat16 --samples 6 --only softmax,cumsum --jobs 2
    python -m tests.ops_db.sweep --backend aot_eager --samples 0 --second       every sample, second derivatives too
    python -m tests.ops_db.sweep --samples 0 --share 2/5 --jobs 16 --threads 1  every fifth sample, from the second on
    python -m tests.ops_db.sweep --device cuda --jobs 16 --seconds 500          on a GPU, what is done by then
    python -m tests.ops_db.sweep --target simt-host                             by a GPU's kernels, on the host
    python -m tests.ops_db.sweep --only mm,bmm --options library=none           with options of the compiler
    python -m tests.ops_db.sweep --backend lazy                                 on lazy tensors
    python -m tests.ops_db.sweep --backend sim --fallbacks      on a chip, and what the host computes for it (or vk)

Operators run in worker processes that announce each one before they start it, so that a crash or a hang is known by
name; the sweep goes on behind it.
"""

import argparse
import json
import math
import os
import selectors
import subprocess
import sys
import time
import unittest
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch

import smelt
from tests import targets
from tests.ops_db import many_digits
from tests.ops_db.fallbacks import is_listed

ROOT = Path(__file__).parent.parent.parent

CHIPS = {"sim": ("sim", "smelt_sim", "Sim"), "vk": ("vulkan", "smelt_vulkan", "VulkanChip")}
"""Backends that are chips: the folder of their plug-in, its package and its class."""

WORKER = ("-m", "tests.ops_db.sweep")

# Operators whose results are not numbers to compare: they show memory nobody has written.
UNINITIALISED = frozenset({"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"})


_LOOKS = "eager looks whether a factor is zero and divides if none is; traced, the others are multiplied"
_CUMPROD_LOOKS = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)

# Operators whose numbers under `aot_eager` are not eager's bit for bit: how many ulp of the largest, and why.
ROUNDING = {
    "prod": (64, _LOOKS),
    "linalg.lstsq": (64, "the driver gelsy reads pivots that nobody has written: eager differs from itself"),
    **(dict.fromkeys(("cumprod", "linalg.vander"), (64, _LOOKS)) if _CUMPROD_LOOKS else {}),
}


@dataclass(frozen=True)
class Case:
    """One operator at one dtype."""

    operator: str
    variant: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.operator}{'.' + self.variant if self.variant else ''}:{self.dtype}"


@dataclass(frozen=True)
class Task:
    """What is done with each case; `samples` 0 means all. Of those, a `share` (1, 4) is each fourth, from the first."""

    backend: str = "llvm"
    samples: int = 4
    second: bool = False
    share: tuple[int, int] = (1, 1)
    threads: int = 2
    device: str = targets.HOST
    target: str = targets.HOST
    jobs: int = 1
    """So many at a time: on a GPU each has its part of the memory."""
    options: tuple[tuple[str, str], ...] = ()
    """Of the compiler, name by name."""

    @property
    def device_type(self) -> str:
        return torch.device(self.device).type


@dataclass
class Answer:
    """What one case gave: differences, reasons for which something was left to PyTorch, how many samples were tried,
    and what was refused, sample by sample, because the library may not be called."""

    wrong: list[str]
    fallbacks: list[str]
    unlisted: list[str] = field(default_factory=list)
    samples: int = 0
    refused: list[str] = field(default_factory=list)
    ended: bool = False
    """Nothing more runs in this process: an error on a GPU stays."""


def all_cases(
    dtypes: Sequence[str], only: Sequence[str] = (), device_type: str = targets.HOST
) -> Iterator[Case]:
    """Every operator of the database, or `only` those in that order, at those of `dtypes` that it takes."""
    database = _database()
    for info in [info for name in only for info in database if info.name == name] if only else database:
        for name in dtypes:
            if info.supports_dtype(getattr(torch, name), device_type):
                yield Case(info.name, info.variant_test_name, name)


def _database() -> Sequence[Any]:
    # PyTorch's test classes want this package; the database beside them does not.
    if "expecttest" not in sys.modules and find_spec("expecttest") is None:
        stand_in = ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stand_in
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    found: Sequence[Any] = op_db
    return found


def check(case: Case, task: Task) -> Answer:
    """What differs, over samples of one operator and one of them with its tensors strided."""
    from tests.ops_db.comparing import compare, tensors_in

    (info,) = [i for i in _database() if (i.name, i.variant_test_name) == (case.operator, case.variant)]
    dtype = getattr(torch, case.dtype)
    gradients = info.supports_autograd and dtype in info.supported_backward_dtypes(task.device_type)
    answer = Answer([], [])
    targets.reseed(0)
    random = bool(torch.Tag.nondeterministic_seeded in _tags(case.operator)) or "dropout" in case.operator
    given = list(info.sample_inputs(task.device, dtype, requires_grad=gradients))
    few = 0 < task.samples < len(given)
    chosen = [given[i * len(given) // task.samples] for i in range(task.samples)] if few else given
    number, shares = task.share
    tried = [(str(place), sample) for place, sample in enumerate(chosen)][number - 1 :: shares]
    for sample in chosen[:1] if number == 1 else ():
        if all(tensor.layout is torch.strided for tensor in tensors_in((sample.input, sample.args, sample.kwargs))):
            tried.append(("strided", sample.noncontiguous()))
    for name, sample in tried:
        args = (sample.input, *sample.args)
        found = compare(
            as_users_write_it(info.op),
            args,
            sample.kwargs,
            backend=task.backend,
            values=case.operator not in UNINITIALISED,
            random=random,
            second=task.second,
            ulps=ROUNDING.get(case.operator, (0, ""))[0],
            options=dict(task.options),
            precise=partial(many_digits.result, case.operator) if case.operator in many_digits.FUNCTIONS else None,
        )
        answer.wrong.extend(f"sample {name} {_shapes(args, sample.kwargs)}: {text}" for text in found.wrong)
        answer.fallbacks.extend(text for text in found.fallbacks if text not in answer.fallbacks)
        answer.refused.extend(found.refused[:1])
        answer.samples += 1
        if task.backend not in CHIPS:  # whose kernels serve other samples
            smelt.reset()
    if task.backend == "lazy" or task.backend in CHIPS:
        smelt.reset()
        return answer
    answer.unlisted.extend(text for text in answer.fallbacks if not is_listed(case.operator, text))
    return answer


def as_users_write_it(op: Any) -> Any:
    """The operator itself, or a copy of the function round it that counts as the user's: capture leaves those that lie
    among PyTorch's own files to Python. The seed is set by the comparison, so their fixing of it is left out."""
    if not isinstance(op, FunctionType) or "_internal" not in op.__code__.co_filename:
        return op
    names = {**op.__globals__, "wrapper_set_seed": lambda op, *args, **kwargs: op(*args, **kwargs)}
    return FunctionType(op.__code__.replace(co_filename=__file__), names, op.__name__, op.__defaults__, op.__closure__)


def _tags(name: str) -> Sequence[torch.Tag]:
    packet = getattr(torch.ops.aten, name.rpartition(".")[2], None)
    return [tag for overload in packet.overloads() for tag in getattr(packet, overload).tags] if packet else []


def _shapes(args: Sequence[object], kwargs: dict[str, object]) -> str:
    def show(value: object) -> str:
        if isinstance(value, torch.Tensor):
            return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        if isinstance(value, tuple | list):
            return "(" + ", ".join(map(show, value)) + ")"
        return repr(value)

    return "(" + ", ".join([*map(show, args), *(f"{name}={show(value)}" for name, value in kwargs.items())]) + ")"


def work(task: Task, lines: Iterable[str]) -> None:
    """The worker: cases as JSON lines in, answers as JSON lines out."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(task.threads)
    targets.share(task.device, task.jobs)
    targets.use(None, task.target)  # samples say where they are
    _database()
    if task.backend == "lazy":
        smelt.lazy.enable(background=False)
    if task.backend in CHIPS:
        register_chip(task.backend)
    for line in lines:
        case = Case(**json.loads(line))
        try:
            answer = check(case, task)
        except BaseException as error:
            answer = Answer([f"the test itself: {type(error).__name__}: {error}"], [])
        why = targets.why_dead()
        if why is not None:
            answer.wrong.append(f"nothing runs on the device any more: {why}")
            answer.ended = True
        print("\x1e" + json.dumps(vars(answer)), flush=True)
        if answer.ended:
            return


def register_chip(name: str) -> None:
    """Make the device of a chip from its plug-in's folder."""
    folder, package, chip = CHIPS[name]
    sys.path.insert(0, str(ROOT / "plugins" / folder))
    smelt.register_chip(name, getattr(import_module(package), chip)())


class Worker:
    """A process that checks cases one at a time."""

    def __init__(self, task: Task) -> None:
        command = [sys.executable, *WORKER, "--work", f"--samples={task.samples}", f"--backend={task.backend}"]
        command += [f"--share={task.share[0]}/{task.share[1]}", f"--threads={task.threads}"]
        command += [f"--device={task.device}", f"--target={task.target}", f"--jobs={task.jobs}"]
        command += ["--second"] if task.second else []
        command += ["--options=" + ",".join("=".join(option) for option in task.options)] if task.options else []
        # Samples for "cpu" name other devices where there are any.
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if task.device_type == targets.HOST else {}
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
                **hidden,
            },
        )
        self.case: Case | None = None
        self.since = 0.0

    def start(self, case: Case) -> None:
        assert self.process.stdin is not None
        self.case, self.since = case, time.monotonic()
        self.process.stdin.write(json.dumps(vars(case)) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Answer:
        """What the worker found, once there is something to read; a worker that died says so itself."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("\x1e"):
                return Answer(**json.loads(line[1:]))
        return Answer([f"the process died with status {self.process.wait()}"], [])

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def sweep(
    cases: Sequence[Case],
    task: Task,
    *,
    jobs: int = 2,
    limit: float = 90.0,
    seconds: float = math.inf,
    ready: Sequence[Worker] = (),
) -> Iterator[tuple[Case, Answer]]:
    """Every case with what was found, as answers come in; of those only that are done within `seconds`. Workers that
    are `ready` are taken first."""
    waiting, end = list(reversed(cases)), time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        busy: set[Worker] = set()

        def give(worker: Worker) -> None:
            if not waiting:
                worker.stop()
                return
            worker.start(waiting.pop())
            busy.add(worker)
            selector.register(worker.process.stdout, selectors.EVENT_READ, worker)  # type: ignore[arg-type]

        def take(worker: Worker) -> Case:
            selector.unregister(worker.process.stdout)  # type: ignore[arg-type]
            busy.discard(worker)
            assert worker.case is not None
            return worker.case

        for number in range(max(min(jobs, len(cases)), len(ready))):
            give(ready[number] if number < len(ready) else Worker(task))
        while busy and time.monotonic() < end:
            for key, _ in selector.select(timeout=1.0):
                worker: Worker = key.data
                case, found = take(worker), worker.answer()
                yield case, found
                if found.ended:
                    worker.stop()
                give(worker if worker.process.poll() is None else Worker(task))
            for worker in [w for w in busy if time.monotonic() - w.since > limit]:
                case = take(worker)
                worker.stop()
                yield case, Answer([f"no answer within {limit} s"], [])
                give(Worker(task))
        for worker in busy:
            worker.stop()


def _named(options: str) -> tuple[tuple[str, str], ...]:
    """Options of the compiler, of those whose values are words: `products=own,convolutions=products`."""
    parted = (option.partition("=") for option in options.split(",") if option)
    return tuple((name, value) for name, _, value in parted)


def main() -> int:
    parser = argparse.ArgumentParser(description="Hold every operator of PyTorch's database to eager.")
    parser.add_argument("--dtypes", default="float32", help="comma-separated")
    parser.add_argument("--only", default="", help="operators, comma-separated; all by default")
    parser.add_argument("--samples", type=int, default=4, help="sample inputs per operator; 0 for all")
    parser.add_argument("--backend", default="llvm")
    parser.add_argument("--second", action="store_true", help="derivatives of second order too")
    parser.add_argument("--share", default="1/1", help="2/5: every fifth of those samples, from the second on")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2, help="of each job")
    parser.add_argument("--limit", type=float, default=90.0, help="seconds an operator may take")
    parser.add_argument("--seconds", type=float, default=math.inf, help="end after so long, with what is done by then")
    parser.add_argument("--first", "--start", type=int, default=0, help="the number of the case to begin with")
    parser.add_argument("--count", type=int, help="of cases")
    parser.add_argument("--every", type=int, default=1, help="10: each tenth case")
    parser.add_argument("--options", default="", help="of the compiler: products=own,…")
    targets.add_options(parser)
    parser.add_argument("--each", action="store_true", help="a line for each case, as it is done")
    parser.add_argument("--fallbacks", action="store_true", help="print what is left to PyTorch, and why")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    number, shares = map(int, options.share.split("/"))
    if not 1 <= number <= shares:
        parser.error(f"there is no share {options.share}")
    task = Task(
        options.backend, options.samples, options.second, (number, shares), options.threads, options.device,
        options.target, options.jobs, _named(options.options),
    )  # fmt: skip
    if options.work:
        work(task, sys.stdin)
        return 0
    only = [name for name in options.only.split(",") if name]
    began = time.monotonic()
    ready = [Worker(task) for _ in range(options.jobs)]  # which load the database while it is read here
    cases = list(all_cases(options.dtypes.split(","), only, task.device_type))
    cases = cases[options.first :: options.every][: options.count]
    left_s = options.seconds - (time.monotonic() - began)
    answers: list[Answer] = []
    waiting = dict.fromkeys(cases)
    failed = 0
    for case, answer in sweep(cases, task, jobs=options.jobs, limit=options.limit, seconds=left_s, ready=ready):
        answers.append(answer)
        waiting.pop(case, None)
        if answer.wrong:
            failed += 1
            print(f"{case}\n" + "\n".join(f"    {text}" for text in answer.wrong), flush=True)
        shown = answer.fallbacks if options.fallbacks else answer.unlisted
        if shown:
            failed += bool(answer.unlisted) and not answer.wrong
            print(f"{case} left to PyTorch\n" + "\n".join(f"    {text}" for text in shown), flush=True)
        if answer.refused:
            refused = "\n".join(f"    {text}" for text in dict.fromkeys(answer.refused))
            print(f"{case} refused for {len(answer.refused)} samples\n{refused}", flush=True)
        if options.each:
            print(f"{case}: {answer.samples} samples, {time.monotonic() - began:.0f} s", flush=True)
    left = sum(bool(answer.fallbacks) for answer in answers)
    samples = sum(answer.samples for answer in answers)
    refusals = sum(len(answer.refused) for answer in answers)
    missed = f", {refusals} samples refused" if refusals else ""
    if waiting:
        first = options.first + cases.index(next(iter(waiting))) * options.every
        missed += f"; {len(waiting)} not reached in time, go on with --first {first}"
    print(
        f"{len(answers)} cases, {samples} samples, {failed} cases with differences, {left} with something left to "
        f"PyTorch{missed}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
