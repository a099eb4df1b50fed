"""A call of an exported GPT-2 on a GPU by the C runtime, beside `smelt.compile` of the same model in the same process.

    python -m benchmarks.deploy_gpu [--dtypes float32 bfloat16] [--tokens 8x512 1x128] [--layers 12] [--seconds 20]
                                    [--json FILE] [--out FOLDER]

GPT-2 has layers of 768, random weights and no cache. Inputs are in memory of the GPU, and so are results: the artifact
writes logits where the program wants them. Calls of both alternate in blocks, and the median of the blocks counts.

    call     milliseconds until the GPU is done, with one call after the other and a wait behind each
    queued   the same of `smelt.compile` with one wait behind a block: the C runtime waits in each call
    busy     milliseconds in which kernels of one call run; --out writes a table of them for each way
    export   seconds of exporting and saving; open: of opening the file and the first call

Figures need an NVIDIA GPU. Where cuBLASLt is not found the artifact multiplies by its own code. Here it is found: torch
has loaded it.
"""

import argparse
import copy
import ctypes
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import smelt
from benchmarks.gpu_steps import kernel_times, write_kernel_times
from smelt.deploy.runtime import Model, Session, TensorAt, library

BLOCK_SECONDS = 0.5


class Logits(torch.nn.Module):
    """GPT-2 without all that it returns beside logits."""

    def __init__(self, layers: int) -> None:
        import transformers

        super().__init__()
        settings = transformers.GPT2Config(n_layer=layers, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
        self.model = transformers.GPT2LMHeadModel(settings)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(input_ids=ids, use_cache=False).logits
        return logits


class OnGpu:
    """An artifact that is called with tensors of the GPU, and writes its result to one."""

    def __init__(self, path: Path, result: torch.Tensor) -> None:
        self.session, self.result = Session(Model(path)), result
        bind = library().smelt_bind_output
        bind.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
        if bind(self.session._address, 0, result.data_ptr(), result.nbytes, None):
            raise SystemExit("the result cannot be in memory of the GPU")

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        self.session.run([TensorAt("int64", tuple(ids.shape), None, ids.data_ptr())])
        return self.result


def _target() -> str:
    from smelt.codegen.targets import ARCHITECTURES

    major, minor = torch.cuda.get_device_capability()
    return max((name for name in ARCHITECTURES if int(name[3:]) <= 10 * major + minor), key=lambda name: int(name[3:]))


def _block(call: Callable[[], Any], count: int, *, waits: bool) -> float:
    """Milliseconds of a call."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(count):
        call()
        if waits:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - began) / count


def measure(
    dtype: torch.dtype, batch: int, tokens: int, layers: int, seconds: float, out: Path | None
) -> dict[str, Any]:
    torch.manual_seed(0)
    model = Logits(layers).to(dtype).eval().requires_grad_(False)
    ids = torch.randint(0, 50257, (batch, tokens))
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        began = time.perf_counter()
        path = smelt.export(model, (ids,), targets=(_target(),), name="gpt2").save(Path(folder) / "gpt2.smelt")
        exported = time.perf_counter() - began
        model, ids = model.cuda(), ids.cuda()
        expected = model(ids)
        began = time.perf_counter()
        artifact = OnGpu(path, torch.empty_like(expected))
        artifact(ids)
        opened = time.perf_counter() - began
        compiled = smelt.compile(model)
        for _ in range(4):
            found = compiled(ids)
        wide = copy.deepcopy(model).double()(ids)
        scale = float(wide.abs().max())
        errors = {
            name: float((each.double() - wide).abs().max()) / scale
            for name, each in (("eager", expected), ("compile", found), ("artifact", artifact(ids)))
        }
        del expected, found, wide
        calls = {
            "artifact": (lambda: artifact(ids), True),
            "compile": (lambda: compiled(ids), True),
            "queued": (lambda: compiled(ids), False),
        }
        counts = {name: max(3, int(BLOCK_SECONDS * 1e3 / _block(call, 3, waits=waits)))
                  for name, (call, waits) in calls.items()}  # fmt: skip
        times: dict[str, list[float]] = {name: [] for name in calls}
        began = time.perf_counter()
        while time.perf_counter() - began < seconds or len(times["queued"]) < 3:
            for name, (call, waits) in calls.items():
                times[name].append(_block(call, counts[name], waits=waits))
        busy = {}
        for name in ("artifact", "compile"):
            kernels, launches = kernel_times(calls[name][0])
            busy[name] = sum(kernels.values()) / 1e3
            if out is not None:
                table = out / f"{str(dtype).removeprefix('torch.')}_{batch}x{tokens}_{name}.txt"
                write_kernel_times(table, kernels, launches)
    medians = {name: statistics.median(found) for name, found in times.items()}
    return {
        "dtype": str(dtype).removeprefix("torch."), "tokens": f"{batch}x{tokens}", **medians,
        "ratio": medians["artifact"] / medians["compile"], "to queued": medians["artifact"] / medians["queued"],
        "busy": busy, "export": exported, "open": opened, "errors": errors,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.deploy_gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--tokens", nargs="+", default=["8x512", "1x128"])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks.deploy_gpu needs an NVIDIA GPU")
    print(f"GPT-2, {args.layers} layers of 768, on {torch.cuda.get_device_name()}, torch {torch.__version__}")
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
    results = []
    for name in args.dtypes:
        for shape in args.tokens:
            batch, tokens = map(int, shape.split("x"))
            found = measure(getattr(torch, name), batch, tokens, args.layers, args.seconds, args.out)
            results.append(found)
            errors = ", ".join(f"{who} {error:.1e}" for who, error in found["errors"].items())
            print(
                f"{name:9} {shape:6} artifact {found['artifact']:7.3f} ms  compile {found['compile']:7.3f}  "
                f"ratio {found['ratio']:.2f}  queued {found['queued']:7.3f}  ratio {found['to queued']:.2f}  "
                f"busy {found['busy']['artifact']:.3f} and {found['busy']['compile']:.3f}  "
                f"export {found['export']:.1f} s, open {found['open']:.1f} s  errors: {errors}",
                flush=True,
            )
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
