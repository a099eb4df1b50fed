"""Faults injected into trainings of several processes, eager and compiled: each process must fare the same in both.

    python -m tests.capture.distributed.faults --start 0 --count 200

Run N is always the same one: a training on 2 or 4 processes, and one process that raises, dies, is slow, or takes
another branch or batch size at one of the steps. Processes note the loss, the parameters and the error of every step.
Compiled ones must note what eager ones do, and must end as soon as the timeout of a collective allows.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from dataclasses import asdict, dataclass

from tests import shared_kernels
from tests.processes import COMPILER, start

STEPS = 4
TIMEOUT = 4  # seconds, of collectives where one process is slow
PATIENCE = 90  # seconds, elsewhere: compiling takes some processes longer than others

BEGIN = COMPILER + """
import torch.distributed
from torch.distributed import _functional_collectives
"""

FAULTS = ("raises", "raises between", "index", "target", "dies", "dies between", "slow", "late", "branch", "batch",
          "extra")  # fmt: skip
PROGRAMS = ("forward", "step", "handled", "evaluation")


@dataclass(frozen=True)
class Run:
    """One training: which program, on how many processes, and what happens to one of them at which step."""

    number: int
    program: str
    world: int
    fault: str
    step: int
    rank: int
    capture_data: bool

    @staticmethod
    def of(number: int) -> "Run":
        """The faults and programs by turns, the rest at random."""
        chosen = random.Random(number)
        program = PROGRAMS[number // len(FAULTS) % len(PROGRAMS)]
        world, step = chosen.choice((2, 4)), chosen.randrange(STEPS)
        fault = FAULTS[number % len(FAULTS)]
        return Run(number, program, world, fault, step, chosen.randrange(world), chosen.random() < 0.3)


SCRIPT = """
import datetime, json, os, sys, time
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as funcol

rank, folder, given = int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
program, world, fault, fault_step = (given[name] for name in ("program", "world", "fault", "step"))
torch.set_num_threads(1)
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
smelt.config.capture_data = given["capture_data"]
patience = datetime.timedelta(seconds=given["patience"])
group = {"rank": rank, "world_size": world, "timeout": patience}
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", **group)

def reduced(x):  # always of one element: gloo aborts where two processes reduce other sizes
    return funcol.all_reduce(x, "sum", dist.group.WORLD)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.mixed, self.head = nn.Embedding(8, 6), nn.Linear(6, 6), nn.Linear(6, 4)
    def forward(self, ids):
        return self.head(self.mixed(self.embedding(ids)).tanh())

torch.manual_seed(0)
model = Model()
parameters = list(model.parameters())

def forward(ids, target, mark):
    scores = model(ids)
    mean = reduced(scores.detach().mean().reshape(1))
    if mark == "raises between":
        raise ValueError("between two collectives")
    if mark == "dies between":
        leave()
    if mark == "branch":
        scores = scores * 2
    if mark == "extra":
        mean = reduced(mean)
    loss = nn.functional.cross_entropy(scores, target) + (mean * scores.mean()).sum()
    spread = reduced((scores.detach() - mean).abs().mean().reshape(1))
    if spread[0] > 1.5:
        loss = loss * 0.5
    return loss + spread.sum() * 0.1

def update(gradients):
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter -= 0.1 * gradient + 0.01 * reduced(gradient.sum().reshape(1)) / world

def step(ids, target, mark):
    loss = forward(ids, target, mark)
    update(torch.autograd.grad(loss, parameters))
    return loss.detach()

def handled(ids, target, mark):
    try:
        loss = forward(ids, target, mark)
    except (IndexError, ValueError):
        loss = model(ids * 0).mean() + reduced(torch.zeros(1)).sum()
    update(torch.autograd.grad(loss, parameters))
    return loss.detach()

def evaluation(ids, target, mark):
    with torch.no_grad():
        return forward(ids, target, mark)

def leave():
    time.sleep(0.5)  # others have received all that was sent
    os._exit(9)

def compiled(function):
    if not given["compiled"]:
        return function
    return smelt.compile(function)

if program == "forward":
    forward = compiled(forward)
else:
    step, handled, evaluation = compiled(step), compiled(handled), compiled(evaluation)
call = {"forward": step, "step": step, "handled": handled, "evaluation": evaluation}[program]
goes_on = program == "evaluation"  # after an error, as far as others can tell nothing is missing
notes = open(f"{folder}/notes{rank}", "w", buffering=1)
torch.manual_seed(rank + 1)
for number in range(given["steps"]):
    batch, mark = 5, ""
    if number == fault_step and fault == "slow":
        dist.barrier()
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        backend._set_default_timeout(datetime.timedelta(seconds=given["timeout"]))
    if number == fault_step and rank == given["rank"]:
        mark, batch = fault, 7 if fault == "batch" else 5
    ids, target = torch.randint(0, 8, (batch,)), torch.randint(0, 4, (batch,))
    if mark == "index":
        ids[1] = 99
    if mark == "target":
        target[1] = 99
    began = time.monotonic()
    try:
        if mark == "raises":
            raise ValueError("before the step")
        if mark == "dies":
            leave()
        if mark in ("slow", "late"):
            time.sleep(given["timeout"] * 2 if mark == "slow" else 0.3)
        loss = call(ids, target, mark)
        noted = ["loss", float(loss), float(sum(each.detach().abs().sum() for each in parameters))]
    except Exception as error:
        noted = ["error", type(error).__name__, str(error) if isinstance(error, (IndexError, ValueError)) else ""]
    notes.write(json.dumps([noted, time.monotonic() - began]) + "\\n")
    if noted[0] == "error" and not (goes_on and noted[1] in ("IndexError", "ValueError") and mark != "raises"):
        break
notes.write(json.dumps([["ended"], 0.0]) + "\\n")
if given["compiled"] and number > fault_step:
    assert smelt.counters["graphs"] > 0
time.sleep(0.5)
os._exit(0)
"""

Note = list[object]


def outcomes(run: Run, compiled: bool) -> tuple[list[list[Note]], list[float]]:
    """What each process notes of each step, and the longest of its steps."""
    with tempfile.TemporaryDirectory() as folder:
        given = asdict(run) | {"compiled": compiled, "steps": STEPS, "timeout": TIMEOUT, "patience": PATIENCE}
        arguments = [[str(rank), folder, json.dumps(given)] for rank in range(run.world)]
        processes = [start(SCRIPT, arguments=each, warns=False, begin=BEGIN) for each in arguments]
        codes = [process.done(PATIENCE * 3).returncode for process in processes]
        notes, longest = [], []
        for rank in range(run.world):
            with open(os.path.join(folder, f"notes{rank}")) as file:
                lines = [json.loads(line) for line in file]
            notes.append([*(noted for noted, _ in lines), ["exit", codes[rank]]])
            longest.append(max((seconds for _, seconds in lines), default=0.0))
    return notes, longest


def why_different(run: Run) -> str | None:
    """How a compiled training differs from the eager one; None if it does not."""
    (want, of_eager), (have, longest) = outcomes(run, False), outcomes(run, True)
    for rank, (mine, other) in enumerate(zip(have, want, strict=True)):
        if len(mine) != len(other) or not all(map(_agree, mine, other)):
            return f"process {rank} noted\n  {mine}, in eager\n  {other}"
    if run.fault == "slow" and max(longest) > max(TIMEOUT * 3, 2 * max(of_eager)):
        return f"a step took {max(longest):.1f} s, {max(of_eager):.1f} s in eager; collectives end after {TIMEOUT} s"
    return None


def _agree(have: Note, want: Note) -> bool:
    if have[0] != "loss" or want[0] != "loss":
        return have == want
    pairs = zip(have[1:], want[1:], strict=True)
    return all(abs(float(str(a)) - float(str(b))) <= 1e-4 * max(1.0, abs(float(str(b)))) for a, b in pairs)


def main() -> int:
    """Run some of them, and say how each that differs does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run after this time")
    chosen = parser.parse_args()
    os.environ.setdefault(shared_kernels.FOLDER, tempfile.mkdtemp())
    began, failed, count = time.monotonic(), 0, 0
    for number in range(chosen.start, chosen.start + chosen.count):
        if time.monotonic() - began > chosen.seconds:
            break
        run, count = Run.of(number), count + 1
        difference = why_different(run)
        failed += difference is not None
        if difference is not None:
            print(f"{run}: {difference}", flush=True)
    print(f"{count} runs from {chosen.start} on, {failed} differ from eager, {time.monotonic() - began:.0f} s")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
