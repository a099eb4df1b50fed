"""A campaign of mutated files: `make test-files`, or

    python -m tests.native.deploy.campaign [--count 1000000] [--start N] [--jobs 2] [--seconds 600] [model.smelt …]

Files are mutated, opened and run by `mutate.c`, built with the sanitizers, thousands a process. Each has a number:
a campaign without `--start` begins at a number of its own and prints it, and a failure says which file it was. Beside
the artifacts of the tests, those that are named are mutated too.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tests.native.deploy.building import mutator, write_models

SHIFT = 50_000
"""Files of one process."""


def mutated(program: Path, seeds: list[Path], start: int, count: int) -> tuple[dict[str, int], str]:
    """Counts of what became of these files, and what went wrong."""
    settings = {**os.environ, "ASAN_OPTIONS": "allocator_may_return_null=1:quarantine_size_mb=32"}
    command = [str(program), str(start), str(count), *map(str, seeds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, env=settings)
    if done.returncode:
        return {}, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    found: dict[str, int] = json.loads(done.stdout)
    return found, ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--start", type=int, default=random.SystemRandom().randrange(2**40))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing new after so long")
    parser.add_argument("models", type=Path, nargs="*")
    given = parser.parse_args()
    totals: Counter[str] = Counter()
    failures = 0
    began = time.monotonic()
    print(f"{given.count} files from {given.start}, {given.jobs} processes at a time", flush=True)
    with tempfile.TemporaryDirectory(prefix="smelt-files-") as name:
        folder = Path(name)
        program, seeds = mutator(folder), [*write_models(folder).values(), *given.models]

        def shift(first: int) -> tuple[dict[str, int], str]:
            if time.monotonic() - began > given.seconds:
                return {}, ""
            return mutated(program, seeds, first, min(SHIFT, given.start + given.count - first))

        with ThreadPoolExecutor(given.jobs) as threads:
            work = [threads.submit(shift, first) for first in range(given.start, given.start + given.count, SHIFT)]
            for each in as_completed(work):
                found, failure = each.result()
                totals.update(found)
                if failure:
                    failures += 1
                    print(failure, flush=True)
    seconds = time.monotonic() - began
    print(f"{json.dumps(totals)} in {seconds:.0f} s; {failures} of the processes failed", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
