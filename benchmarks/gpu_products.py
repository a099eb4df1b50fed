"""Products of few rows on a GPU, by grids of our own and by PyTorch's library.

    python -m benchmarks.gpu_products [--dtype float32] [--across] [--rows 1 4 16] [--shapes 4096x4096]
    python -m benchmarks.gpu_products --sweep      every split of the work, to choose those of `few_rows.split_of` by

One line is y[m, n] = Σ w[n, k] · x[m, k] for one size (`--across`: w[k, n]). Each launch of a recorded CUDA graph reads
other weights, 256 MiB in all, so that they come from memory and not from the cache. Columns: microseconds of a launch,
and the GB/s at which it reads weights, by us and by the library; how often ours goes in the time of the library's; and
the largest error against float64 as a multiple of the library's.
"""

import argparse
import itertools
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch

from smelt import _native
from smelt.codegen.generator import EntryCode
from smelt.codegen.gpu.cuda_target import describe_cuda
from smelt.codegen.gpu.gpu_generator import CudaGenerator, ptx
from smelt.codegen.gpu.grids import KernelGrids
from smelt.codegen.gpu.products.few_rows import BODIES, few_rows
from smelt.codegen.gpu.products.few_rows_body import FewRows, Split, Way
from smelt.codegen.write_module import join
from smelt.ir.check_kernel import contraction_of
from smelt.ir.kernel import (
    Axis,
    Buffer,
    Cast,
    Contract,
    Element,
    Factor,
    Index,
    Kernel,
    Quantized,
    Role,
    Stage,
    Store,
)
from smelt.runtime.cuda.driver import devices
from smelt.runtime.cuda.image import CudaCode
from smelt.runtime.cuda.launcher import LaunchSupport

Tensor = torch.Tensor
SHAPES = ("2048x2048", "8192x2048", "2048x8192", "4096x4096", "14336x4096", "4096x14336", "6144x4096", "128256x2048")
WEIGHT_BYTES, ROUNDS = 256 << 20, 5
TARGET = describe_cuda("sm_90")


@dataclass(frozen=True)
class Size:
    rows: int
    cols: int
    terms: int
    dtype: torch.dtype
    across: bool = False
    groups: int = 0  # of terms that have a scale, of quantized weights
    bits: int = 4  # of those

    @property
    def weight_bytes(self) -> int:
        scales = 2 * self.cols * self.groups
        return self.cols * self.terms * self.dtype.itemsize * (self.bits if self.groups else 8) // 8 + scales

    @property
    def given(self) -> torch.dtype:
        """What the weights are multiplied with."""
        return self.dtype if self.dtype.is_floating_point else torch.bfloat16

    def _grouped(self, factor: Factor) -> Factor:
        (name, step), (_, along) = factor.index.terms
        index = Index(((name, step), ("g", along * self.terms // self.groups), ("k", along)))
        return replace(factor, index=index)

    def kernel(self) -> Kernel:
        wide = torch.promote_types(self.given, torch.float32)
        steps = (("j", 1), ("k", self.cols)) if self.across else (("j", self.terms), ("k", 1))
        left, right = Factor("x", Index((("i", self.terms), ("k", 1)))), Factor("w", Index(steps))
        axes: tuple[Axis, ...] = (Axis("k", self.terms),)
        if self.groups:
            axes = (Axis("g", self.groups), Axis("k", self.terms // self.groups))
            scale = Element("s", Index((("j", self.groups), ("g", 1))))
            left, right = map(self._grouped, (left, right))
            quantized = Quantized("u4", scale, offset=8) if self.bits == 4 else Quantized("i8", scale)
            right = replace(right, quantized=quantized)
        contract = Contract("p", axes, left, right, wide)
        rounded = () if wide is self.given else (Cast("q", "p", self.given),)
        store = Store("y", Index((("i", self.cols), ("j", 1))), "q" if rounded else "p")
        sizes = {"x": self.rows * self.terms, "w": self.cols * self.terms, "y": self.rows * self.cols}
        roles = {"x": Role.INPUT, "w": Role.INPUT, "y": Role.OUTPUT}
        dtypes = {"x": self.given, "w": self.dtype, "y": self.given}
        buffers = tuple(Buffer(name, dtypes[name], size, roles[name]) for name, size in sizes.items())
        if self.groups:
            halved = replace(buffers[1], size=buffers[1].size * self.bits // 8)
            scales = Buffer("s", self.given, self.groups * self.cols, Role.INPUT)
            buffers = (buffers[0], halved, scales, buffers[2])
        stages = (Stage(True, (contract, *rounded, store)),)
        return Kernel("few_rows", (Axis("i", self.rows),), (Axis("j", self.cols),), buffers, stages)


def grid_of(size: Size, way: Way | None = None, split: Split | None = None) -> FewRows | str:
    """The grid that is chosen, or one by another way and split."""
    kernel = size.kernel()
    contract = contraction_of(kernel)
    assert contract is not None
    grid = few_rows(kernel, contract, TARGET)
    if isinstance(grid, str) or split is None:
        return grid
    way = way or grid.way
    if size.groups and way is not grid.way:
        return f"{way.value} does not apply"
    threads = split.warps * split.teams * TARGET.warp_size
    return replace(grid, way=way, body=BODIES.get(way, grid.body), split=split, threads=threads)


def written(grid: FewRows) -> tuple[EntryCode, str]:
    generator = CudaGenerator()
    code = generator.emit("k", KernelGrids(grid.kernel, (grid,), (), 0), TARGET)
    return replace(code, functions=()), ptx(join([code]), TARGET)


def launcher(code: EntryCode, image: CudaCode, buffers: int = 3, workspace: int = 0) -> Callable[..., object]:
    phases = tuple((0, int(each.blocks), each.threads, each.shared_bytes, each.has_barrier) for each in code.phases)
    support = LaunchSupport(image, code.phases)
    return _native.GridLauncher(phases, buffers, workspace, support=support)


def graph_time(run: Callable[[Tensor], object], given: Sequence[Tensor]) -> float:
    """Microseconds of a launch, for each of the tensors. What the first one gives is left."""
    run(given[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for each in reversed(given):
            run(each)
    times = []
    for _ in range(ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(float(begin.elapsed_time(end)))
    return min(times) * 1000 / len(given)


class Case:
    """The tensors of one size, what the library takes, and how far it is from float64."""

    def __init__(self, size: Size) -> None:
        self.size, count = size, max(2, -(-WEIGHT_BYTES // size.weight_bytes))
        shape = (size.terms, size.cols) if size.across else (size.cols, size.terms)
        scale = 1 if size.dtype.is_floating_point else 40
        drawn = (torch.randn(shape, device="cuda") * scale for _ in range(count))
        self.weights = [each.to(size.dtype) for each in drawn]
        self.scales = []
        if size.groups:
            packed = (size.cols, size.terms * size.bits // 8)
            self.weights = [torch.randint(0, 256, packed, device="cuda", dtype=torch.uint8) for _ in range(count)]
            self.weights = [each.view(size.dtype) for each in self.weights]
            self.scales = [torch.rand(size.cols, size.groups, device="cuda").to(size.given)]
        self.x = torch.randn(size.rows, size.terms, device="cuda", dtype=size.given)
        self.y = torch.empty(size.rows, size.cols, device="cuda", dtype=size.given)
        exact = torch.float64 if size.terms * size.cols < 1 << 27 else size.given  # as far as memory goes
        right = self.of_library(self.weights[0], exact)
        self.exact = torch.cat([self.x.double() @ part.double() for part in right.split(8192, 1)], 1)
        self.library = self.time(lambda w: torch.mm(self.x, self.of_library(w, size.given), out=self.y))
        self.library_error = self.error()

    def of_library(self, weights: Tensor, dtype: torch.dtype) -> Tensor:
        """Integers are converted for it."""
        if self.scales:
            integers = weights if self.size.bits == 8 else torch.stack((weights & 15, weights >> 4), -1)
            grouped = integers.view(self.size.cols, self.size.groups, -1).to(dtype)
            whole = (grouped - (8 if self.size.bits == 4 else 0)) * self.scales[0][:, :, None].to(dtype)
            return whole.view(self.size.cols, self.size.terms).t()
        weights = weights.to(dtype)
        return weights if self.size.across else weights.t()

    def error(self) -> float:
        return float((self.y.double() - self.exact).abs().max())

    def time(self, run: Callable[[Tensor], object]) -> float:
        """Microseconds of a launch. The result of the first weights is left in `y`."""
        return graph_time(run, self.weights)

    def line(self, grid: FewRows, run: Callable[..., object]) -> str:
        self.y.fill_(float("nan"))
        ours = self.time(lambda w: run(1, self.x, w, *self.scales, self.y))
        size, error, split = self.size, self.error() / max(self.library_error, 1e-9), grid.split
        rates = [size.weight_bytes / each / 1000 for each in (ours, self.library)]
        name = f"{str(size.dtype)[6:]} {size.rows} {size.cols}x{size.terms}{' across' * size.across}"
        how = f"{grid.way.value} cols {split.cols} warps {split.warps} teams {split.teams} unroll {split.unroll}"
        return (
            f"{name} | {how} | {ours:.2f} us {rates[0]:.0f} GB/s | library {self.library:.2f} us {rates[1]:.0f} GB/s"
            f" | {self.library / ours:.3f} | error {error:.2f}"
        )


def splits(size: Size) -> Iterator[tuple[Way, Split]]:
    """All that are worth a trial."""
    powers = (1, 2, 4, 8, 16)
    if size.across:
        vector = 16 // size.dtype.itemsize
        for lanes, warps, unroll in itertools.product((2, 4, 8, 16), (4, 8, 16), (2, 4, 8)):
            yield Way.ACROSS, Split(lanes * vector, warps, 1, unroll)
        return
    if size.dtype.itemsize == 2:
        for warps, unroll in itertools.product(powers[1:], (2, 4, 8)):
            if warps * unroll * 32 <= size.terms:
                yield Way.MATRIX, Split(16, warps, max(1, 8 // warps), unroll)
    if size.rows <= 4 or size.dtype.itemsize == 4:
        if size.groups:
            for warps, unroll in itertools.product(powers[:4], (1, 2, 4, 8)):
                yield Way.QUANTIZED_MATRIX, Split(16, warps, max(1, 8 // warps), unroll)
        way = Way.QUANTIZED if size.groups else Way.ALONG
        for cols, warps, unroll in itertools.product((1, 2, 4), powers[:4], (1, 2, 4)):
            if warps * unroll * 512 <= size.terms * size.dtype.itemsize:
                yield way, Split(cols, warps, max(1, 8 // warps), unroll)


def grids(sizes: Sequence[Size], sweep: bool) -> list[tuple[Size, FewRows]]:
    found = []
    for size in sizes:
        ways = list(dict.fromkeys(splits(size))) if sweep else [(None, None)]
        for way, split in ways:
            grid = grid_of(size, way, split)
            if isinstance(grid, str):
                print(f"{size}: {grid}")
            else:
                found.append((size, grid))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.gpu_products")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--across", action="store_true")
    parser.add_argument("--int4", action="store_true", help="in groups of 64, for bfloat16")
    parser.add_argument("--int8", action="store_true", help="with a scale for each row, for bfloat16")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 2, 4, 8, 16])
    parser.add_argument("--shapes", nargs="*", default=SHAPES)
    parser.add_argument("--processes", type=int, default=8)
    given = parser.parse_args()
    dtype, shapes = getattr(torch, given.dtype), [tuple(map(int, shape.split("x"))) for shape in given.shapes]
    sizes = [Size(rows, shape[0], shape[1], dtype, given.across) for shape in shapes for rows in given.rows]
    if given.int4:
        sizes = [replace(size, dtype=torch.uint8, groups=size.terms // 64) for size in sizes]
    if given.int8:
        sizes = [replace(size, dtype=torch.int8, groups=1, bits=8) for size in sizes]
    todo = grids(sizes, given.sweep)
    with multiprocessing.get_context("fork").Pool(given.processes) as pool:
        codes = pool.map(written, [grid for _, grid in todo], chunksize=4)
    torch.zeros(1, device="cuda")
    (device, *_), images = devices(), [CudaCode(text) for _, text in codes]
    with ThreadPoolExecutor(given.processes) as threads:
        list(threads.map(lambda image: image.image(device), images))
    for size, every in itertools.groupby(zip(todo, codes, images, strict=True), lambda each: each[0][0]):
        case = Case(size)
        for (_, grid), (code, _), image in every:
            print(case.line(grid, launcher(code, image, 3 + len(case.scales))), flush=True)


if __name__ == "__main__":
    main()
