"""How long PyTorch's library takes for a matrix product on the processor this runs on, in cycles of one thread.

    library_costs(MatrixSizes(1, 8, 1024, 1024), torch.float32, along=True)   →  ProductCosts of few rows
    library_costs(MatrixSizes(9, 256, 64, 64), torch.float32, along=False)    →  "… which nobody has measured"

Fitted to figures of `python -m benchmarks.products`: so many cycles a call, a multiplication, a byte of the factors and
a byte of the result. About kinds of products and processors that nobody has measured, nothing is said.
"""

import platform
from functools import cache

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.device.host_library import given_transposed


@dataclass(frozen=True, slots=True)
class MatrixSizes:
    """So many products of `rows` × `depth` and `depth` × `cols`."""

    batch: int
    rows: int
    cols: int
    depth: int

    @property
    def multiplications(self) -> int:
        return self.batch * self.rows * self.cols * self.depth

    def __str__(self) -> str:
        several = f"{self.batch} times " if self.batch != 1 else ""
        return f"{several}{self.rows}×{self.cols}×{self.depth}"


@dataclass(frozen=True, slots=True)
class ProductCosts:
    """Cycles of one thread, and what kernels take of what their schedules say."""

    call: float
    multiplication: float
    byte_read: float
    byte_written: float
    lateness: float
    least_saved: float = 5_000  # by a kernel of our own: the fit is off by some percent
    byte_after: float = 0.5  # of a result that is written and read again, which a kernel saves for what follows

    def cycles(self, sizes: MatrixSizes, itemsize: int) -> float:
        read = sizes.depth * (sizes.rows + sizes.cols) * itemsize
        written = sizes.rows * sizes.cols * itemsize
        each = sizes.rows * sizes.cols * sizes.depth * self.multiplication
        return self.call + sizes.batch * (each + read * self.byte_read + written * self.byte_written)


FEW = 8  # rows, or cols
_VECTOR_BYTES, _ROWS_BYTES = 1 << 21, 1 << 23  # of the right factor: with more, memory is what is waited for
# By what the processor is and the dtype, then the kind of the product: see `_kind`.
#
# A Neoverse N1 at 2.6 GHz, 240 products of 1 to 512 rows, 64 to 3,072 cols and 64 to 1,024 terms. Fits are off by 3 to
# 9 percent in the median; lateness is what 7 of 10 kernels are below.
_WITHOUT_BFLOAT = "x86_64 AVX512 without bfloat16"
_MEASURED: dict[tuple[str, torch.dtype], dict[str, ProductCosts]] = {
    ("aarch64 without SVE", torch.float32): {
        "vector": ProductCosts(8_300, 0.66, 0.0, 0.0, lateness=1.3),
        "vector along": ProductCosts(10_400, 0.478, 0.0, 1.74, lateness=0.65),
        "few rows": ProductCosts(10_800, 0.139, 0.202, 0.0, lateness=1.0),
        "few rows along": ProductCosts(10_800, 0.139, 0.33, 0.0, lateness=1.13),
        "many rows": ProductCosts(13_100, 0.15, 0.164, 0.096, lateness=1.04),
        "many rows swapped": ProductCosts(10_100, 0.137, 0.32, 0.231, lateness=0.94),
        "many rows along": ProductCosts(435_000, 0.149, 0.778, 0.193, lateness=1.09),
    },
    # Few rows by what is contiguous along columns run at 0.66 to 2.5 times the library's speed, many at 0.87 to 1.17.
    ("aarch64 without SVE", torch.float64): {"few rows along": ProductCosts(0, 0.323, 0.333, 0.93, lateness=1.25)},
    # A Cascade Lake Xeon at 2.5 GHz, 1 to 32 rows, 256 × 4,096 to 3,072 × 768: kernels take 0.15 to 0.7 of these.
    (_WITHOUT_BFLOAT, torch.bfloat16): {
        "vector along": ProductCosts(3_000, 0.36, 0.0, 0.0, lateness=0.8),
        "vector, much to read": ProductCosts(3_000, 0.36, 0.0, 0.0, lateness=0.8),
        "few rows, much to read": ProductCosts(3_000, 0.36, 0.0, 0.0, lateness=0.8),
        "few rows along": ProductCosts(3_000, 0.24, 0.18, 0.0, lateness=1.2),
        "many rows along": ProductCosts(3_000, 0.24, 0.18, 0.0, lateness=1.2),
        "many rows swapped": ProductCosts(3_000, 0.24, 0.18, 0.0, lateness=1.2),
    },
    (_WITHOUT_BFLOAT, torch.float16): {
        "vector along": ProductCosts(3_000, 0.41, 0.0, 0.0, lateness=0.8),
        "vector, much to read": ProductCosts(3_000, 0.41, 0.0, 0.0, lateness=0.8),
        "few rows, much to read": ProductCosts(3_000, 0.41, 0.0, 0.0, lateness=0.8),
        "few rows along": ProductCosts(3_000, 0.41, 0.0, 0.0, lateness=1.2),
        "many rows along": ProductCosts(3_000, 0.41, 0.0, 0.0, lateness=1.2),
        "many rows swapped": ProductCosts(3_000, 0.41, 0.0, 0.0, lateness=1.2),
    },
}
_AS_FAST = {("aarch64 without SVE", torch.float32)}


# Of GPUs: by the target, then the bytes of a weight and whether weights lie along the sum, the most rows that kernels
# multiply faster, and what the library takes, in cycles of the GPU. Weights of one byte are converted for it first.
_ON_GPUS: dict[str, dict[tuple[int, bool], tuple[int, ProductCosts]]] = {
    # An H200 at 1.755 GHz, `python -m benchmarks.gpu_products`.
    "sm_90": {
        (1, True): (4, ProductCosts(12_300, 0.0, 5 / 2_500, 0.0, 1.0, least_saved=0, byte_after=0.001)),
        (2, True): (8, ProductCosts(7_900, 0.0, 1 / 2_560, 0.0, 1.0, least_saved=0, byte_after=0.001)),
        (2, False): (1, ProductCosts(7_900, 0.0, 1 / 2_560, 0.0, 1.0, least_saved=0, byte_after=0.001)),
        (4, True): (4, ProductCosts(8_800, 0.0, 1 / 2_360, 0.0, 1.0, least_saved=0, byte_after=0.001)),
    },
}


def is_measured(target: str) -> bool:
    """Whether anything is known of a GPU's library."""
    return target in _ON_GPUS


def gpu_library_costs(target: str, sizes: MatrixSizes, dtype: torch.dtype, *, along: bool) -> ProductCosts | str:
    """`library_costs`, on a GPU."""
    known = _ON_GPUS.get(target)
    if known is None:
        return f"multiplies {sizes}, for which nothing was measured on such a GPU"
    most, costs = known.get((dtype.itemsize, along), (0, None))
    if costs is None or sizes.batch != 1 or min(sizes.rows, sizes.cols) > most:
        return f"multiplies {sizes}, which kernels do not do faster than the library"
    return costs


def library_costs(
    sizes: MatrixSizes, dtype: torch.dtype, *, along: bool, narrow: torch.dtype | None = None
) -> ProductCosts | str:
    """What products like this one take by the library, or why that is not told, after "it". `along`: both factors lie
    along what is summed over, as in x @ w.T. `narrow`: the dtype of the factors, if sums have a wider one."""
    known = _MEASURED.get((_processor(), narrow or dtype), _MEASURED.get((_processor(), dtype)))
    if known is None:
        return f"multiplies {sizes}, for which nothing was measured on such a processor"
    costs = known.get(_kind(sizes, dtype, along))
    return f"multiplies {sizes}, which nobody has measured" if costs is None else costs


def is_as_fast(dtype: torch.dtype) -> bool:
    """Whether at products of other kinds kernels were never seen to be slower than the library by much."""
    return (_processor(), dtype) in _AS_FAST


def _kind(sizes: MatrixSizes, dtype: torch.dtype, along: bool) -> str:
    if sizes.batch != 1 or sizes.cols <= FEW:
        return "several, or few columns"
    right = sizes.cols * sizes.depth * dtype.itemsize
    if sizes.rows == 1 and right > _VECTOR_BYTES:
        return "vector, much to read"
    if sizes.rows <= FEW and right > _ROWS_BYTES and not along:
        return "few rows, much to read"
    if sizes.rows <= FEW:
        kind = "vector" if sizes.rows == 1 else "few rows"
        return f"{kind} along" if along else kind
    if not along:
        return "many rows"
    swapped = given_transposed((sizes.rows, sizes.cols, sizes.depth), {dtype})
    return "many rows swapped" if swapped else "many rows along"


MANY_QUERIES = 64  # a block's: 1.4 to 2.2 times as fast as efficient attention, measured on an H200
FAST_ATTENTION_WIDTH = 128  # up to which that was measured
MOST_ATTENTION_WIDTH = 256  # of a key, for matrix units of a GPU: results of a row are in registers


@dataclass(frozen=True, slots=True)
class AttentionSizes:
    """So many attentions of `queries` to `keys`, each of `width` numbers, or their gradients."""

    count: int
    queries: int
    keys: int
    width: int
    causal: bool = False
    gradients: bool = False

    def __str__(self) -> str:
        what = "gradients of " * self.gradients + f"{self.count} times " * (self.count != 1) + "causal " * self.causal
        return f"{what}{self.queries}×{self.keys}×{self.width}"


# Cycles of a call, of a score, of a multiplication for it, and of a number that keys bring, by what the processor is:
# forward, and gradients. From below: the library was never faster at 12 heads of 64 by 128² to 512², of 32 by 49², of 8
# by 64², nor with one query by 128 to 512 keys. It computes what causality leaves out too.
_Costs = tuple[float, float, float, float]
_ATTENTION: dict[str, tuple[_Costs, _Costs]] = {
    "aarch64 without SVE": ((20_000, 9.0, 0.155, 1.1), (40_000, 12.0, 0.18, 0.0)),
}


def library_attention(sizes: AttentionSizes) -> float | str:
    """About how many cycles the library takes for attention in float32, or why that is not told, after "it"."""
    known = _ATTENTION.get(_processor())
    if known is None:
        return f"attends {sizes}, for which nothing was measured on such a processor"
    call, score, multiplication, number = known[sizes.gradients]
    keys, products = sizes.count * sizes.keys, 5 if sizes.gradients else 2
    each = score + products * sizes.width * multiplication
    return call + keys * (sizes.queries * each + 2 * sizes.width * number)


@cache
def _processor() -> str:
    """What processors that behave alike are called here."""
    machine, features = platform.machine(), torch.backends.cpu.get_cpu_capability()
    if machine == "x86_64" and features == "AVX512" and not torch.cpu._is_avx512_bf16_supported():
        return _WITHOUT_BFLOAT
    return f"{machine} without SVE" if machine == "aarch64" and features == "DEFAULT" else f"{machine} {features}"
