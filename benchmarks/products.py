"""Matrix products by kernels of our own beside `torch.mm`, in one run: `python -m benchmarks.products`.

    python -m benchmarks.products [--shapes 64x64x64 8x1024x1024] [--forms nn nt tn] [--dtypes float32 bfloat16]
                                  [--threads 1 2] [--schedules] [--rounds 15] [--json FILE] [--grid]
    python -m benchmarks.products --fit FILE     the constants of a cost model that FILE's figures give

A shape is rows × cols × depth. Forms: `nn` is x @ w, `nt` is x @ w.t() (a linear layer), `tn` is x.t() @ w (its
gradient); where the compiler gives the library w @ x.t() in its place, so does this. Each line: GFLOP/s of `torch.mm`
and of ours, ours over the library's (above one: faster), and the schedule; then geometric means. With `--schedules`
every schedule that takes a product is measured, the one the compiler chooses first, else that one alone. A star is at
products that `smelt.compile` makes kernels of by itself, where it takes the library to be slower; the last mean counts
the others as the library's. They run alternately, a few milliseconds at a time; a ratio is the median of the quotients
within a round. With one thread processor time counts, which others on the machine disturb less; with more the clock's.
Each number of threads has a process of its own: some of the library's products start as many as there were at first.
"""

import argparse
import contextlib
import ctypes
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from unittest import mock

import torch

import smelt
from benchmarks import product_costs
from benchmarks.harness import ROOT, machine
from benchmarks.measure import interleaved, ratio
from benchmarks.table import mean
from smelt.base import events
from smelt.base.options import Options
from smelt.codegen import build, compile_kernels
from smelt.codegen.cpu import problem_kinds
from smelt.codegen.cpu.products.plan import PRODUCTS
from smelt.codegen.cpu.products.problem import problem_of
from smelt.device import find
from smelt.device.host_library import given_transposed
from smelt.ir.check_kernel import contraction_of
from smelt.ir.kernel import Axis, Buffer, Cast, Contract, Factor, Index, Kernel, Role, Stage, Store, members
from smelt.ir.program import Program

SHAPES = (
    (64, 64, 64), (256, 256, 256), (512, 512, 512), (1024, 1024, 1024),
    (128, 3072, 768), (32, 1024, 1024), (8, 1024, 1024), (1, 4096, 4096),
)  # fmt: skip
GRID = tuple(itertools.product((1, 2, 4, 8, 16, 32, 64, 128, 256, 512), (64, 256, 1024, 3072), (64, 256, 1024)))
FORMS = ("nn", "nt", "tn")
DTYPES = ("float32", "float64", "bfloat16", "float16")
LIBRARY = "library"


@dataclass(frozen=True, slots=True)
class Shape:
    """A product of `rows` × `depth` and `depth` × `cols`, and which factors lie transposed in memory."""

    rows: int
    cols: int
    depth: int
    form: str = "nn"
    dtype: str = "float32"

    def __str__(self) -> str:
        return f"{self.rows}×{self.cols}×{self.depth} {self.form}" + f" {self.dtype}" * (self.dtype != "float32")

    @property
    def flops(self) -> int:
        return 2 * self.rows * self.cols * self.depth


@dataclass(frozen=True, slots=True)
class Figure:
    """What one way to compute a product took: the median in seconds, and the library's time over it."""

    shape: Shape
    threads: int
    by: str
    chosen: bool  # by the compiler, among schedules
    seconds: float
    ratio: float
    cycles: float = 0.0  # of a thread, as the compiler estimates a schedule
    own: bool = False  # whether the compiler makes a kernel of the product by itself

    @property
    def gflops(self) -> float:
        return self.shape.flops / self.seconds / 1e9


def product_kernel(shape: Shape) -> Kernel:
    """The product alone as a kernel."""
    dtype = getattr(torch, shape.dtype)
    sums = torch.float64 if dtype is torch.float64 else torch.float32
    left = {"i": 1, "k": shape.rows} if shape.form[0] == "t" else {"i": shape.depth, "k": 1}
    right = {"j": shape.depth, "k": 1} if shape.form[1] == "t" else {"j": 1, "k": shape.cols}
    p = Contract("p", (Axis("k", shape.depth),), Factor("x", _index(left)), Factor("w", _index(right)), sums)
    stored = Store("y", _index({"i": shape.cols, "j": 1}), "p" if dtype is sums else "r")
    body = (p, stored) if dtype is sums else (p, Cast("r", "p", dtype), stored)
    buffers = (
        Buffer("x", dtype, shape.rows * shape.depth, Role.INPUT),
        Buffer("w", dtype, shape.depth * shape.cols, Role.INPUT),
        Buffer("y", dtype, shape.rows * shape.cols, Role.OUTPUT),
    )
    rows, cols = (Axis("i", shape.rows),), (Axis("j", shape.cols),)
    return Kernel("product", rows, cols, buffers, (Stage(True, body),))


def _index(strides: dict[str, int]) -> Index:
    return Index(tuple(strides.items()))


def schedules_for(kernel: Kernel) -> dict[str, float]:
    """The schedules that take a kernel with the cycles they are estimated at, the one that is chosen first."""
    target = find(kernel.target)
    if PRODUCTS.why_not(kernel, target) is not None:
        return {}
    problem = problem_of(kernel)
    fitting = [each for each in PRODUCTS.schedules if each.why_not(problem, target) is None]
    chosen = PRODUCTS.plan(kernel, target).schedule
    fitting.sort(key=lambda each: each is not chosen)
    return {each.name: each.cycles(problem, target) for each in fitting}


@contextlib.contextmanager
def only(name: str) -> Iterator[None]:
    """The compiler with one schedule for products, and nothing built before."""
    build.forget()
    kept = replace(PRODUCTS, schedules=tuple(each for each in PRODUCTS.schedules if each.name == name))
    with mock.patch.object(problem_kinds, "KINDS", tuple(kept if k is PRODUCTS else k for k in problem_kinds.KINDS)):
        yield
    build.forget()


def call_of(kernel: Kernel, schedule: str, tensors: Sequence[torch.Tensor], threads: int) -> Callable[[], object]:
    """A kernel as a function without arguments that computes on `tensors`."""
    with only(schedule):
        compiled = compile_kernels([kernel], Options())[kernel.name]
    workspace = torch.empty(int(compiled.per_thread_workspace) * threads + 64, dtype=torch.uint8)
    buffers = (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)(
        compiled.address(compiled.symbol)
    )
    given, pointer = ctypes.addressof(buffers), workspace.data_ptr() + -workspace.data_ptr() % 64
    held = (compiled, buffers, workspace, tensors)

    def call() -> object:
        function(given, threads, pointer)
        return held

    return call


@contextlib.contextmanager
def thread_count(threads: int) -> Iterator[None]:
    """PyTorch with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    yield
    torch.set_num_threads(before)


def operands(shape: Shape) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Both factors as they lie in memory, and room for the result."""
    dtype = getattr(torch, shape.dtype)
    left = (shape.depth, shape.rows) if shape.form[0] == "t" else (shape.rows, shape.depth)
    right = (shape.cols, shape.depth) if shape.form[1] == "t" else (shape.depth, shape.cols)
    x, w = torch.randn(left).to(dtype), torch.randn(right).to(dtype)
    return x, w, torch.empty(shape.rows, shape.cols, dtype=dtype)


def measured(shape: Shape, threads: int, every: bool, rounds: int, per_round: float = 0.02) -> list[Figure]:
    """The library, and ours: the schedule that is chosen, or `every` one that fits."""
    kernel = product_kernel(shape)
    fitting = schedules_for(kernel)
    chosen = next(iter(fitting), LIBRARY)
    x, w, y = operands(shape)
    left, right = (x.t() if shape.form[0] == "t" else x), (w.t() if shape.form[1] == "t" else w)
    own = is_own(left, right)
    theirs = torch.empty_like(y)
    given, out = (left, right), theirs
    if shape.form == "nt" and given_transposed((shape.rows, shape.cols, shape.depth), {y.dtype}):
        given, out = (right.t(), left.t()), theirs.t()
    ways: dict[str, Callable[[], object]] = {LIBRARY: lambda: torch.mm(*given, out=out)}
    for name in fitting if every else [*fitting][:1]:
        ways[name] = call_of(kernel, name, (x, w, y), threads)
    with thread_count(threads):
        for name, way in ways.items():
            way()
            if name != LIBRARY:
                _check(y, theirs, f"{shape}, {name}")
        seconds = interleaved(ways, rounds, per_round, time.process_time if threads == 1 else time.perf_counter)
    found = []
    for name, times in seconds.items():
        median, quotient = sorted(times)[len(times) // 2], ratio(seconds, LIBRARY, name)
        found.append(Figure(shape, threads, name, name == chosen, median, quotient, fitting.get(name, 0.0), own))
    return found


def is_own(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether the compiler, when nobody tells it, makes a kernel of a product."""
    smelt.reset()
    with events.collect() as seen:
        smelt.compile(lambda x, w: torch.mm(x, w))(left, right)
    programs = [event.subject for event in seen if isinstance(event.subject, Program)]
    launched = [kernel for program in programs for kernel in program.kernels]
    return any(contraction_of(kernel) is not None for each in launched for kernel in members(each))


def _check(found: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
    """A figure of a wrong product is worth nothing."""
    scale = wanted.double().abs().max().item()
    off = (found.double() - wanted.double()).abs().max().item() / max(scale, 1e-30)
    if not off <= 64 * torch.finfo(wanted.dtype).eps:
        raise AssertionError(f"{what}: off by {off:.1e} of the largest value")
    found.fill_(math.nan)  # so that the next schedule has to write it all


def line(figures: Sequence[Figure]) -> str:
    """One product: the library, then ours, the chosen schedule first."""
    library, *ours = figures
    parts = [f"{each.gflops:8.1f} {each.ratio:6.2f}  {each.by:10}" for each in ours]
    told = "".join(parts or ["       –      –"])
    return f"{library.shape!s:24} {library.threads:2} {library.gflops:12.1f} {told} {'*' * library.own}".rstrip()


def means(figures: Sequence[Figure]) -> list[str]:
    """Geometric means of what is chosen, in all and form by form, and the worst."""
    lines = []
    for threads in sorted({each.threads for each in figures}):
        chosen = [each for each in figures if each.threads == threads and each.chosen]
        if not chosen:
            continue
        forms = [f"{form} {_mean(each for each in chosen if each.shape.form == form)}" for form in FORMS]
        worst = min(chosen, key=lambda each: each.ratio)
        told = f"{threads} thread{'s' * (threads > 1)}: geometric mean "
        lines.append(f"{told}{_mean(chosen)} ({', '.join(forms)}), worst {worst.ratio:.2f} at {worst.shape}")
        own = [each if each.own else replace(each, ratio=1.0) for each in chosen]
        worst = min(own, key=lambda each: each.ratio)
        taken = f"{sum(each.own for each in own)} of {len(own)} by kernels by itself"
        lines.append(f"{told}{_mean(own)}, {taken}, worst {worst.ratio:.2f} at {worst.shape}")
    return lines


def _mean(figures: Iterable[Figure]) -> str:
    found = mean(each.ratio for each in figures)
    return "–" if found is None else f"{found:.2f}"


def write(path: Path, figures: Sequence[Figure]) -> None:
    written = {"machine": machine(), "figures": [asdict(each) for each in figures]}
    path.write_text(json.dumps(written, indent=1), encoding="utf-8")


def read(path: Path) -> list[Figure]:
    given = json.loads(path.read_text(encoding="utf-8"))["figures"]
    return [Figure(**{**each, "shape": Shape(**each["shape"])}) for each in given]


def parsed(text: str) -> tuple[int, int, int]:
    """An argument `rows×cols×depth`."""
    sizes = text.replace("×", "x").split("x")
    if len(sizes) != 3 or not all(size.isdecimal() and int(size) for size in sizes):
        raise argparse.ArgumentTypeError(f"{text!r}: rows, cols and depth, as in 64x64x64")
    rows, cols, depth = map(int, sizes)
    return rows, cols, depth


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.products", description="products of our own beside torch.mm")
    parser.add_argument("--shapes", nargs="+", type=parsed, default=list(SHAPES))
    parser.add_argument("--grid", dest="shapes", action="store_const", const=list(GRID), help="shapes to fit by")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["float32"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--schedules", action="store_true", help="measure every schedule that takes a product")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    parser.add_argument("--fit", type=Path, help="measure nothing: fit the cost model to the figures in this file")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)  # in the process for so many threads
    args = parser.parse_args()
    if args.one:
        one_process(args)
        return
    if args.fit:
        print("\n".join(product_costs.report(read(args.fit))))
        return
    print(", ".join(f"{key} {value}" for key, value in machine().items() if key != "threads"))
    print(f"{'rows×cols×depth':23} threads  torch.mm     ours  ratio  schedule (GFLOP/s)", flush=True)
    figures = [figure for threads in args.threads for figure in in_process(threads, sys.argv[1:])]
    print("\n".join(means(figures)))
    if args.json:
        write(args.json, figures)


def in_process(threads: int, arguments: Sequence[str]) -> list[Figure]:
    """Figures that a new process takes, and prints."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "figures.json")
        words = [sys.executable, "-m", "benchmarks.products", *arguments, "--one", str(threads), "--json", str(path)]
        subprocess.run(words, env={**os.environ, "OMP_NUM_THREADS": str(threads)}, cwd=ROOT, check=True)
        return read(path)


def one_process(args: argparse.Namespace) -> None:
    """All figures for one number of threads."""
    figures: list[Figure] = []
    for dtype in args.dtypes:
        for rows, cols, depth in args.shapes:
            for form in args.forms:
                found = measured(Shape(rows, cols, depth, form, dtype), args.one, args.schedules, args.rounds)
                figures += found
                print(line(found), flush=True)
    write(args.json, figures)


if __name__ == "__main__":
    main()
