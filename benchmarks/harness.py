"""Runs one benchmark model in processes of its own and gathers the figures.

    measure("mlp") → {"first": {backend: seconds}, "steady": {backend: [seconds a step]}, "saved": …, "error": …}

The first step is timed in a fresh process per backend, from just before the model is handed to the compiler (torch,
and smelt for smelt, imported; nothing else) to the end of its backward: whatever a backend loads by then is part of it.
The rest is measured in one more process in which the backends take turns. Disk caches are off, smelt's and the peer's,
and the peer's cache folder is a new empty one each time.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BACKENDS = ("eager", "smelt", "peer")
FIRST_RUNS, FIRST_SECONDS = 3, 20.0  # the first step: up to three fresh processes, no further one after 20 s


def compiled_by(backend: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` as the backend wants it called."""
    if backend == "smelt":
        import smelt

        compiled: Callable[..., Any] = smelt.compile(function)
        return compiled
    if backend == "peer":
        import torch

        return torch.compile(function)
    return function


def in_fresh_process(
    arguments: Sequence[str], timeout: float = 900, settings: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run `python -m <arguments>` and read the JSON on its last line; a failure comes back as {"failed": why}.

    Nobody's caches are on, unless `settings` of the environment have them so.
    """
    with tempfile.TemporaryDirectory() as cache:
        environment = {
            # Bytecode is kept, as an installed package has it.
            **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
            "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
            "TORCHINDUCTOR_CACHE_DIR": cache,
            "SMELT_CACHE": "0",
            **(settings or {}),
        }
        try:
            done = subprocess.run(
                [sys.executable, "-m", *arguments],
                cwd=ROOT,
                env=environment,
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


def measure(
    name: str, backends: Sequence[str], rounds: int, say: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Every figure of one model. What failed stands under "failed", by backend."""
    result: dict[str, Any] = {"model": name, "first": {}, "failed": {}}
    runs: dict[str, list[float]] = {backend: [] for backend in backends}
    for turn in range(FIRST_RUNS):
        for backend in backends:
            if backend in result["failed"] or sum(runs[backend]) > FIRST_SECONDS:
                continue
            say(f"{name}: first step, {backend} ({turn + 1})")
            answer = in_fresh_process(["benchmarks.harness", "first", name, backend])
            if "failed" in answer:
                result["failed"][backend] = answer["failed"]
            else:
                runs[backend].append(answer["seconds"])
    result["first"] = {backend: sorted(seconds)[len(seconds) // 2] for backend, seconds in runs.items() if seconds}
    working = [backend for backend in backends if backend not in result["failed"]]
    say(f"{name}: steady steps, {', '.join(working)} by turns")
    answer = in_fresh_process(["benchmarks.harness", "steady", name, str(rounds), *working])
    if "failed" in answer:
        result["failed"]["steady"] = answer["failed"]
    return {**result, **{key: value for key, value in answer.items() if key not in ("failed", "stderr")}}


def machine() -> dict[str, Any]:
    """Where the figures come from."""
    import torch

    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def _first(name: str, backend: str) -> dict[str, Any]:
    import torch  # noqa: F401 (imported before the clock starts, as a user's program has)

    if backend == "smelt":
        import smelt  # noqa: F401

    from benchmarks.models import MODELS

    case = MODELS[name].build()
    began = time.perf_counter()
    model = compiled_by(backend, case.module)
    case.loss(model(*case.inputs)).backward()
    return {"seconds": time.perf_counter() - began}


def _steady(name: str, rounds: int, backends: Sequence[str]) -> dict[str, Any]:
    import torch

    from benchmarks import measure as by
    from benchmarks.models import MODELS

    steps: dict[str, Callable[[], object]] = {}
    results: dict[str, list[torch.Tensor]] = {}
    saved: dict[str, int] = {}
    for backend in (*backends, "exact"):
        case = MODELS[name].build(torch.float64 if backend == "exact" else torch.float32)
        model = compiled_by(backend, case.module)
        leaves = [*case.module.parameters(), *(x for x in case.inputs if x.requires_grad)]

        def step(case: Any = case, model: Any = model, leaves: Any = leaves) -> torch.Tensor:
            for leaf in leaves:
                leaf.grad = None
            loss: torch.Tensor = case.loss(model(*case.inputs))
            loss.backward()
            return loss

        output = model(*case.inputs)
        loss = case.loss(output)
        saved[backend] = by.saved_bytes(loss, case.module.parameters())
        loss.backward()
        results[backend] = [output.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]
        del output, loss
        if backend != "exact":
            steps[backend] = step
    for warm in steps.values():
        for _ in range(3):
            warm()
    seconds = by.interleaved(steps, rounds)
    found = {backend: by.errors(results[backend], results["eager"], results["exact"]) for backend in backends}
    answer: dict[str, Any] = {
        "steady": seconds,
        "saved": {backend: saved[backend] for backend in backends},
        "error": {backend: error.scaled for backend, error in found.items()},
        "within": {backend: error.within for backend, error in found.items()},
    }
    if "smelt" in backends:
        import smelt

        answer["breaks"] = smelt.counters["graph_breaks"]
    return answer


def main(arguments: Sequence[str]) -> None:
    kind, name, *rest = arguments
    answer = _first(name, rest[0]) if kind == "first" else _steady(name, int(rest[0]), rest[1:])
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1:])
