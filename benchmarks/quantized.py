"""Few rows times weights of several formats: speed beside a plain read of the same bytes, and beside eager.

    python -m benchmarks.quantized [--rows 1 2 4 16] [--formats bf16 int8 int4 q4_0] [--shape 4096 4096] [--threads 1]

    read      bytes of the weights per second, over those of a plain read of 256 MiB on the same threads
    eager     how often smelt multiplies while eager does so once, with the same weights
    float32   the same against eager with float32 weights

Copies of the weights are multiplied in turn, so that none stays in a cache. The best of the rounds counts; reads, eager
and smelt take turns. On one thread its own time is taken.
"""

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import smelt
from smelt.quantization import QuantizedLinear, QuantizedTensor, quantize

ROUNDS = 8
COPIES_BYTES = 400 << 20
READ_BYTES = 256 << 20


def layer_of(form: str, rows: int, columns: int) -> nn.Module:
    """A layer with random weights in a format."""
    torch.manual_seed(0)
    if form == "q4_0":
        integers = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8)
        scale = (torch.rand(rows, columns // 32) / 256).half()
        return QuantizedLinear(QuantizedTensor(integers, scale, bits=4, offset=8, half_run=16))
    plain = nn.Linear(columns, rows, bias=False)
    if form in ("int8", "int4"):
        model = nn.Sequential(plain)
        quantize(model, form, group_size=64)
        return model[0]
    return plain.to({"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[form])


def weight_bytes(layer: nn.Module) -> int:
    return sum(each.nbytes for each in (*layer.parameters(), *layer.buffers()))


def copies_of(layer: nn.Module, make: Callable[[], nn.Module]) -> list[nn.Module]:
    return [layer, *(make() for _ in range(COPIES_BYTES // weight_bytes(layer)))]


def seconds(run: Callable[[], object]) -> float:
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    began = clock()
    run()
    return clock() - began


def measure(form: str, rows: int, shape: tuple[int, int], products: str) -> str:
    smelt.reset()
    layers = copies_of(layer_of(form, *shape), lambda: layer_of(form, *shape))
    floats = copies_of(layer_of("f32", *shape), lambda: layer_of("f32", *shape))
    x = torch.randn(rows, shape[1])
    taken = x.to({"bf16": torch.bfloat16, "f16": torch.float16}.get(form, torch.float32))
    multiply = smelt.compile(lambda layer, x: layer(x), options={"products": products})
    memory = torch.zeros(READ_BYTES // 4, dtype=torch.int32)
    read = smelt.compile(lambda memory: memory.sum(dtype=torch.int32))
    read(memory), multiply(layers[0], taken)

    def every(call: Callable[[nn.Module, Tensor], Tensor], some: list[nn.Module], x: Tensor) -> None:
        for layer in some:
            call(layer, x)

    eager_layers = layers[: max(1, len(layers) // 8)]  # eager dequantizes each time
    rounds = [
        (
            seconds(lambda: read(memory)) / READ_BYTES,
            seconds(lambda: every(multiply, layers, taken)) / len(layers),
            seconds(lambda: every(lambda layer, x: layer(x), eager_layers, taken)) / len(eager_layers),
            seconds(lambda: every(lambda layer, x: layer(x), floats, x)) / len(floats),
        )
        for _ in range(ROUNDS)
    ]
    a_byte, ours, eager, float32 = (min(each) for each in zip(*rounds, strict=True))
    share = weight_bytes(layers[0]) * a_byte / ours
    speeds = f"eager {eager / ours:6.2f}×  float32 {float32 / ours:.2f}×"
    return f"{form:5} {rows:3} rows  {ours * 1e3:7.3f} ms  read {share:.2f}  {speeds}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--formats", nargs="+", default=["f32", "bf16", "f16", "int8", "int4", "q4_0"])
    parser.add_argument("--shape", type=int, nargs=2, default=[4096, 4096], help="rows and columns of the weights")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--products", choices=["auto", "own", "library"], default="auto")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with torch.no_grad():
        for rows in args.rows:
            for form in args.formats:
                print(measure(form, rows, tuple(args.shape), args.products), flush=True)


if __name__ == "__main__":
    main()
