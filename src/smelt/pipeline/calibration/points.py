"""What a calibration measures: calls with their sizes and the kind whose costs they give.

    points()  →  Point("float32 few rows along", MatrixSizes(1, 4, 256, 1024), …), …

The kernel of a point is what fusion makes of its function; the library's call computes the same from tensors of the
same sizes. Points of a kind do not follow each other: if time runs out, each kind has some.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.nn.functional import conv2d

from smelt.base.fast_dataclass import dataclass
from smelt.base.options import Options
from smelt.device.host_costs import attention_kind, convolution_kind, kinds_of, name
from smelt.device.host_library import HOST, given_transposed, packs_filters, slow_products
from smelt.device.product_costs import AttentionSizes, MatrixSizes
from smelt.fuse import build_program
from smelt.ir.graph import GraphLevel, Traced
from smelt.ir.kernel import Kernel
from smelt.ir.program import Launch
from smelt.ir.tensorspec import TensorSpec
from smelt.meta.fake_tensor import Recorder

aten = torch.ops.aten
Function = Callable[..., Any]
_ATTEND = aten._scaled_dot_product_flash_attention_for_cpu
_ATTEND_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward

# Rows by (cols, depth): what layers of models have, from a token to a batch.
_ROWS = (2, 6, 16, 48, 128, 320)
_WEIGHTS = ((256, 256), (1024, 256), (512, 1024))
_VECTOR_WEIGHTS = ((256, 256), (512, 512), (1024, 256), (256, 1024), (384, 1024))  # of at most 2 MiB
_LARGE_WEIGHTS = ((2048, 2048), (3072, 1024), (1024, 4096))  # at one row, and at a few where rows are contiguous
_ROWS_OF_LARGE = (1, 4, 8)
_NARROW_ROWS, _NARROW_WEIGHTS = (1, 4, 32, 96), ((256, 256), (1024, 256), (256, 1024), (512, 768))
_NARROW_LARGE = ((2048, 1024), (1024, 2048), (3072, 1024), (2048, 2048))  # of one row
# Images, channels, filters, size, taps, stride.
_CONVOLUTIONS = (
    (1, 64, 64, 56, 3, 1), (1, 64, 256, 56, 1, 1), (1, 256, 64, 56, 1, 1), (1, 3, 64, 64, 8, 8), (1, 16, 32, 56, 3, 1),
    (1, 128, 128, 28, 3, 1), (1, 128, 512, 28, 1, 1), (1, 512, 128, 28, 1, 1), (1, 96, 192, 28, 2, 2),
    (1, 3, 64, 112, 7, 2), (1, 256, 256, 14, 3, 1), (1, 256, 1024, 14, 1, 1), (1, 1024, 256, 14, 1, 1),
    (1, 3, 192, 224, 16, 16), (1, 32, 32, 28, 5, 1), (4, 64, 64, 28, 3, 1), (1, 96, 384, 28, 1, 1),
    (4, 128, 128, 14, 1, 1), (1, 192, 384, 14, 2, 2), (1, 32, 64, 56, 3, 1), (1, 128, 256, 28, 3, 2),
    (1, 512, 512, 7, 3, 1), (1, 512, 2048, 7, 1, 1), (1, 2048, 512, 7, 1, 1), (1, 256, 256, 7, 3, 1),
    (1, 256, 1024, 7, 1, 1), (1, 1024, 256, 7, 1, 1), (1, 512, 512, 4, 3, 1), (1, 128, 512, 12, 1, 1),
    (1, 512, 128, 12, 1, 1), (1, 128, 256, 14, 3, 2), (1, 512, 1024, 10, 1, 1), (1, 512, 512, 7, 1, 1),
    (1, 128, 128, 12, 3, 1),
)  # fmt: skip
# Heads, queries, keys, width, causal.
_ATTENTIONS = (
    (12, 32, 32, 64, False), (8, 64, 64, 32, False), (12, 128, 128, 64, False), (4, 256, 256, 64, True),
    (12, 49, 49, 32, False), (4, 384, 384, 64, False), (12, 1, 128, 64, False), (12, 1, 512, 64, False),
    (8, 1, 256, 32, False), (16, 1, 64, 64, False), (12, 4, 256, 64, False),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Point:
    """A call to measure: `call` makes the library's, on tensors like `inputs`; `function` is what fusion is given."""

    kind: str
    sizes: MatrixSizes | AttentionSizes
    itemsize: int
    inputs: tuple[TensorSpec, ...]
    function: Function
    call: Callable[..., Callable[[], object]]

    @property
    def is_attention(self) -> bool:
        return isinstance(self.sizes, AttentionSizes)


def points() -> list[Point]:
    """Everything that is measured, the kinds mixed."""
    kinds: dict[str, list[Point]] = {}
    for point in itertools.chain(_products(), _convolutions(), _attentions()):
        kinds.setdefault(point.kind, []).append(point)
    turns = itertools.zip_longest(*kinds.values())
    return [point for turn in turns for point in turn if point is not None]


def kernel_of(point: Point) -> Kernel | None:
    """The kernel that computes a point; None if it is not one kernel."""
    with Recorder(None) as recorder:
        result = point.function(*(recorder.placeholder(f"x{n}", spec) for n, spec in enumerate(point.inputs)))
    recorder.output(result if isinstance(result, tuple) else (result,))
    traced = Traced(recorder.graph, GraphLevel.PURE, recorder.constants)
    steps = build_program(traced, "calibration", Options(products="own")).steps
    launches = [step.kernel for step in steps if isinstance(step, Launch) and isinstance(step.kernel, Kernel)]
    return launches[0] if len(launches) == len(steps) == 1 else None


def _products() -> Iterator[Point]:
    for along in (True, False):
        for cols, depth in _VECTOR_WEIGHTS:
            yield _product(torch.float32, (1, cols, depth), along)
        for rows, (cols, depth) in itertools.product(_ROWS, _WEIGHTS):
            yield _product(torch.float32, (rows, cols, depth), along)
        for rows, (cols, depth) in itertools.product(_ROWS_OF_LARGE[: 1 if along else 3], _LARGE_WEIGHTS):
            yield _product(torch.float32, (rows, cols, depth), along)
    for rows, (cols, depth) in itertools.product(_NARROW_ROWS, _NARROW_WEIGHTS):
        yield _product(torch.bfloat16, (rows, cols, depth), along=True)
    for cols, depth in _NARROW_LARGE:
        yield _product(torch.bfloat16, (1, cols, depth), along=True)


def _product(dtype: torch.dtype, sides: tuple[int, int, int], along: bool) -> Point:
    """x @ w, or with `along` x @ w.t(). Where products of `dtype` are computed in float32, the kernel reads narrow
    factors, and the library gets converted ones: conversions are counted elsewhere."""
    rows, cols, depth = sides
    widens = slow_products(dtype)
    wide = torch.float32 if widens else dtype

    def function(x: Any, w: Any) -> Any:
        x, w = (x.float(), w.float()) if widens else (x, w)
        return torch.mm(x, w.t() if along else w)

    def call(x: torch.Tensor, w: torch.Tensor) -> Callable[[], object]:
        left, right = x.to(wide), w.to(wide)
        right = right.t() if along else right
        out = torch.empty(rows, cols, dtype=wide)
        if along and given_transposed(sides, {wide}):
            left, right, out = right.t(), left.t(), out.t()
        return lambda: torch.mm(left, right, out=out)

    sizes = MatrixSizes(1, rows, cols, depth)
    specs = _specs(dtype, (rows, depth), (cols, depth) if along else (depth, cols))
    return Point(f"{name(dtype)} {kinds_of(sizes, wide, along)[0]}", sizes, wide.itemsize, specs, function, call)


def _convolutions() -> Iterator[Point]:
    """With a ReLU. Not where they are decomposed, or kernels for all."""
    for images, channels, filters, size, taps, stride in _CONVOLUTIONS if packs_filters() else ():
        weight = (filters, channels, taps, taps)
        padding = taps // 2 if taps > stride else 0
        out = (size + 2 * padding - taps) // stride + 1

        def function(x: Any, w: Any, stride: int = stride, padding: int = padding) -> Any:
            return torch.relu(conv2d(x, w, stride=stride, padding=padding))

        def call(x: torch.Tensor, w: torch.Tensor, function: Function = function) -> Callable[[], object]:
            return lambda: function(x, w)

        sizes = MatrixSizes(1, filters, images * out * out, channels * taps * taps)
        kind = f"float32 {convolution_kind(weight, (stride, stride), sizes.cols)}"
        yield Point(kind, sizes, 4, _specs(torch.float32, (images, channels, size, size), weight), function, call)


def _attentions() -> Iterator[Point]:
    for heads, queries, keys, width, causal in _ATTENTIONS:
        shapes = [(1, heads, count, width) for count in (queries, keys, keys)]
        sizes = AttentionSizes(heads, queries, keys, width, causal)

        def attend(q: Any, k: Any, v: Any, causal: bool = causal) -> Any:
            return _ATTEND(q, k, v, 0.0, causal)[0]

        def call(*tensors: torch.Tensor, function: Function = attend) -> Callable[[], object]:
            return lambda: function(*tensors)

        yield Point(attention_kind(sizes), sizes, 4, _specs(torch.float32, *shapes), attend, call)
        if queries < 8:
            continue

        def differentiate(*saved: Any, causal: bool = causal) -> Any:
            return _ATTEND_BACKWARD(*saved, 0.0, causal)

        def backward(*tensors: torch.Tensor, function: Function = differentiate) -> Callable[[], object]:
            return lambda: function(*tensors)

        sizes = replace(sizes, gradients=True)
        specs = _specs(torch.float32, shapes[0], *shapes, shapes[0], shapes[0][:3])
        yield Point(attention_kind(sizes), sizes, 4, specs, differentiate, backward)


def _specs(dtype: torch.dtype, *shapes: Sequence[int]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec.of(torch.empty(shape, dtype=dtype, device=HOST)) for shape in shapes)
