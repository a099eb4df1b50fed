"""Lists the kernels and library calls of the large benchmark models as they are for a GPU, without one.

    python -m tests.absent_device.list_kernels gpt2 bert [--target sm_90] [--grids] [--text FOLDER]

    forward  12 x     19.0 MB     53.5 us  Rows   sum_mean_… 4096x768     grids; bytes of one, and the time of all
    forward  12 x                          library   aten.convolution.default [64, 64, 56, 56]

Bytes are those that each grid reads and writes, of each buffer at most one element per point. The time is bytes /
4.26 TB/s, which an H200 copies. `--text` writes the kernels of each model to a file.
"""

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from benchmarks.models import FLOAT32_ON_GPUS, LARGE_MODELS
from smelt.base.options import Options
from smelt.codegen.gpu.cuda_target import describe_cuda
from smelt.codegen.gpu.grid_plan import plan
from smelt.ir.kernel import Gather, Kernel, Load, Scatter, members
from smelt.ir.program import Launch, Library, Program, operands_in
from smelt.ir.tensorspec import TensorSpec
from smelt.ir.text import format_kernel
from smelt.symbolic.symsize import hint
from tests.absent_device.ahead import Ahead, compile_ahead, spec_like

BYTES_PER_US = 4.26e6


def _without_reading_data() -> None:
    """Hugging Face reads position ids to find packed sequences, which these inputs do not have."""
    from transformers import masking_utils

    masking_utils.find_packed_sequence_indices = lambda *_, **__: None


def ahead_of(name: str, target: str) -> Ahead:
    _without_reading_data()
    case = LARGE_MODELS[name].build(torch.float32 if name in FLOAT32_ON_GPUS else torch.bfloat16)
    leaves = {key: spec_like(value.shape, value.dtype) for key, value in case.kwargs.items()}
    inputs = tuple(_spec(x) for x in case.inputs)

    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = case.module

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            output = self.module(*args, **kwargs)
            return case.loss(output), output  # all that the model returns, as in training

    return compile_ahead(Loss().train(), inputs, Options(target=target), leaves)


def _spec(x: torch.Tensor) -> TensorSpec:
    spec = spec_like(x.shape, x.dtype)
    return TensorSpec(spec.shape, spec.stride, spec.dtype, spec.device, requires_grad=x.requires_grad)


def touched_bytes(kernel: Kernel) -> int:
    """Bytes that one grid reads and writes, of each buffer at most as many elements as points touch it."""
    sizes = {axis.name: hint(axis.size) for axis in (*kernel.rows, *kernel.cols)}
    most: dict[tuple[str, bool], int] = {}
    for instruction in kernel.instructions():
        index = getattr(instruction, "index", None)
        if index is None or not hasattr(instruction, "buffer"):
            continue
        count = 1
        if isinstance(instruction, Gather | Scatter):
            count = int(torch.tensor(list(sizes.values())).prod())
        else:
            for axis in index.axes:
                count *= sizes[axis]
        key = instruction.buffer, isinstance(instruction, Load | Gather)
        most[key] = max(most.get(key, 0), count)
    sizes_of = {buffer.name: buffer for buffer in kernel.parameters}
    touched = ((sizes_of[name], count) for (name, _), count in most.items() if name in sizes_of)
    return sum(min(hint(buffer.size), count) * buffer.dtype.itemsize for buffer, count in touched)


def report(program: Program, with_grids: bool, target: str) -> float:
    rows: Counter[tuple[str, str]] = Counter()
    bytes_of: dict[tuple[str, str], int] = {}
    for step in program.steps:
        if isinstance(step, Library):
            shapes = ", ".join(str(list(o.shape)) for o in operands_in(step.args))
            rows["library", f"{step.op} {shapes}"] += 1
            continue
        assert isinstance(step, Launch)
        for kernel in members(step.kernel):
            assert isinstance(kernel, Kernel)
            grids = plan(kernel, describe_cuda(target)).phases
            stem = kernel.name.partition("_")[2]
            shape = "x".join(str(hint(axis.size)) for axis in (*kernel.rows, *kernel.cols))
            total = sum(touched_bytes(grid.kernel) for grid in grids)
            kinds = "+".join(
                f"{type(grid).__name__}[{touched_bytes(grid.kernel) / 1e6:.1f}]" if with_grids else type(grid).__name__
                for grid in grids
            )
            key = (
                kinds,
                f"{stem[:70]} {shape} ({kernel.name.partition('_')[0]})" if with_grids else f"{stem[:70]} {shape}",
            )
            rows[key] += 1
            bytes_of[key] = total
    total_us = 0.0
    for key, count in sorted(rows.items(), key=lambda item: -bytes_of.get(item[0], 0) * item[1]):
        size = bytes_of.get(key, 0)
        us = size / BYTES_PER_US
        total_us += us * count
        cost = f"{size / 1e6:8.1f} MB {us * count:8.1f} us" if size else " " * 23
        print(f"{program.name:8} {count:3} x {cost}  {key[0]:30} {key[1]}"[:230])
    launches = sum(
        len(plan(k, describe_cuda(target)).phases)
        for s in program.steps
        if isinstance(s, Launch)
        for k in members(s.kernel)
    )
    print(
        f"{program.name}: {len(program.steps)} steps, {launches} grids of ours, {total_us / 1e3:.2f} ms at copy speed"
    )
    return total_us


def main() -> None:
    parser = argparse.ArgumentParser(description="kernels of the large models for a GPU")
    parser.add_argument("models", nargs="+", choices=LARGE_MODELS)
    parser.add_argument("--target", default="sm_90")
    parser.add_argument("--grids", action="store_true", help="bytes of each grid")
    parser.add_argument("--text", type=Path, help="folder for the kernels' text")
    args = parser.parse_args()
    for name in args.models:
        print(f"== {name}")
        ahead = ahead_of(name, args.target)
        for program in ahead.programs:
            report(program, args.grids, args.target)
        if args.text:
            args.text.mkdir(parents=True, exist_ok=True)
            texts = [format_kernel(kernel) for program in ahead.programs for kernel in program.kernels]
            (args.text / f"{name}.txt").write_text("\n\n".join(texts))


if __name__ == "__main__":
    main()
