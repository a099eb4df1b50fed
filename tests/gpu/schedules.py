"""Functions whose kernels take every schedule of a GPU, on sizes that end in the middle of vectors, warps and blocks.

    python -m tests.gpu.schedules --device cuda [names]     each once, forward and backward, against float64 on the host

By itself this is what `compute-sanitizer` watches (`tools/gpu_check.py`): the GPU runs nothing of eager's but products.
`tests/gpu/test_schedules.py` holds the same functions to the rule for generated code.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

import smelt
from tests import targets

Tensor = torch.Tensor


@dataclass(frozen=True)
class Schedule:
    """A function and the shapes of its tensors; with `indices`, the last one holds integers below that."""

    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    indices: int = 0

    def inputs(self, device: str, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        made = []
        for number, shape in enumerate(self.shapes):
            generator = torch.Generator().manual_seed(number)
            if self.indices and number == len(self.shapes) - 1:
                made.append(torch.randint(0, self.indices, shape, generator=generator, device="cpu").to(device))
            else:
                drawn = torch.randn(shape, generator=generator, device="cpu")
                made.append(drawn.to(device, dtype).requires_grad_())
        return made


def _adam(weight: Tensor, gradient: Tensor, first: Tensor, second: Tensor) -> Tensor:
    first = torch.lerp(first, gradient, 0.1)
    second = second.abs() * 0.999 + gradient * gradient * 0.001
    return weight - 0.01 * first / (second.sqrt() + 1e-8)


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias)


SCHEDULES: dict[str, Schedule] = {
    "points": Schedule(lambda x, y: (x * 2 + y).sin() * x, ((1001, 37), (1001, 37))),
    "points, aligned": Schedule(lambda x, y: F.gelu(x) + y, ((512, 1024), (512, 1024))),
    "points, broadcast": Schedule(lambda x, y, z: x * y + z, ((65, 1000), (1000,), (65, 1))),
    "points, one": Schedule(lambda x: x.exp() + 1, ((1,),)),
    "warp per row": Schedule(lambda x: torch.softmax(x, -1), ((300, 100),)),
    "block per row": Schedule(lambda x: torch.softmax(x * 2, -1), ((33, 4099),)),
    "long rows": Schedule(lambda x: torch.log_softmax(x, -1), ((3, 70_001),)),
    "blocks per row": Schedule(lambda x: x.sin().sum(-1), ((2, 300_007),)),
    "whole sum": Schedule(lambda x: (x * x).sum(), ((1025, 1023),)),
    "mean and variance": Schedule(lambda x: torch.var_mean(x, -1), ((77, 515),)),
    "column sums": Schedule(lambda x: x.cos().sum(0), ((1003, 130),)),
    "column sums, few rows": Schedule(lambda x: x.amax(0), ((5, 4001),)),
    "middle sums": Schedule(lambda x: x.sum(1), ((9, 65, 33),)),
    "extremes and places": Schedule(lambda x: x.max(-1)[0] + x.argmax(-1), ((130, 257),)),
    "layer norm": Schedule(_layer_norm, ((257, 768), (768,), (768,))),
    "layer norm, odd": Schedule(_layer_norm, ((1031, 77), (77,), (77,))),
    "rms norm": Schedule(lambda x, w: F.rms_norm(x, x.shape[-1:], w), ((130, 1024), (1024,))),
    "group norm": Schedule(lambda x, w, b: F.group_norm(x, 4, w, b), ((6, 16, 9, 11), (16,), (16,))),
    # Of float32 and float64 cuDNN's, with a kernel of ours behind it.
    "batch norm": Schedule(
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True) * 2, ((8, 12, 7, 9), (12,), (12,))
    ),
    "transpose": Schedule(lambda x: x.t().contiguous() * 2, ((515, 261),)),
    "transpose of three": Schedule(lambda x, y: x.permute(2, 0, 1) + y, ((33, 17, 65), (65, 33, 17))),
    "scan": Schedule(lambda x: x.cumsum(-1), ((65, 1025),)),
    "scan, long": Schedule(lambda x: x.cumsum(-1), ((2, 100_003),)),
    "scan of columns": Schedule(lambda x: x.cumsum(0), ((513, 67),)),
    "products so far": Schedule(lambda x: (x * 0.01 + 1).cumprod(-1), ((33, 300),)),
    "gather": Schedule(lambda x, i: x.gather(1, i) * 2, ((65, 100), (65, 33)), 100),
    "embedding": Schedule(lambda table, i: F.embedding(i, table).tanh(), ((1000, 65), (33, 9)), 1000),
    "scatter": Schedule(lambda x, y, i: x.scatter_add(1, i, y), ((65, 100), (65, 333), (65, 333)), 100),
    "index_add": Schedule(lambda x, y, i: x.index_add(0, i, y), ((100, 33), (257, 33), (257,)), 100),
    "cross entropy": Schedule(lambda x, i: F.cross_entropy(x * 1.5, i), ((129, 1003), (129,)), 1003),
    "cross entropy, many": Schedule(lambda x, i: F.cross_entropy(x, i), ((17, 32_001), (17,)), 32_001),
    "dropout": Schedule(lambda x: F.dropout(x, 0.0) * 2, ((515, 261),)),
    # Of float64 the library's, with a kernel of ours behind it.
    "resize": Schedule(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear") * 2, ((2, 3, 17, 19),)),
    "pool": Schedule(lambda x: F.avg_pool2d(x, 3, 2, 1), ((2, 5, 33, 35),)),
    "max pool": Schedule(lambda x: F.max_pool2d(x, 3, 2, 1), ((2, 5, 33, 35),)),
    "concat": Schedule(lambda x, y: torch.cat([x * 2, y.sin()], 1), ((65, 33), (65, 70))),
    "pad and shift": Schedule(lambda x: F.pad(x, (1, 2)) + F.pad(x, (2, 1)), ((65, 129),)),
    "update": Schedule(_adam, ((1027, 33),) * 4),
    "mlp": Schedule(lambda x, w, v: F.gelu(x @ w) @ v, ((65, 64), (64, 129), (129, 33))),
}


def outputs(found: Any) -> list[Tensor]:
    return list(found) if isinstance(found, tuple | list) else [found]


def forward_and_backward(run: Callable[..., Any], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Results, and gradients with every other sign turned, so that terms do not only add up."""
    results = outputs(run(*inputs))
    chosen = [each for each in results if each.requires_grad]
    signs = [torch.cos(torch.arange(each.numel(), device="cpu") * 1.7).view(each.shape).to(each) for each in chosen]
    wanted = [each for each in inputs if each.requires_grad]
    return [*(each.detach() for each in results), *torch.autograd.grad(chosen, wanted, signs)]


def difference(schedule: Schedule, device: str) -> str | None:
    """What is wrong, if anything: this is to see that it ran, accuracy is asked elsewhere."""
    given = schedule.inputs(device)
    exact = [each.detach().cpu() for each in given]
    exact = [each.double().requires_grad_() if each.is_floating_point() else each for each in exact]
    wanted = forward_and_backward(schedule.function, exact)
    compiled = smelt.compile(schedule.function, options={"fallback": False})
    for _ in range(2):
        for number, (mine, true) in enumerate(zip(forward_and_backward(compiled, given), wanted, strict=True)):
            error = float((mine.cpu().double() - true.double()).abs().max())
            if not error <= 2e-3 * (1 + float(true.double().abs().max())):
                return f"tensor {number} of results and gradients is off by {error:.3g}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.gpu.schedules")
    parser.add_argument("names", nargs="*", help="all by default")
    targets.add_options(parser)
    given = parser.parse_args()
    targets.use(None, given.target)  # inputs say where they are
    failed = 0
    for name in given.names or SCHEDULES:
        smelt.reset()
        began = time.monotonic()
        try:
            wrong = difference(SCHEDULES[name], given.device)
        except Exception as error:
            wrong = f"{type(error).__name__}: {str(error)[:300]}"
        failed += wrong is not None
        print(f"{name}: {wrong or 'right'} ({time.monotonic() - began:.1f} s)", flush=True)
    print(f"{len(given.names or SCHEDULES)} schedules, {failed} wrong")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
