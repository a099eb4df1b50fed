"""The first call in fresh processes: what a user waits for before anything has run.

    python -m benchmarks.first_call [--what three_ops encoder] [--runs 3] [--json FILE]

`three_ops` is a function of three operators; `encoder` the training step of a BERT of 12 layers of 64, which needs
`transformers`. The clock starts after `import torch` (and `import smelt`), just before the function or model is handed
to the compiler, and stops when its result is there, or its gradients: whatever a compiler loads then is part of what
the user waits for.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import BACKENDS, compiled_by, in_fresh_process

Step = Callable[[Callable[..., Any]], Any]


def three_ops() -> tuple[Callable[..., Any], Step]:
    import torch

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (torch.sin(x) + y).relu()

    x, y = torch.randn(1024), torch.randn(1024)
    return function, lambda compiled: compiled(x, y)


def encoder() -> tuple[Callable[..., Any], Step]:
    from benchmarks.models import transformer

    case = transformer("bert", num_hidden_layers=12, hidden_size=64, intermediate_size=256)
    return case.module, lambda compiled: case.loss(case.call(compiled)).backward()


WHAT = {"three_ops": three_ops, "encoder": encoder}


def once(what: str, backend: str) -> None:
    """The measured process: prints {"seconds": …, "processor": …, "import": …}."""
    import torch

    began = time.perf_counter()
    if backend == "smelt":
        import smelt  # noqa: F401
    imported = time.perf_counter() - began
    function, step = WHAT[what]()
    expected = step(function)  # PyTorch's own first-time work is not counted
    began, busy = time.perf_counter(), time.process_time()
    found = step(compiled_by(backend, function))
    seconds, processor = time.perf_counter() - began, time.process_time() - busy
    assert expected is None or torch.allclose(found, expected, rtol=1e-5, atol=1e-6)
    print(json.dumps({"seconds": seconds, "processor": processor, "import": imported}))


def measure(what: str, runs: int) -> dict[str, list[dict[str, float]]]:
    """The figures of each backend, whose processes take turns."""
    found: dict[str, list[dict[str, float]]] = {backend: [] for backend in BACKENDS}
    for _ in range(runs):
        for backend in BACKENDS:
            answer = in_fresh_process(["benchmarks.first_call", "--once", what, backend])
            if "failed" in answer:
                print(f"{what}, {backend} failed: {answer['failed']}", file=sys.stderr)
            else:
                found[backend].append(answer)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.first_call", description=__doc__.splitlines()[0])
    parser.add_argument("--what", nargs="+", choices=tuple(WHAT), default=list(WHAT))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write every figure here")
    parser.add_argument("--once", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.once:
        once(*args.once)
        return 0
    everything = {what: measure(what, args.runs) for what in args.what}
    for what, found in everything.items():
        medians = {b: statistics.median(each["seconds"] for each in runs) for b, runs in found.items() if runs}
        for backend, median in medians.items():
            print(f"{what:10} {backend:8} {median * 1e3:10.1f} ms")
        if "torch.compile" in medians and "smelt" in medians:
            ratio = medians["torch.compile"] / medians["smelt"]
            print(f"{what}: smelt's first call is {ratio:.0f} times shorter than torch.compile's")
    if args.json:
        args.json.write_text(json.dumps(everything, indent=1))
    return int(not all(found["smelt"] for found in everything.values()))


if __name__ == "__main__":
    sys.exit(main())
