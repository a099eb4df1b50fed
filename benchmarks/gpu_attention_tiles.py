"""Attention of many queries on a GPU in bfloat16: our grids beside PyTorch's flash, efficient and cuDNN attention, and
beside compiled `flex_attention` for what those do not have.

    python -m benchmarks.gpu_attention_tiles [--widths 64 128] [--lengths 512 2048 8192] [--tokens 16384] [--sweep]
                                             [--check] [--gradients]

Columns: microseconds and TFLOP/s of ours, those of each library, the library's best in ours' time, and the error
against float64 on one head. `--sweep`: of several shapes of blocks. `--check`: odd sizes, errors only.
"""

import argparse
import fcntl
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.gpu_products import TARGET, graph_time, launcher
from smelt.base.fast_dataclass import dataclass
from smelt.base.rewrite_budget import RewriteBudget
from smelt.codegen.gpu.attention.score_tiles_body import ScoreTiles
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
    Instruction,
    Kernel,
    Load,
    Position,
    Role,
    Softmax,
    Stage,
    Store,
    WeightedSum,
)
from smelt.runtime.cuda.image import CudaCode

Tensor = torch.Tensor
F32 = torch.float32
_DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
CAP = 30.0
LOCK = Path("/dev/null")


@dataclass(frozen=True, slots=True)
class Case:
    """`kinds`: causal, window, softcap, bias (for all heads), in any combination."""

    heads: int
    queries: int
    keys: int
    width: int
    kinds: tuple[str, ...] = ()
    dtype: str = "bf16"

    def __str__(self) -> str:
        return f"{self.heads}×{self.queries}×{self.keys}×{self.width} {'+'.join(self.kinds) or 'full'} {self.dtype}"

    @property
    def span(self) -> int:
        return max(16, self.keys // 8)

    @property
    def scores(self) -> float:
        """That count, of a head."""
        if "window" in self.kinds:
            return self.queries * min(self.span, self.keys)
        return self.queries * self.keys * (0.5 if "causal" in self.kinds else 1.0)

    def kernel(self, gradients: bool = False) -> Kernel:
        queries, keys, width, dtype = self.queries, self.keys, self.width, _DTYPES[self.dtype]

        def factor(name: str, token: str, along: str) -> Factor:
            line = queries if token == "i" else keys
            return Factor(name, Index((("h", line * width), (token, width), (along, 1))))

        body: list[Instruction] = [
            Contract("s", (Axis("e", width),), factor("q", "i", "e"), factor("k", "j", "e"), F32),
            Const("scale", width**-0.5, F32),
            Compute("t", "mul", ("s", "scale"), F32),
        ]
        score = "t"
        if "softcap" in self.kinds:
            body += [
                Const("cap", CAP, F32), Const("part", 1 / CAP, F32), Compute("t1", "mul", ("t", "part"), F32),
                Compute("t2", "tanh", ("t1",), F32), Compute("t3", "mul", ("t2", "cap"), F32),
            ]  # fmt: skip
            score = "t3"
        if "bias" in self.kinds:
            body += [Load("b", "bias", Index((("i", keys), ("j", 1)))), Compute("t4", "add", (score, "b"), F32)]
            score = "t4"
        body += [Const("never", -math.inf, F32), Position("j", Index((("j", 1),))), Position("i", Index((("i", 1),)))]
        if "causal" in self.kinds:
            body += [
                Compute("later", "gt", ("j", "i"), torch.bool),
                Compute("t5", "where", ("later", "never", score), F32),
            ]
            score = "t5"
        if "window" in self.kinds:
            body += [
                Position("from", Index((("i", 1),), -self.span)), Compute("far", "le", ("j", "from"), torch.bool),
                Compute("t6", "where", ("far", "never", score), F32),
            ]  # fmt: skip
            score = "t6"
        sizes = {"q": queries * width, "k": keys * width, "v": keys * width}
        buffers = [Buffer(name, dtype, self.heads * size, Role.INPUT) for name, size in sizes.items()]
        if "bias" in self.kinds:
            buffers.append(Buffer("bias", F32, queries * keys, Role.INPUT))
        row = Index((("h", queries), ("i", 1)))
        rows = (Axis("h", self.heads), Axis("i", queries))
        if not gradients:
            out = Index((("h", queries * width), ("i", width), ("d", 1)))
            body += [
                Softmax("p", score, "sums"),
                WeightedSum("y", out, (Axis("d", width),), "p", factor("v", "j", "d"), F32),
            ]
            buffers += [
                Buffer("y", dtype, self.heads * queries * width, Role.OUTPUT),
                Buffer("l", F32, self.heads * queries, Role.OUTPUT),
            ]
            stages: tuple[Stage, ...] = (Stage(True, tuple(body)), Stage(False, (Store("l", row, "sums"),)))
            return Kernel("attention", rows, (Axis("j", keys),), tuple(buffers), stages)
        body += [
            Load("l_i", "l", row), Compute("below", "sub", (score, "l_i"), F32), Compute("p", "exp", ("below",), F32),
            Contract("of_p", (Axis("d", width),), factor("g", "i", "d"), factor("v", "j", "d"), F32),
            Contract("kept", (Axis("d", width),), factor("g", "i", "d"), factor("y", "i", "d"), F32),
            Compute("apart", "sub", ("of_p", "kept"), F32), Compute("of_s", "mul", ("p", "apart"), F32),
            Compute("ds", "mul", ("of_s", "scale"), F32),
        ]  # fmt: skip
        for name, weight, token, other, along in (
            ("dq", "ds", "i", factor("k", "j", "e"), "e"), ("dk", "ds", "j", factor("q", "i", "e"), "e"),
            ("dv", "p", "j", factor("g", "i", "d"), "d"),
        ):  # fmt: skip
            line = queries if token == "i" else keys
            index = Index((("h", line * width), (token, width), (along, 1)))
            body.append(WeightedSum(name, index, (Axis(along, width),), weight, other, F32))
        buffers += [Buffer(name, dtype, self.heads * queries * width, Role.INPUT) for name in ("y", "g")]
        buffers += [Buffer("l", F32, self.heads * queries, Role.INPUT)]
        buffers += [
            Buffer(name, dtype, self.heads * line * width, Role.OUTPUT)
            for name, line in (("dq", queries), ("dk", keys), ("dv", keys))
        ]
        return Kernel("gradients", rows, (Axis("j", keys),), tuple(buffers), (Stage(True, tuple(body)),))

    def tensors(self) -> list[Tensor]:
        shapes = [(1, self.heads, length, self.width) for length in (self.queries, self.keys, self.keys)]
        return [torch.randn(shape, device="cuda", dtype=_DTYPES[self.dtype]) for shape in shapes]

    def bias(self) -> Tensor | None:
        return torch.randn(self.queries, self.keys, device="cuda") if "bias" in self.kinds else None

    def hidden(self) -> Tensor | None:
        i, j = torch.arange(self.queries, device="cuda")[:, None], torch.arange(self.keys, device="cuda")
        hidden = None
        if "causal" in self.kinds:
            hidden = j > i
        if "window" in self.kinds:
            far = j <= i - self.span
            hidden = far if hidden is None else hidden | far
        return hidden

    def exact(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        """In float64, of any number of heads."""
        scores = q.double() @ k.double().transpose(-1, -2) * self.width**-0.5
        scores = (scores / CAP).tanh() * CAP if "softcap" in self.kinds else scores
        scores = scores if bias is None else scores + bias.double()
        hidden = self.hidden()
        scores = scores if hidden is None else scores.masked_fill(hidden, -math.inf)
        result: Tensor = scores.softmax(-1).nan_to_num(0.0) @ v.double()
        return result


def compiled(kernel: Kernel, change: Callable[[ScoreTiles], ScoreTiles] = lambda grid: grid) -> Callable[..., object]:
    generator = CudaGenerator()
    plan = generator.schedule(kernel, TARGET, RewriteBudget(), check=False, of="")
    phases = tuple(change(each) if isinstance(each, ScoreTiles) else each for each in plan.phases)
    assert any(isinstance(each, ScoreTiles) for each in phases), plan.why_not
    code = generator.emit("k", replace(plan, phases=phases), TARGET)
    return launcher(code, CudaCode(ptx(join([code]), TARGET)), len(kernel.parameters), int(code.workspace))


def libraries(
    case: Case, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None
) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    plain, causal = not ({*case.kinds} - {"causal"}), "causal" in case.kinds
    mask = None
    if not plain and "softcap" not in case.kinds:
        hidden = case.hidden()
        wide = torch.zeros(case.queries, case.keys, device="cuda") if bias is None else bias
        mask = (wide if hidden is None else wide.masked_fill(hidden, -math.inf)).to(q.dtype)
    for name, backend in (
        ("flash", SDPBackend.FLASH_ATTENTION), ("efficient", SDPBackend.EFFICIENT_ATTENTION),
        ("cudnn", SDPBackend.CUDNN_ATTENTION),
    ):  # fmt: skip
        if plain or (mask is not None and name != "flash"):

            def run(backend: Any = backend) -> Tensor:
                with sdpa_kernel(backend):
                    y: Tensor = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal and plain)
                return y

            yield name, run
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        s = torch.tanh(s / CAP) * CAP if "softcap" in case.kinds else s
        return s if bias is None else s + bias[i, j]

    def keep(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        kept = j <= i if causal else j >= 0
        return kept & (j > i - case.span) if "window" in case.kinds else kept

    if not plain:
        hides = {*case.kinds} & {"causal", "window"}
        blocks = create_block_mask(keep, None, None, case.queries, case.keys) if hides else None
        flex = torch.compile(flex_attention, dynamic=False)
        score_mod = score if {*case.kinds} & {"softcap", "bias"} else None
        yield "flex", lambda: flex(q, k, v, score_mod=score_mod, block_mask=blocks)


def time_of(run: Callable[[], object]) -> float:
    """Microseconds, while no other process with the same `--lock` measures."""
    run()
    torch.cuda.synchronize()
    with LOCK.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        return graph_time(lambda _: run(), [torch.empty(0)] * 4)


def event_time(run: Callable[[], object], count: int = 10) -> float:
    """The same without a CUDA graph, of what takes longer than to launch it."""
    times = []
    run()
    with LOCK.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for _ in range(count):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            torch.cuda.synchronize()
            times.append(1000 * float(begin.elapsed_time(end)))
    return min(times)


Shape = tuple[int, int, int, bool] | None


def _shaped(grid: ScoreTiles, shape: Shape) -> ScoreTiles:
    if shape is None:
        return grid
    row_tiles, warps, cols, keeps_rows = shape
    return replace(grid, row_tiles=row_tiles, warps=warps, cols=cols, keeps_rows=keeps_rows)


def measure(case: Case, sweep: bool) -> None:
    tensors, bias = case.tensors(), case.bias()
    q, k, v = tensors
    y, sums = torch.empty_like(q), torch.empty(case.heads, case.queries, device="cuda")
    given = [*tensors, *([] if bias is None else [bias])]
    exact = case.exact(q[0, -1], k[0, -1], v[0, -1], bias)
    flops = 4.0 * case.heads * case.scores * case.width
    shapes: list[Shape] = [None]
    if sweep:
        sides = [(2, 4, 64), (2, 4, 32), (2, 4, 48), (1, 8, 64), (1, 8, 128)]
        shapes += [(*each, stays) for stays in (True, False) for each in sides]
    best, lines = math.inf, []
    for shape in shapes:
        try:
            run = compiled(case.kernel(), lambda grid: _shaped(grid, shape))  # noqa: B023
            y.fill_(math.nan)
            took = time_of(lambda: run(1, *given, y, sums))  # noqa: B023
            error = float((y[0, -1].double() - exact).abs().max())
            best = min(best, took)
            lines.append(f"{shape or 'ours'} {took:.1f} us {flops / took / 1e6:.0f} TFLOP/s error {error:.1e}")
        except Exception as error:  # the next ones are still worth knowing
            lines.append(f"{shape} {type(error).__name__}: {str(error)[:200]}")
    fastest = math.inf
    for name, library in libraries(case, q, k, v, bias):
        try:
            took = time_of(library)
            fastest = min(fastest, took)
            lines.append(f"{name} {took:.1f} us {float((library()[0, -1].double() - exact).abs().max()):.1e}")
        except Exception as error:
            lines.append(f"{name} {type(error).__name__}: {str(error)[:90]}")
    print(f"{case} | {fastest / best:.2f} | " + " | ".join(lines), flush=True)


def _errors(case: Case, tensors: Sequence[Tensor], bias: Tensor | None, g: Tensor, found: list[Tensor]) -> list[float]:
    """Of gradients, in parts of the largest one."""
    q, k, v = (each.double().requires_grad_() for each in tensors)
    exact = torch.autograd.grad(case.exact(q, k, v, bias), (q, k, v), g.double())
    return [float((a.double() - b).abs().max() / b.abs().max()) for a, b in zip(found, exact, strict=True)]


def gradients(case: Case) -> None:
    tensors, bias = case.tensors(), case.bias()
    q, k, v = (each.requires_grad_() for each in tensors)
    given = [*(each.detach() for each in tensors), *([] if bias is None else [bias])]
    y, g = torch.empty_like(given[0]), torch.randn_like(given[0])
    sums = torch.empty(case.heads, case.queries, device="cuda")
    forward, backward = compiled(case.kernel()), compiled(case.kernel(gradients=True))
    forward(1, *given, y, sums)
    found = [torch.full_like(each, math.nan) for each in given[:3]]
    took = time_of(lambda: backward(1, *given, y, g, sums, *found))
    errors = _errors(case, [each.detach()[0, -1] for each in tensors], bias, g[0, -1], [each[0, -1] for each in found])
    flops, lines, fastest = 10.0 * case.heads * case.scores * case.width, [], math.inf
    for name, library in libraries(case, q, k, v, bias):
        try:
            out = library()

            def grads() -> object:
                return torch.autograd.grad(out, (q, k, v), g, retain_graph=True)  # noqa: B023

            took_there = event_time(grads)
            fastest = min(fastest, took_there)
            lines.append(f"{name} {took_there:.1f} us")
        except Exception as error:
            lines.append(f"{name} {type(error).__name__}: {str(error)[:90]}")
    shown = " ".join(f"{each:.1e}" for each in errors)
    ours = f"ours {took:.1f} us {flops / took / 1e6:.0f} TFLOP/s errors {shown}"
    print(f"gradients {case} | {fastest / took:.2f} | {ours} | " + " | ".join(lines), flush=True)


SIZES = [
    (3, 128, 128, 64), (2, 1000, 1000, 128), (2, 333, 777, 80), (1, 129, 4097, 32), (2, 2048, 2048, 96),
    (1, 65, 63, 40),
]  # fmt: skip


def check(sizes: Sequence[tuple[int, int, int, int]], with_gradients: bool) -> None:
    """Largest errors at odd sizes, beside that of rounding the results."""
    kinds = [(), ("causal",), ("window", "causal"), ("softcap", "causal"), ("bias",), ("bias", "softcap", "window")]
    for size, which, dtype in itertools.product(sizes, kinds, _DTYPES):
        case = Case(*size, which, dtype)
        try:
            tensors, bias = case.tensors(), case.bias()
            y = torch.full_like(tensors[0], math.nan)
            sums = torch.empty(case.heads, case.queries, device="cuda")
            given = [*tensors, *([] if bias is None else [bias])]
            compiled(case.kernel())(1, *given, y, sums)
            q, k, v = tensors
            exact = case.exact(q, k, v, bias)
            error = float((y.double() - exact).abs().max())
            rounded = float((exact.to(q.dtype).double() - exact).abs().max())
            good = error <= 4 * rounded + 2 * torch.finfo(q.dtype).eps * float(v.abs().max())
            print(f"{'right' if good else 'WRONG'} {case}: {error:.1e}, rounding {rounded:.1e}", flush=True)
            if with_gradients and dtype == "bf16":
                g = torch.randn_like(q)
                found = [torch.full_like(each, math.nan) for each in tensors]
                compiled(case.kernel(gradients=True))(1, *given, y, g, sums, *found)
                errors = _errors(case, tensors, bias, g, found)
                print(f"{'right' if max(errors) < 3e-2 else 'WRONG'} gradients {case}: {errors}", flush=True)
        except Exception as error:
            print(f"{case}: {type(error).__name__}: {str(error)[:300]}", flush=True)


def main() -> None:
    global LOCK
    parser = argparse.ArgumentParser(prog="benchmarks.gpu_attention_tiles")
    parser.add_argument("--widths", type=int, nargs="*", default=[64, 128])
    parser.add_argument("--lengths", type=int, nargs="*", default=[512, 2048, 8192])
    parser.add_argument("--kinds", nargs="*", default=["", "causal", "softcap+causal", "window+causal", "bias"])
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--check", type=int, nargs="*", help="odd sizes by number, or all")
    parser.add_argument("--lock", type=Path, default=LOCK, help="a file, for processes that measure alternately")
    for flag in ("sweep", "gradients"):
        parser.add_argument(f"--{flag}", action="store_true")
    given = parser.parse_args()
    LOCK = given.lock
    if given.check is not None:
        check([SIZES[number] for number in given.check or range(len(SIZES))], given.gradients)
        return
    for length, width, kinds in itertools.product(given.lengths, given.widths, given.kinds):
        heads = max(1, given.tokens // length) * (2048 // width)
        case = Case(heads, length, length, width, tuple(filter(None, kinds.split("+"))))
        try:
            gradients(case) if given.gradients else measure(case, given.sweep)
        except Exception as error:  # the next ones are still worth knowing
            print(f"{case}: {type(error).__name__}: {str(error)[:300]}", flush=True)


if __name__ == "__main__":
    main()
