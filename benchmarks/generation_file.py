"""A language model in a file: start, memory and speed, run by a C program.

    python -m benchmarks.generation_file --layers 12 --hidden 768 --vocabulary 32000

Start is from opening the file to a session that can run, with and without the checksum of the weights, the file in the
page cache. Memory is the peak of a process that answers a prompt and generates, beside the bytes of weights and cache.
"""

import argparse
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import smelt
from smelt.deploy.runtime import LIBRARY, TRUST_WEIGHTS, Model, Session
from smelt.ir.artifact_file.container import unpack
from smelt.ir.artifact_file.layout import Kind

ROOT = Path(__file__).parents[1]


def model_of(args: argparse.Namespace) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=args.vocabulary,
        hidden_size=args.hidden,
        intermediate_size=args.hidden * 8 // 3 // 64 * 64,
        num_hidden_layers=args.layers,
        num_attention_heads=args.hidden // 64,
        max_position_embeddings=max(args.length, 512),
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval().requires_grad_(False)


def start_seconds(path: Path, trusts_weights: bool) -> float:
    """Best of five: a model and a session."""
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        session = Session(Model(path, TRUST_WEIGHTS if trusts_weights else 0))
        times.append(time.perf_counter() - begin)
        del session
    return min(times)


def run_program(program: Path, *arguments: object) -> tuple[float, int]:
    """Seconds, and the most memory that the process had, in bytes."""
    most = 0
    begin = time.perf_counter()
    process = subprocess.Popen([program, *map(str, arguments)], stdout=subprocess.DEVNULL)
    while process.poll() is None:
        status = Path(f"/proc/{process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        most = max(most, 1024 * int(found[1])) if found else most
        time.sleep(0.005)
    if process.returncode:
        raise RuntimeError("the program failed")
    return time.perf_counter() - begin, most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = {"layers": 12, "hidden": 768, "vocabulary": 32000, "length": 512, "tokens": 64, "prompt": 32}
    for name, value in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--file", type=Path, help="keep the file here, or use the one that is here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = args.file or Path(folder) / "model.smelt"
        if not path.exists():
            begin = time.perf_counter()
            smelt.export_generation(model_of(args), max_length=args.length).save(path)
            print(f"export: {time.perf_counter() - begin:.0f} s")
        section_bytes = {each.kind: each.bytes for each in unpack(path.read_bytes())}
        weights, cache = section_bytes[Kind.WEIGHTS], section_bytes[Kind.STATE]
        print(f"weights {weights / 1e6:.1f} MB, cache {cache / 1e6:.1f} MB, file {path.stat().st_size / 1e6:.1f} MB")
        for trusts, what in ((False, "with the checksum of the weights"), (True, "without it")):
            print(f"start {what}: {1000 * start_seconds(path, trusts):.1f} ms")
        program = Path(folder) / "generate"
        compiler = shutil.which("gcc") or "cc"
        source, include = ROOT / "examples/deploy/generate.c", LIBRARY.parents[1] / "include"
        linked = [str(LIBRARY.with_suffix(".a")), "-lm", "-lpthread", "-ldl"]
        subprocess.run([compiler, "-O2", f"-I{include}", source, *linked, "-o", program], check=True)
        prompt = [1 + 7 * place % (args.vocabulary - 1) for place in range(args.prompt)]
        first, _ = run_program(program, path, 1, *prompt)
        seconds, memory = run_program(program, path, 1 + args.tokens, *prompt)
        print(f"process with a prompt of {args.prompt} and one token: {1000 * first:.0f} ms")
        print(f"decode: {args.tokens / (seconds - first):.1f} tokens/s")
        print(f"peak memory {memory / 1e6:.1f} MB, {memory / (weights + cache):.3f} of weights and cache")


if __name__ == "__main__":
    main()
