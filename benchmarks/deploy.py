"""What exporting and the C runtime take: time, memory and bytes, beside smelt in Python and peers.

    python -m benchmarks.deploy [--models gpt2 resnet] [--modes infer step] [--peers ort aotinductor] [--runs 3]
                                [--rounds 9] [--threads 1] [--json FILE]
    python -m benchmarks.deploy --table FILE      what FILE holds as Markdown, with every bar that is missed

Each model is exported in a process of its own, then run by `deploy_worker.c`, a process without Python, alternately
with smelt in Python and the peers. All ratios are of processor time unless said otherwise, so they hold on a machine
that others use, too. Results are added to FILE, each in place of an older one of the same model and mode.

- export: `smelt.export` and saving, against smelt's first call (of a whole training step: its first two) in a fresh
  process; both begin when torch and smelt are imported and the model is built
- start: from just before the process is started to its first result; less a later step, what starting adds
- memory: the most that was resident, less the program's own inputs, against weights, state, and what a call
  is planned to take: its arena, its results and the workspace of its kernels
- file: its bytes beyond the weights
- steps: of the C program against smelt in Python, ONNX Runtime and AOTInductor
"""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.deploy_table import markdown
from benchmarks.models import Case, model_named
from benchmarks.run import DEPLOYED, keep, read, say

MODES = ("infer", "step")
PEERS = (harness.ORT, harness.AOTI)
START = "gpt2-prompt"
MODELS = {"infer": (START, *DEPLOYED), "step": ("mlp", "llama", "vit", "resnet")}  # those without dropout


# In the process that exports.


def _case(name: str, mode: str) -> tuple[Case, Callable[..., Any]]:
    """A model as it is exported: itself, or a training step whose optimizer has its state."""
    import torch

    from benchmarks.train_step import stepped

    if mode == "infer":
        inferring = model_named(name).build().inferring()
        return inferring, inferring.module
    case = stepped(name, torch.float32)
    model: Any = case.module
    opt: Any = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(*inputs: Any, **kwargs: Any) -> torch.Tensor:
        opt.zero_grad()
        loss = case.loss(model(*inputs, **kwargs))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        return loss

    for _ in range(2):
        case.call(step)
    return case, step


def export(name: str, mode: str, folder: Path) -> dict[str, Any]:
    """Write the artifact, its inputs and what eager returns; tell what it took."""
    import torch

    import smelt
    from benchmarks.worker import tensors_in

    case, function = _case(name, mode)
    began, busy = time.perf_counter(), time.process_time()
    artifact = smelt.export(function, case.inputs, case.kwargs, name=name)
    path = artifact.save(folder / "model.smelt")
    found: dict[str, Any] = {"seconds": time.perf_counter() - began, "processor": time.process_time() - busy}
    with contextlib.nullcontext() if mode == "step" else torch.no_grad():
        expected = next(tensors_in(case.call(function))).detach()
    inputs = 0
    for number, tensor in enumerate((*case.inputs, *case.kwargs.values())):
        inputs += (folder / f"{number}.bin").write_bytes(tensor.detach().contiguous().numpy().tobytes())
    (folder / "expected.bin").write_bytes(expected.contiguous().numpy().tobytes())
    return found | {"file": path.stat().st_size, "inputs": inputs} | _planned(artifact.artifact_file)


def _planned(file: Any) -> dict[str, int]:
    """Bytes of what nothing and of what something writes; and of the plan of a call, of which all sizes are fixed: its
    arena, its results, and the workspace of kernels on one thread."""
    import numpy

    from smelt.ir.table.records import Launch

    table = file.targets[0].table
    plan = 0
    for variant in table.states[0].variants:
        made = variant.arena_bytes[0].operand
        for produced in variant.produced:
            item = numpy.dtype(table.registers[produced.register].dtype).itemsize
            made += item * int(numpy.prod([dim[0].operand for dim in produced.dims], dtype=int))
        launches = [step for step in variant.steps if isinstance(step, Launch)]
        made += max((step.fixed[0].operand + step.per_thread[0].operand for step in launches), default=0)
        plan = max(plan, made)
    return {
        "weights": file.weights.bytes,
        "state": file.state.bytes,
        "plan": plan,
        "code": len(file.targets[0].code.image),
    }


# The C program.


def built(folder: Path) -> Path:
    """`deploy_worker.c`, linked with the static library."""
    from smelt.deploy.runtime import LIBRARY

    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise SystemExit("benchmarks.deploy needs a C compiler")
    program = folder / "deploy_worker"
    source = Path(__file__).with_name("deploy_worker.c")
    include, library = LIBRARY.parents[1] / "include", LIBRARY.with_suffix(".a")
    words = ["-O2", "-std=c11", f"-I{include}", str(source), str(library), "-lm", "-lpthread"]
    subprocess.run([compiler, *words, "-o", str(program)], check=True)
    return program


class Native(harness.Stepping):
    """A process of `deploy_worker.c`; `first` is what it told of its first result, "seconds" since it was started."""

    def __init__(self, program: Path, folder: Path, threads: int) -> None:
        inputs = sorted(folder.glob("[0-9]*.bin"), key=lambda path: int(path.stem))
        words = [program, folder / "model.smelt", threads, folder / "output.bin", *inputs]
        began = time.monotonic()
        self.process = subprocess.Popen(
            [*map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={}
        )
        self.first = self._answer()
        self.first["seconds"] = self.first["at"] - began


def _is_right(folder: Path) -> bool:
    import numpy

    found, expected = (numpy.fromfile(folder / name, numpy.float32) for name in ("output.bin", "expected.bin"))
    return found.shape == expected.shape and bool(numpy.abs(found - expected).max() <= 1e-3 * numpy.abs(expected).max())


# One model.


def measure(
    key: harness.Key, peers: Sequence[str], program: Path, runs: int, rounds: int, threads: int
) -> dict[str, Any]:
    """Every figure of one model. What failed is under "failed", by who did."""
    result: dict[str, Any] = {"model": key.model, "mode": key.mode, "dtype": key.dtype, "failed": {}}
    first: dict[str, list[dict[str, float]]] = {"export": [], "smelt": []}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        workers: dict[str, Any] = {}
        for number in range(runs):
            say(f"{key}: export and first call, {number + 1} of {runs}")
            exported = harness.in_fresh_process(["benchmarks.deploy", "--export", key.model, key.mode, str(folder)])
            if "failed" in exported:
                return result | {"failed": {"export": exported["failed"]}}
            first["export"].append({clock: exported[clock] for clock in ("seconds", "processor")})
            worker = harness.Worker(key, "smelt")
            first["smelt"].append({clock: worker.first[clock] for clock in ("seconds", "processor")})
            if number + 1 < runs:
                worker.close()
        stack.callback(worker.close)
        result |= {what: exported[what] for what in ("file", "weights", "state", "plan", "inputs", "code")}
        say(f"{key}: start")
        started = [_started(program, folder, threads) for _ in range(max(5, 3 * runs))]
        native = Native(program, folder, threads)
        stack.callback(native.close)
        result["right"] = _is_right(folder)
        result["start"] = started
        workers = {"c": native, "smelt": worker}
        for peer in peers:
            say(f"{key}: {peer}")
            try:
                workers[peer] = harness.Worker(key, peer)
            except harness.WorkerFailed as failed:
                result["failed"][peer] = str(failed)
                continue
            stack.callback(workers[peer].close)
            first[peer] = [workers[peer].first]
        say(f"{key}: steps, {', '.join(workers)} alternately")
        pause = harness.PAUSE if harness.ORT in workers and threads > 1 else 0.0
        result["steady"] = harness.by_turns(workers, rounds, pause=pause)
    return result | {"first": first}


def _started(program: Path, folder: Path, threads: int) -> dict[str, Any]:
    process = Native(program, folder, threads)
    process.close()
    return process.first


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.deploy", description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", help="all, as they are listed in docs/benchmarks.md")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=[], help="in inference, beside smelt")
    parser.add_argument("--runs", type=int, default=3, help="processes that export, and that call for the first time")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="also add every figure to this file")
    parser.add_argument("--table", type=Path, help="only print the results in this file as Markdown")
    parser.add_argument("--export", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.export:
        name, mode, folder = args.export
        print(json.dumps(export(name, mode, Path(folder))))
        return 0
    if args.table:
        print(markdown(read(args.table)))
        return 0
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        program = built(Path(folder))
        for mode in args.modes:
            peers = args.peers if mode == "infer" else ()
            for name in args.models or MODELS[mode]:
                key = harness.Key(name, mode)
                results.append(measure(key, peers, program, args.runs, args.rounds, args.threads))
                print(markdown(results[-1:]), flush=True)
                if args.json:
                    keep(args.json, results[-1])
    if len(results) > 1:
        print(markdown(results))
    return int(any("export" in result["failed"] or not result["right"] for result in results))


if __name__ == "__main__":
    sys.exit(main())
