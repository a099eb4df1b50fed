"""What products, convolutions and attention take on this processor: by PyTorch's library, and by kernels.

    library_costs(MatrixSizes(1, 8, 1024, 1024), torch.float32, along=True)   →  ProductCosts of few rows
    library_costs(MatrixSizes(9, 256, 64, 64), torch.float32, along=False)    →  "… which nobody has measured"

The figures are those that `smelt doctor --calibrate` measured on this machine. Without them, the defaults below count:
figures of another machine of the same kind, or none, and then products are the library's unless it would need its
operands converted.
"""

import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cache

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.device.host_library import given_transposed
from smelt.device.product_costs import AttentionCosts, AttentionSizes, MatrixSizes, ProductCosts

CYCLE_SECONDS = 0.4e-9  # the unit in which measured times are compared with estimates: a cycle at 2.5 GHz
FEW, SOME = 8, 64  # rows; FEW of columns, too
_FEW_QUERIES = 4
_FEW_PIXELS = 160  # of an image, for which kernels need not pack filters
_VECTOR_BYTES, _ROWS_BYTES = 1 << 21, 1 << 23  # of the right factor: with more, memory is what is waited for


@dataclass(frozen=True, slots=True)
class HostCosts:
    """Costs by kind: "float32 few rows along", "float32 convolution 1×1"; of attention "few queries" or "gradients"."""

    products: Mapping[str, ProductCosts] = field(default_factory=dict)
    attention: Mapping[str, AttentionCosts] = field(default_factory=dict)
    as_fast: frozenset[str] = frozenset()  # dtypes whose products of no known kind are about as fast by kernels
    conversion: float = 1.0  # cycles to convert an element to a wider float in memory, and to read it there
    digest: str = ""  # of a calibration; empty for defaults


_WITHOUT_BFLOAT = "x86_64 AVX512 without bfloat16"
_ONE_PASS = ("vector along", "vector, much to read", "few rows, much to read")
_ROWS_ALONG = ("few rows along", "many rows along")
# By what the processor is. A Neoverse N1 at 2.6 GHz, 240 products of 1 to 512 rows, 64 to 3,072 cols and 64 to 1,024
# terms: fits are off by 3 to 9 percent in the median; lateness is what 7 of 10 kernels are below. In float64, few rows
# by what is contiguous along columns run at 0.66 to 2.5 times the library's speed, many at 0.87 to 1.17. Conversion was
# measured at 1.2. Attention from below: the library was never faster at 12 heads of 64 by 128² to 512², of 32 by 49²,
# of 8 by 64², nor with one query by 128 to 512 keys.
_DEFAULTS: dict[str, HostCosts] = {
    "aarch64 without SVE": HostCosts(
        {
            "float32 vector": ProductCosts(8_300, 0.66, 0.0, 0.0, lateness=1.3),
            "float32 vector along": ProductCosts(10_400, 0.478, 0.0, 1.74, lateness=0.65),
            "float32 few rows": ProductCosts(10_800, 0.139, 0.202, 0.0, lateness=1.0),
            "float32 few rows along": ProductCosts(10_800, 0.139, 0.33, 0.0, lateness=1.13),
            "float32 many rows": ProductCosts(13_100, 0.15, 0.164, 0.096, lateness=1.04),
            "float32 many rows swapped": ProductCosts(10_100, 0.137, 0.32, 0.231, lateness=0.94),
            "float32 many rows along": ProductCosts(435_000, 0.149, 0.778, 0.193, lateness=1.09),
            "float64 few rows along": ProductCosts(0, 0.323, 0.333, 0.93, lateness=1.25),
        },
        {
            **dict.fromkeys(("few queries", "many queries"), AttentionCosts(20_000, 9.0, 0.155, 1.1)),
            "gradients": AttentionCosts(40_000, 12.0, 0.18, 0.0),
        },
        frozenset({"float32"}),
    ),
    # A Cascade Lake Xeon at 2.5 GHz, 1 to 32 rows, 256 × 4,096 to 3,072 × 768: kernels take 0.15 to 0.7 of these.
    _WITHOUT_BFLOAT: HostCosts(
        {
            **{f"bfloat16 {kind}": ProductCosts(3_000, 0.36, 0.0, 0.0, lateness=0.8) for kind in _ONE_PASS},
            **{f"bfloat16 {kind}": ProductCosts(3_000, 0.24, 0.18, 0.0, lateness=1.2) for kind in _ROWS_ALONG},
            **{f"float16 {kind}": ProductCosts(3_000, 0.41, 0.0, 0.0, lateness=0.8) for kind in _ONE_PASS},
            **{f"float16 {kind}": ProductCosts(3_000, 0.41, 0.0, 0.0, lateness=1.2) for kind in _ROWS_ALONG},
        }
    ),
}

_measured: Callable[[], Mapping[int, HostCosts]] = dict


def provide(measured: Callable[[], Mapping[int, HostCosts]]) -> None:
    """Have `measured` asked for the figures of this machine, by how many threads they are for."""
    global _measured
    _measured = measured


def in_use() -> HostCosts:
    """The figures to choose by: those for the number of threads in use, or for the number closest to it."""
    measured, threads = _measured(), torch.get_num_threads()
    if not measured:
        return defaults()
    return measured[min(measured, key=lambda count: (abs(math.log(count / threads)), count))]


def defaults() -> HostCosts:
    """The figures of machines that were not calibrated."""
    return _DEFAULTS.get(_processor(), HostCosts())


def library_costs(
    sizes: MatrixSizes, dtype: torch.dtype, *, along: bool, narrow: torch.dtype | None = None
) -> ProductCosts | str:
    """What products like this one take, or why that is not told, after "it". `along`: both factors lie along what is
    summed over, as in x @ w.T. `narrow`: the dtype of the factors, if sums have a wider one."""
    costs = in_use().products
    known = [each for each in dict.fromkeys((narrow or dtype, dtype)) if any(k.startswith(name(each)) for k in costs)]
    if not known:
        return f"multiplies {sizes}, for which nothing was measured on such a processor"
    kinds = (f"{name(known[0])} {kind}" for kind in kinds_of(sizes, dtype, along))
    return next((costs[kind] for kind in kinds if kind in costs), f"multiplies {sizes}, which nobody has measured")


def convolution_costs(
    filters: Sequence[int], stride: Sequence[int], pixels: int, dtype: torch.dtype
) -> ProductCosts | None:
    """What convolutions of a contiguous image take with the pointwise operations that follow, if that was measured."""
    return in_use().products.get(f"{name(dtype)} {convolution_kind(filters, stride, pixels)}")


def is_as_fast(dtype: torch.dtype) -> bool:
    """Whether at products of other kinds kernels were never seen to be slower than the library by much."""
    return name(dtype) in in_use().as_fast


def library_attention(sizes: AttentionSizes) -> AttentionCosts | str:
    """What attention in float32 takes, or why that is not told, after "it"."""
    known = in_use().attention.get(attention_kind(sizes))
    return f"attends {sizes}, for which nothing was measured on such a processor" if known is None else known


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def kinds_of(sizes: MatrixSizes, dtype: torch.dtype, along: bool) -> tuple[str, ...]:
    """The kind of a product, and those whose costs serve where its own are not known."""
    if sizes.batch != 1 or sizes.cols <= FEW:
        return ("several, or few columns",)
    right, end = sizes.cols * sizes.depth * dtype.itemsize, " along" if along else ""
    if sizes.rows == 1:
        return ("vector, much to read",) if right > _VECTOR_BYTES else (f"vector{end}",)
    if sizes.rows <= FEW:
        return ("few rows, much to read",) if right > _ROWS_BYTES and not along else (f"few rows{end}",)
    swapped = along and given_transposed((sizes.rows, sizes.cols, sizes.depth), {dtype})
    many = "many rows swapped" if swapped else f"many rows{end}"
    return (f"some rows{end}", many) if sizes.rows <= SOME and not swapped else (many,)


def convolution_kind(filters: Sequence[int], stride: Sequence[int], pixels: int) -> str:
    """The kind of a convolution by its filters, outputs × channels × taps, and by how many pixels they have."""
    outputs, channels, *taps = filters
    if max(stride) > 1 and all(size <= step for size, step in zip(taps, stride, strict=True)):
        return "convolution without overlap"
    end = ", few pixels" if pixels <= _FEW_PIXELS else ""
    if math.prod(taps) == 1:
        return f"convolution 1×1, more filters{end}" if outputs > channels else f"convolution 1×1{end}"
    return "convolution of few channels" if min(outputs, channels) < 64 else f"convolution of taps{end}"


def attention_kind(sizes: AttentionSizes) -> str:
    """The kind of an attention: its gradients, or how many queries share the keys."""
    if sizes.gradients:
        return "gradients"
    return "few queries" if sizes.queries <= _FEW_QUERIES else "many queries"


@cache
def _processor() -> str:
    """What processors that behave alike are called here."""
    machine, features = platform.machine(), torch.backends.cpu.get_cpu_capability()
    if machine == "x86_64" and features == "AVX512" and not torch.cpu._is_avx512_bf16_supported():
        return _WITHOUT_BFLOAT
    return f"{machine} without SVE" if machine == "aarch64" and features == "DEFAULT" else f"{machine} {features}"
