"""The first call of a three-op function, in fresh processes: what a user waits for before anything has run.

    python -m benchmarks.first_call [--runs 3] [--json FILE]

The clock starts after `import torch` (and `import smelt`), just before the function is handed to the
compiler: whatever a compiler loads then is part of what the user waits for.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

from benchmarks.harness import BACKENDS, compiled_by, in_fresh_process


def once(backend: str) -> None:
    """The measured process: prints {"seconds": …, "import": …}."""
    import torch

    began = time.perf_counter()
    if backend == "smelt":
        import smelt  # noqa: F401
    imported = time.perf_counter() - began

    def three_ops(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (torch.sin(x) + y).relu()

    x, y = torch.randn(1024), torch.randn(1024)
    expected = three_ops(x, y)
    began = time.perf_counter()
    compiled = compiled_by(backend, three_ops)
    found = compiled(x, y)
    seconds = time.perf_counter() - began
    torch.testing.assert_close(found, expected)
    print(json.dumps({"seconds": seconds, "import": imported}))


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.first_call", description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write every figure here")
    parser.add_argument("--once", choices=BACKENDS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.once:
        once(args.once)
        return 0
    seconds: dict[str, list[float]] = {backend: [] for backend in BACKENDS}
    for _ in range(args.runs):
        for backend in BACKENDS:
            answer = in_fresh_process(["benchmarks.first_call", "--once", backend])
            if "failed" in answer:
                print(f"{backend} failed: {answer['failed']}", file=sys.stderr)
            else:
                seconds[backend].append(answer["seconds"])
    medians = {backend: statistics.median(found) for backend, found in seconds.items() if found}
    for backend, median in medians.items():
        print(f"{backend:8} {median * 1e3:10.1f} ms")
    if "peer" in medians and "smelt" in medians:
        print(f"smelt's first call is {medians['peer'] / medians['smelt']:.0f} times shorter than the peer's")
    if args.json:
        args.json.write_text(json.dumps(seconds, indent=1))
    return int("smelt" not in medians)


if __name__ == "__main__":
    sys.exit(main())
