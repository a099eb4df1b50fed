"""`make bench`: the table of ratios between eager PyTorch, smelt and torch.compile, or other peers.

    python -m benchmarks.run [--models gpt2 resnet] [--modes train infer step] [--dtypes float32 bfloat16]
                             [--backends eager smelt torch.compile] [--rounds 15] [--threads 1] [--json FILE]
                             [--plot FOLDER] [--device cuda]
    python -m benchmarks.run --modes infer --peers ort     beside ONNX Runtime; small models too, 1 and 4 at a time
    python -m benchmarks.run --table FILE     what FILE holds as Markdown, nothing measured

Results are added to FILE, each in place of an older one of the same model, mode and dtype, so that a table can be put
together from several runs: torch.compile's first step takes a minute. docs/benchmarks.md says how each figure is taken.
The exit code is 1 if smelt fails on a model or breaks the numerical rule there; torch.compile failing (no C++ compiler,
say), or ONNX Runtime (no export), is only reported.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness, plot, table
from benchmarks.models import FLOAT32_ON_GPUS, MODELS, SMALL_MODELS, models_for

STEPPED = ("mlp", "gpt2", "llama", "resnet")  # whole training steps are measured of these, by default
DEPLOYED = (*MODELS, *(f"{name}/{batch}" for name in SMALL_MODELS for batch in (1, 4)))  # inference beside peers


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


def model_name(text: str) -> str:
    """An argument that names a model, with a batch or without."""
    name, slash, batch = text.partition("/")
    if name not in MODELS | SMALL_MODELS or (slash and not batch.isdecimal()) or batch == "0":
        raise argparse.ArgumentTypeError(f"{text!r}: one of {', '.join(MODELS | SMALL_MODELS)}, or with a batch: mlp/1")
    return text


def usual_models(device: str, mode: str, beside_peers: bool) -> Sequence[str]:
    """What is measured where nobody chose."""
    if mode == "step":
        return STEPPED
    return DEPLOYED if beside_peers and (device, mode) == ("cpu", "infer") else tuple(models_for(device))


def keys(
    device: str, dtypes: list[str] | None, modes: list[str], models: list[str] | None, beside_peers: bool = False
) -> list[harness.Key]:
    """What is to be measured, in order."""
    found = []
    for number in range(len(dtypes) if dtypes else 1):
        for mode in modes:
            for name in models or usual_models(device, mode, beside_peers):
                usual = "float32" if device == "cpu" or name in FLOAT32_ON_GPUS else "bfloat16"
                found.append(harness.Key(name, mode, dtypes[number] if dtypes else usual, device))
    return found


def chosen(key: harness.Key, backends: Sequence[str], peers: Sequence[str] | None) -> list[str]:
    """The backends to measure: eager always, as the numerical rule needs it."""
    if peers is None:
        return [b for b in harness.BACKENDS if b in backends or b == "eager"]
    able = harness.PEERS if key.mode == "infer" else ("torch.compile",)
    return ["eager", "smelt", *(peer for peer in able if peer in peers)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.run", description="ratios between eager, smelt and peers")
    parser.add_argument("--models", nargs="+", type=model_name, help="all (whole steps: four); mlp/1 is a batch of 1")
    parser.add_argument("--modes", nargs="+", choices=harness.MODES, default=["train", "step"])
    parser.add_argument("--dtypes", nargs="+", choices=harness.DTYPES, help="float32; on a GPU what suits the model")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="with cuda: larger models, on a GPU")
    parser.add_argument("--backends", nargs="+", choices=harness.BACKENDS, default=list(harness.BACKENDS))
    parser.add_argument("--peers", nargs="+", choices=harness.PEERS, help="measure eager, smelt and these")
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
    print(", ".join(f"{key} {value}" for key, value in harness.machine().items()))
    results = []
    for key in keys(args.device, args.dtypes, args.modes, args.models, bool(args.peers)):
        backends = chosen(key, args.backends, args.peers)
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
