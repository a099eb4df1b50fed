"""Exceptions at every step of the compiler, after which all must be as it was: `make test-interrupts`, or

    python -m tests.capture.interrupted.campaign --worlds simple,training --stride 7 --jobs 2

Each world of `worlds` is compiled again and again. Each time an exception is raised before another bytecode of the
compiler; then PyTorch's state is compared, the program's objects must be as before or as after, and the program is run
again, compiled and in eager.
"""

import argparse
import faulthandler
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_PATIENCE = 120  # seconds for one injection: more is a hang


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", default="", help="names, by commas; all unless said")
    parser.add_argument("--stride", type=int, default=1, help="every how many places an exception is raised")
    parser.add_argument("--delicate", type=int, default=1, help="the same in functions while which state changes")
    parser.add_argument("--most", type=int, default=0, help="so many places of `points.DELICATE`, and no others")
    parser.add_argument("--jobs", type=int, default=2, help="worlds at a time")
    parser.add_argument("--first", type=int, default=0, help="the number of the first place")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if given.work:
        return _work(given)
    from tests.capture.interrupted.worlds import WORLDS

    names = given.worlds.split(",") if given.worlds else list(WORLDS)
    failures = places = 0
    with ThreadPoolExecutor(given.jobs) as threads:
        for name, (found, tried) in zip(names, threads.map(lambda name: campaign(name, given), names), strict=True):
            failures += len(found)
            places += tried
            print(f"{name}: {tried} injected, {len(found)} left something behind", *found, sep="\n  ", flush=True)
    print(f"all: {places} injected, {failures} left something behind")
    return 1 if failures else 0


def campaign(name: str, given: argparse.Namespace) -> tuple[list[str], int]:
    """What is wrong, and how many places were tried; a worker that hangs or dies is a failure too."""
    failures: list[str] = []
    tried, first = 0, given.first
    while True:
        command = [sys.executable, "-m", __spec__.name, "--work", name, "--first", str(first)]
        for option in ("stride", "delicate", "most"):
            command += [f"--{option}", str(getattr(given, option))]
        worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert worker.stdout is not None
        last: dict[str, Any] = {}
        for line in worker.stdout:
            if not line.startswith("{"):
                continue
            last = json.loads(line)
            tried += last["done"]
            if last["failure"]:
                failures.append(last["failure"])
        code = worker.wait()
        if code == 0:
            return failures, tried
        if not last or last["done"]:
            return [*failures, f"the worker ended with {code}"], tried
        failures.append(f"the worker ended with {code} at {last['number']}: {last['place']}")
        tried, first = tried + 1, last["number"] + 1


def chosen(places: list[Any], given: argparse.Namespace) -> list[int]:
    """The numbers of the places to be tried: every so many of the delicate ones, and of the others."""
    if given.most:
        return [number * len(places) // given.most for number in range(given.most)]
    some = [number for number, place in enumerate(places) if place.delicate]
    others = [number for number, place in enumerate(places) if not place.delicate]
    return sorted([*some[:: given.delicate], *others[:: given.stride]])


def _work(given: argparse.Namespace) -> int:
    from tests.capture.interrupted import locks

    if "smelt" not in sys.modules:  # or who imported it has them watched
        locks.watch_locks()
    from tests.capture.interrupted.points import DELICATE
    from tests.capture.interrupted.running import Trial

    trial = Trial(given.work, DELICATE if given.most else None)
    for number in chosen(trial.places, given):
        if number < given.first:
            continue
        told = {"number": number, "place": str(trial.places[number]), "done": False, "failure": None}
        print(json.dumps(told), flush=True)
        faulthandler.dump_traceback_later(_PATIENCE, exit=True)
        failure = trial.failure(number)
        faulthandler.cancel_dump_traceback_later()
        told |= {"done": True, "failure": failure and f"{number}: {told['place']}: {failure}"}
        print(json.dumps(told), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
