"""How often graphs break in programs of popular libraries: at the first call of a new process, and at the second.

    python -m benchmarks.graph_breaks [NAME ...] [--reasons] [--json FILE]

Each program of `benchmarks/library_programs.py` runs in a process of its own, without any cache, by `backend="eager"`.
A recompile is counted where a graph was captured again in the first call. Results are compared with eager's. Programs
whose sizes and branches data decide (`DECIDED_BY_DATA`) run with `smelt.config.capture_data`, without by `--default`.
"""

import argparse
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

import smelt
from benchmarks.library_programs import DECIDED_BY_DATA, PROGRAMS


def _leaves(found: Any) -> list[torch.Tensor]:
    if isinstance(found, torch.Tensor):
        return [found]
    if isinstance(found, dict):
        found = list(found.values())
    return [leaf for item in found for leaf in _leaves(item)] if isinstance(found, (list, tuple)) else []


def count(name: str) -> dict[str, Any]:
    """What breaks in one program, in this process: the compiled call is the first, as nothing may have warmed it up."""
    try:
        function, args = PROGRAMS[name]()
    except ImportError as error:
        return {"program": name, "absent": str(error)}
    smelt.config.capture_data = name in DECIDED_BY_DATA and "SMELT_BENCH_DEFAULT" not in os.environ
    explained = smelt.explain(function, backend="eager")
    random = torch.get_rng_state()
    first = explained(*args)
    recompiles = len(first.recompile_reasons)
    counts = {"graphs": first.graph_count, "breaks": first.graph_break_count, "recompiles": recompiles}
    reasons = [str(reason) for reason in (*first.break_reasons, *first.recompile_reasons)]
    second = explained(*args)
    counts["second call"] = second.graph_count - counts["graphs"]
    compiled = smelt.compile(function, backend="eager")
    torch.set_rng_state(random)
    got = _leaves(compiled(*args))
    torch.set_rng_state(random)
    pairs = zip(got, _leaves(function(*args)), strict=True)
    same = all(torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True) for a, b in pairs)
    return {"program": name, **counts, "same": same, "reasons": reasons}


def _in_own_process(name: str) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.graph_breaks", "--one", name]
    environment = {**os.environ, "SMELT_CACHE": "0"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900, check=False)
    for line in reversed(done.stdout.splitlines()):
        if line.startswith('{"program"'):
            return json.loads(line)  # type: ignore[no-any-return]
    return {"program": name, "error": done.stderr.strip().splitlines()[-1:] or [f"exit {done.returncode}"]}


def _row(found: dict[str, Any]) -> str:
    if "absent" in found or "error" in found:
        return f"{found['program']:26} {found.get('absent') or found['error']}"
    cells = " ".join(f"{found[key]:>11}" for key in ("graphs", "breaks", "recompiles", "second call"))
    return f"{found['program']:26} {cells} {'' if found['same'] else '   DIFFERS'}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="programs, or the beginnings of their names")
    parser.add_argument("--reasons", action="store_true", help="print why, too")
    parser.add_argument("--json", help="write all that was counted to this file")
    parser.add_argument("--default", action="store_true", help="without smelt.config.capture_data")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.default:
        os.environ["SMELT_BENCH_DEFAULT"] = "1"
    if given.one:
        try:
            print(json.dumps(count(given.one)), flush=True)
        except Exception:
            traceback.print_exc()
            return 1
        return 0
    chosen = [name for name in PROGRAMS if not given.names or any(name.startswith(start) for start in given.names)]
    print(f"{'':26} " + " ".join(f"{title:>11}" for title in ("graphs", "breaks", "recompiles", "second call")))
    results = []
    for name in chosen:
        results.append(_in_own_process(name))
        print(_row(results[-1]), flush=True)
        for reason in results[-1].get("reasons", []) if given.reasons else []:
            print("    " + reason.replace("\n", "\n    "))
    if given.json:
        Path(given.json).write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
