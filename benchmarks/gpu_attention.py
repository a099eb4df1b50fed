"""Attention of one query for each head over a cache of keys on a GPU, by grids of our own and by PyTorch.

    python -m benchmarks.gpu_attention [--heads 32x8] [--width 128] [--keys 512 4096 32768]

Each launch of a recorded CUDA graph reads another cache, 256 MiB in all. Columns: microseconds of an attention and the
GB/s at which it reads keys and values, by us and by PyTorch's fastest way that takes heads which share keys (for the
mask, the one that has masks); how often ours goes in PyTorch's time; and the error against float64.
"""

import argparse

import torch
import torch.nn.functional as F

from benchmarks.gpu_products import TARGET, WEIGHT_BYTES, graph_time, launcher
from smelt.base.rewrite_budget import RewriteBudget
from smelt.codegen.gpu.gpu_generator import CudaGenerator, ptx
from smelt.codegen.write_module import join
from smelt.ir.kernel import (
    Axis,
    Buffer,
    Compute,
    Const,
    Contract,
    Factor,
    Index,
    Kernel,
    Load,
    Role,
    Softmax,
    Stage,
    WeightedSum,
)
from smelt.runtime.cuda.image import CudaCode

BF16 = torch.bfloat16


def attention(heads: int, shared: int, keys: int, width: int) -> Kernel:
    """One query of each head, with a mask of float32."""
    head, line = shared * width, keys * width
    asked = Factor("q", Index((("g", head), ("r", width), ("e", 1))))
    key = Factor("k", Index((("g", line), ("j", width), ("e", 1))))
    value = Factor("v", Index((("g", line), ("j", width), ("d", 1))))
    body = (
        Contract("s", (Axis("e", width),), asked, key, torch.float32),
        Const("scale", width**-0.5, torch.float32),
        Compute("t", "mul", ("s", "scale"), torch.float32),
        Load("m", "mask", Index((("j", 1),))),
        Compute("u", "add", ("t", "m"), torch.float32),
        Softmax("p", "u"),
        WeightedSum("y", Index((("g", head), ("r", width), ("d", 1))), (Axis("d", width),), "p", value, torch.float32),
    )
    sizes = {"q": heads * head, "k": heads * line, "v": heads * line}
    buffers = [Buffer(name, BF16, size, Role.INPUT) for name, size in sizes.items()]
    buffers += [Buffer("mask", torch.float32, keys, Role.INPUT), Buffer("y", BF16, heads * head, Role.OUTPUT)]
    axes = (Axis("g", heads), Axis("r", shared))
    return Kernel("attention", axes, (Axis("j", keys),), tuple(buffers), (Stage(True, body),))


def measure(heads: int, shared: int, keys: int, width: int) -> str:
    generator = CudaGenerator()
    plan = generator.schedule(attention(heads, shared, keys, width), TARGET, RewriteBudget(), check=True, of="")
    code = generator.emit("k", plan, TARGET)
    run = launcher(code, CudaCode(ptx(join([code]), TARGET)), len(plan.kernel.parameters), int(code.workspace))
    count = max(2, WEIGHT_BYTES // (4 * heads * keys * width))
    caches = [torch.randn(2, 1, heads, keys, width, device="cuda", dtype=BF16) for _ in range(count)]
    q = torch.randn(1, heads * shared, 1, width, device="cuda", dtype=BF16)
    mask = torch.where(torch.arange(keys, device="cuda") < keys - keys // 8, 0.0, -torch.inf)
    y = torch.empty_like(q)
    ours = graph_time(lambda cache: run(1, q, cache[0], cache[1], mask, y), caches)
    wide, repeated = q.double(), caches[0].double().repeat_interleave(shared, 2)
    scores = wide @ repeated[0].transpose(-1, -2) * width**-0.5 + mask.double()
    error = float((scores.softmax(-1) @ repeated[1] - y.double()).abs().max())
    y.fill_(float("nan"))
    plain = graph_time(lambda cache: F.scaled_dot_product_attention(q, cache[0], cache[1], enable_gqa=True), caches)
    bias = mask.to(BF16).view(1, 1, 1, keys)

    def masked(cache: torch.Tensor) -> object:
        k, v = cache.repeat_interleave(shared, 2).unbind(0)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)

    as_models = graph_time(masked, caches)
    rate = 4 * heads * keys * width / ours / 1000
    parts = getattr(plan.phases[0], "parts", 0)
    what = f"{heads * shared} heads of {width}, {heads} of keys, {keys} keys | parts {parts}"
    others = f"without mask {plain:.2f} us, repeated with mask {as_models:.2f} us"
    return f"{what} | {ours:.2f} us {rate:.0f} GB/s | {others} | {as_models / ours:.2f} | error {error:.2e}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.gpu_attention")
    parser.add_argument("--heads", nargs="*", default=["32x8", "32x32", "32x1"])
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--keys", type=int, nargs="*", default=[128, 512, 1024, 4096, 32768])
    given = parser.parse_args()
    for each in given.heads:
        queries, heads = map(int, each.split("x"))
        for keys in given.keys:
            try:
                print(measure(heads, queries // heads, keys, given.width), flush=True)
            except Exception as error:  # the next ones are still worth knowing
                print(f"{each} {keys}: {type(error).__name__}: {str(error)[:300]}", flush=True)


if __name__ == "__main__":
    main()
