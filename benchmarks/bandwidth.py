"""Memory-bound kernels against this machine's copy bandwidth.

    python -m benchmarks.bandwidth [MiB] [--torch-compile] [--device cuda] [names]

Each line is one function of tensors that are `MiB` big (64 unless said), compiled by smelt, run by eager PyTorch and,
with `--torch-compile`, by torch.compile, which takes a minute a line. They take turns with a plain copy of the same
tensor on the same threads, a few calls each, and the best call of each counts: what others do on the same machine and
in the same cache hits them all alike, and none for ever. On one thread (`OMP_NUM_THREADS=1`) that thread's own time is
taken, which others' work on the same cores does not enter.

    share     bytes the function must move (inputs once, results once, nothing between) per second, over the copy's,
              which reads each byte and writes it: what a cache fetches or writes besides is counted for neither
    eager     how often smelt goes through the function while eager does so once
    compile   the same against torch.compile

Memory is allocated once and reused, so that no round pays for page faults: a training loop's steady state. On a GPU
(`--device cuda`, 256 MiB) the device's own clock counts, and many calls are under way at once.
"""

import argparse
import ctypes
import math
import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

import smelt

Tensor = torch.Tensor
COLS = 1024
ROUNDS, PER_ROUND = 25, 0.02
GPU_CALLS = 20
aten = torch.ops.aten


def keep_memory() -> None:
    """Tell the C library to take no memory straight from the system, and to give none back."""
    mmap_count, trim_above = -4, -1
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(mmap_count, 0)
        library.mallopt(trim_above, 2**31 - 1)


def matrix(mebibytes: int, cols: int = COLS) -> Tensor:
    return torch.randn(mebibytes * 2**18 // cols, cols)


def square(mebibytes: int) -> Tensor:
    side = math.isqrt(mebibytes * 2**18)
    return torch.randn(side, side)


def statistics_of(x: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and inverse deviation of every row, as the forward saves them."""
    _, mean, rstd = aten.native_layer_norm(x, [x.shape[1]], None, None, 1e-5)
    return mean, rstd


def layer_norm_backward(g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, w: Tensor) -> Sequence[Tensor]:
    results: Sequence[Tensor] = aten.native_layer_norm_backward(
        g, x, [x.shape[1]], mean, rstd, w, w, [True, True, True]
    )
    return results


def rms_norm_backward(g: Tensor, x: Tensor, rstd: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Its formula: PyTorch has no operator for it on all devices."""
    normed, scaled = x * rstd, g * w
    return (scaled - normed * (scaled * normed).mean(1, keepdim=True)) * rstd, (g * normed).sum(0)


def cross_entropy_backward(log_probs: Tensor, target: Tensor) -> Tensor:
    """Of the mean over all rows."""
    one, rows = (torch.full((), float(number), device=target.device) for number in (1, len(target)))
    g = aten.nll_loss_backward(one, log_probs, target, None, 1, -100, rows)
    result: Tensor = aten._log_softmax_backward_data(g, log_probs, 1, g.dtype)
    return result


class AdamStep:
    """A step of Adam over parameters of many sizes."""

    def inputs(self, mebibytes: int) -> tuple[Tensor, ...]:
        """What a step reads: parameters, gradients and two moments, `mebibytes` in all."""
        sizes = [mebibytes * 2**18 // (4 * 2**number) for number in range(1, 8)]  # halves, down to some small ones
        params = [torch.randn(size, requires_grad=True) for size in (*sizes, sizes[-1])]
        for param in params:
            param.grad = torch.randn_like(param)
        self.optimizer = torch.optim.Adam(params)
        with torch.device("cpu"):  # steps are counted there
            self.optimizer.step()
        states = [self.optimizer.state[param] for param in params]
        self.updated = [*params, *(state[name] for state in states for name in ("exp_avg", "exp_avg_sq"))]
        return (*self.updated, *(param.grad for param in params if param.grad is not None))

    def step(self, *_: Tensor) -> list[Tensor]:
        self.optimizer.step()
        return self.updated


ADAM = AdamStep()


def softmax_backward(g: Tensor, y: Tensor) -> Tensor:
    result: Tensor = aten._softmax_backward_data(g, y, 1, g.dtype)
    return result


Case = tuple[Callable[..., object], Callable[[int], tuple[Tensor, ...]]]

CASES: dict[str, Case] = {
    "add": (lambda x, y: x + y, lambda size: (matrix(size), matrix(size))),
    "scale-add-relu": (lambda x, y: F.relu(2 * x + y), lambda size: (matrix(size), matrix(size))),
    "add bias": (lambda x, b: x + b, lambda size: (matrix(size), torch.randn(COLS))),
    "to bfloat16": (lambda x: x.bfloat16(), lambda size: (matrix(size),)),
    "add bfloat16": (lambda x, y: x + y, lambda size: (matrix(size).bfloat16(), matrix(size).bfloat16())),
    "transpose-add": (lambda x, y: x + y.t(), lambda size: (square(size), square(size))),
    "transpose": (lambda x: x.t().contiguous(), lambda size: (matrix(size),)),
    "row sum": (lambda x: x.sum(1), lambda size: (matrix(size),)),
    "column sum": (lambda x: x.sum(0), lambda size: (matrix(size),)),
    "whole sum": (lambda x: x.sum(), lambda size: (matrix(size),)),
    "layer norm": (
        lambda x, w, b: F.layer_norm(x, x.shape[1:], w, b),
        lambda size: (matrix(size), torch.randn(COLS), torch.randn(COLS)),
    ),
    "layer norm backward": (
        layer_norm_backward,
        lambda size: (matrix(size), x := matrix(size), *statistics_of(x), torch.randn(COLS)),
    ),
    "rms norm": (
        lambda x, w: F.rms_norm(x, x.shape[1:], w),
        lambda size: (matrix(size), torch.randn(COLS)),
    ),
    "rms norm backward": (
        rms_norm_backward,
        lambda size: (matrix(size), x := matrix(size), x.square().mean(1, keepdim=True).rsqrt(), torch.randn(COLS)),
    ),
    "softmax": (lambda x: F.softmax(x, 1), lambda size: (matrix(size),)),
    "softmax bfloat16": (lambda x: F.softmax(x, 1), lambda size: (matrix(2 * size).bfloat16(),)),
    "softmax, long rows": (lambda x: F.softmax(x, 1), lambda size: (matrix(size, 2**17),)),
    "log softmax, long rows": (lambda x: F.log_softmax(x, 1), lambda size: (matrix(size, 2**17),)),
    "logsumexp, long rows": (lambda x: torch.logsumexp(x, 1), lambda size: (matrix(size, 2**17),)),
    "softmax backward": (softmax_backward, lambda size: (matrix(size), F.softmax(matrix(size), 1))),
    "log softmax": (lambda x: F.log_softmax(x, 1), lambda size: (matrix(size),)),
    "cross entropy, 32,000 classes": (
        lambda x, t: F.cross_entropy(x, t),
        lambda size: (x := matrix(size, 32000), torch.randint(0, 32000, (len(x),))),
    ),
    "cross entropy backward": (
        cross_entropy_backward,
        lambda size: (x := F.log_softmax(matrix(size, 32000), 1), torch.randint(0, 32000, (len(x),))),
    ),
    "dropout": (lambda x: F.dropout(x, 0.1), lambda size: (matrix(size),)),
    "Adam step": (ADAM.step, ADAM.inputs),
    "gelu": (lambda x: F.gelu(x), lambda size: (matrix(size),)),
    "gelu backward": (lambda g, x: aten.gelu_backward(g, x), lambda size: (matrix(size), matrix(size))),
    "gelu by tanh": (lambda x: F.gelu(x, approximate="tanh"), lambda size: (matrix(size),)),
    "silu": (lambda x: F.silu(x), lambda size: (matrix(size),)),
    "tanh": (lambda x: torch.tanh(x), lambda size: (matrix(size),)),
    "exp": (lambda x: torch.exp(x), lambda size: (matrix(size),)),
    "exp float64": (lambda x: torch.exp(x), lambda size: (matrix(size // 2).double(),)),
}


def moved(inputs: Sequence[Tensor], results: object) -> int:
    """Bytes of all operands and results, each once."""
    outputs = [results] if isinstance(results, Tensor) else list(results)  # type: ignore[call-overload]
    return sum(tensor.numel() * tensor.element_size() for tensor in (*inputs, *outputs))


def best_calls(steps: dict[str, Callable[[], object]], clock: Callable[[], float]) -> dict[str, float]:
    """The shortest call of each, in seconds: turn by turn, each as often as fits `PER_ROUND`, three times at least."""
    best = dict.fromkeys(steps, math.inf)
    for _ in range(ROUNDS):
        for who, step in steps.items():
            taken, calls = 0.0, 0
            while taken < PER_ROUND or calls < 3:
                began = clock()
                step()
                last = clock() - began
                best[who] = min(best[who], last)
                taken, calls = taken + last, calls + 1
    return best


def best_on_gpu(steps: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The same by the GPU's clock, a call out of several that follow each other."""
    best = dict.fromkeys(steps, math.inf)
    for _ in range(ROUNDS):
        for who, step in steps.items():
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            began.record()
            for _ in range(GPU_CALLS):
                step()
            ended.record()
            ended.synchronize()
            best[who] = min(best[who], began.elapsed_time(ended) / 1e3 / GPU_CALLS)
    return best


def measured(name: str, mebibytes: int, torch_compile: bool) -> dict[str, float]:
    """The best seconds of each contender, and of a copy, with the bytes each of the two must move."""
    function, inputs_of = CASES[name]
    inputs = inputs_of(mebibytes)
    bulk = torch.empty(mebibytes * 2**18)
    source = torch.randn_like(bulk)
    contenders = {"smelt": smelt.compile(function), "eager": function}
    if torch_compile:
        contenders["torch.compile"] = torch.compile(function)
    steps: dict[str, Callable[[], object]] = {"copy": lambda: bulk.copy_(source)}
    for who, run in contenders.items():
        steps[who] = lambda run=run: run(*inputs)  # type: ignore[misc]
        for _ in range(3):
            steps[who]()
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    best = best_on_gpu(steps) if bulk.is_cuda else best_calls(steps, clock)
    return best | {"bytes": moved(inputs, function(*inputs)), "copied": 2 * mebibytes * 2**20}


def main() -> None:
    parser = argparse.ArgumentParser(description="Bandwidth of compiled kernels against a copy.")
    parser.add_argument("mebibytes", nargs="?", type=int, help="64, or 256 on a GPU")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(CASES)}")
    parser.add_argument("--torch-compile", action="store_true", help="measure torch.compile too")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="where tensors are")
    arguments = parser.parse_args()
    torch.set_default_device(arguments.device)
    arguments.mebibytes = arguments.mebibytes or (64 if arguments.device == "cpu" else 256)
    keep_memory()
    print(f"{arguments.mebibytes} MiB, {torch.get_num_threads()} threads, torch {torch.__version__}")
    last = "compile" if arguments.torch_compile else ""
    print(f"{'':30}{'copy GB/s':>10}{'smelt GB/s':>11}{'share':>7}{'eager':>7}{last:>9}")
    for name in arguments.names or CASES:
        found = measured(name, arguments.mebibytes, arguments.torch_compile)
        copy, ours = found["copied"] / found["copy"], found["bytes"] / found["smelt"]
        against = f"{found['eager'] / found['smelt']:7.2f}"
        if arguments.torch_compile:
            against += f"{found['torch.compile'] / found['smelt']:9.2f}"
        print(f"{name:30}{copy / 1e9:10.1f}{ours / 1e9:11.1f}{ours / copy:7.2f}{against}", flush=True)
        smelt.reset()


if __name__ == "__main__":
    with torch.no_grad():
        main()
