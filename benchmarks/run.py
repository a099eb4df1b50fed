"""`make bench`: the table of ratios between eager PyTorch, smelt and torch.compile.

    python -m benchmarks.run [--models gpt2 resnet] [--modes train infer step] [--dtypes float32 bfloat16]
                             [--backends eager smelt torch.compile] [--rounds 15] [--threads 1] [--json FILE]
                             [--plot FOLDER] [--device cuda]
    python -m benchmarks.run --table FILE     what FILE holds as Markdown, nothing measured

Results are added to FILE, each in place of an older one of the same model, mode and dtype, so that a table can be put
together from several runs: torch.compile's first step takes a minute. docs/benchmarks.md says how each figure is taken.
The exit code is 1 if smelt fails on a model or breaks the numerical rule there; torch.compile failing (no C++ compiler,
say) is only reported.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks import harness, plot, table
from benchmarks.models import FLOAT32_ON_GPUS, MODELS, models_for

STEPPED = ("mlp", "gpt2", "llama", "resnet")  # whole training steps are measured of these, by default


def say(text: str) -> None:
    print(f"  … {text}", file=sys.stderr, flush=True)


def read(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())["results"] if path.exists() else []
    return found


def key_of(result: dict[str, Any]) -> harness.Key:
    return harness.Key(result["model"], result["mode"], result["dtype"], result.get("device", "cpu"))


def keep(path: Path, result: dict[str, Any]) -> None:
    """Add one result to a file, in place of an older one."""
    others = [old for old in read(path) if key_of(old) != key_of(result)]
    path.write_text(json.dumps({"machine": harness.machine(), "results": [*others, result]}, indent=1))


def keys(device: str, dtypes: list[str] | None, modes: list[str], models: list[str] | None) -> list[harness.Key]:
    """What is to be measured, in order."""
    found = []
    for number in range(len(dtypes) if dtypes else 1):
        for mode in modes:
            for name in models or (STEPPED if mode == "step" else models_for(device)):
                usual = "float32" if device == "cpu" or name in FLOAT32_ON_GPUS else "bfloat16"
                found.append(harness.Key(name, mode, dtypes[number] if dtypes else usual, device))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.run", description="ratios between eager, smelt and torch.compile")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), help="all (whole steps: four) by default")
    parser.add_argument("--modes", nargs="+", choices=harness.MODES, default=["train", "step"])
    parser.add_argument("--dtypes", nargs="+", choices=harness.DTYPES, help="float32; on a GPU what suits the model")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="with cuda: larger models, on a GPU")
    parser.add_argument("--backends", nargs="+", choices=harness.BACKENDS, default=list(harness.BACKENDS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, help="threads PyTorch may use (default: all cores)")
    parser.add_argument("--json", type=Path, help="also add every figure to this file")
    parser.add_argument("--plot", type=Path, help="also draw training in float32 as SVG into this folder")
    parser.add_argument("--table", type=Path, help="only print the results in this file as Markdown")
    parser.add_argument("--clock", choices=table.CLOCKS, default="seconds", help="which time the ratios are of")
    args = parser.parse_args()
    if args.table:
        print(table.markdown(read(args.table), args.clock))
        return 0
    if args.threads:
        os.environ["OMP_NUM_THREADS"] = str(args.threads)
    backends = [b for b in harness.BACKENDS if b in args.backends or b == "eager"]  # the error rule needs eager
    print(", ".join(f"{key} {value}" for key, value in harness.machine().items()))
    results = []
    for key in keys(args.device, args.dtypes, args.modes, args.models):
        results.append(harness.measure(key, backends, args.rounds, say))
        print(table.report(results[-1], backends, args.clock), flush=True)
        if args.json:
            keep(args.json, results[-1])
    if len(results) > 1:
        print("\n" + "\n".join(table.bars(results, args.clock)))
    if args.plot:
        drawn = plot.draw({"machine": harness.machine(), "results": results}, args.plot)
        say(f"wrote {', '.join(map(str, drawn))}" if drawn else "nothing to draw: no float32 training by all three")
    return int(any("smelt" in r["failed"] or not r["within"].get("smelt", True) for r in results))


if __name__ == "__main__":
    sys.exit(main())
