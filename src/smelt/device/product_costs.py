"""What a product or an attention takes by a library and by kernels, in cycles of one thread, by its sizes.

    ProductCosts(8_300, 0.66, 0.0, 0.0, lateness=1.3).cycles(MatrixSizes(1, 1, 256, 1024), 4)   →   181307.2

So many cycles a call, a multiplication, a byte of the factors and a byte of the result. The costs of the host's library
are in `host_costs`, those of GPUs here. About what nobody has measured, nothing is said.
"""

import torch

from smelt.base.fast_dataclass import dataclass


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


LAUNCH = 1_500.0  # cycles that a kernel takes to be called


@dataclass(frozen=True, slots=True)
class ProductCosts:
    """What the library takes for a product, and kernels beside what their schedules estimate: cycles of one thread."""

    call: float
    multiplication: float
    byte_read: float
    byte_written: float
    lateness: float  # cycles of a kernel for each that its schedule estimates
    least_saved: float = 5_000  # by a kernel of our own: the fit is off by some percent
    byte_after: float = 0.5  # of a result that is written and read again, which a kernel saves for what follows
    launch: float = LAUNCH

    def cycles(self, sizes: MatrixSizes, itemsize: int) -> float:
        """Of the library."""
        return sum(cost * term for cost, term in zip(self.of_library, self.terms(sizes, itemsize), strict=True))

    @property
    def of_library(self) -> tuple[float, float, float, float]:
        return self.call, self.multiplication, self.byte_read, self.byte_written

    @staticmethod
    def terms(sizes: MatrixSizes, itemsize: int) -> tuple[float, float, float, float]:
        """What the costs of the library are multiplied with: calls, multiplications, bytes read and written."""
        read = sizes.batch * sizes.depth * (sizes.rows + sizes.cols) * itemsize
        written = sizes.batch * sizes.rows * sizes.cols * itemsize
        return 1.0, float(sizes.multiplications), float(read), float(written)


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

    @property
    def multiplications(self) -> int:
        return self.count * self.queries * self.keys * self.width * (5 if self.gradients else 2)

    def __str__(self) -> str:
        what = "gradients of " * self.gradients + f"{self.count} times " * (self.count != 1) + "causal " * self.causal
        return f"{what}{self.queries}×{self.keys}×{self.width}"


@dataclass(frozen=True, slots=True)
class AttentionCosts:
    """Cycles of a call, of a score, of a multiplication for it, and of a number that keys bring."""

    call: float
    score: float
    multiplication: float
    number: float
    launch: float = LAUNCH
    lateness: float = 1.0

    def cycles(self, sizes: AttentionSizes) -> float:
        """Scores that causality leaves out count, too."""
        return sum(cost * term for cost, term in zip(self.of_library, self.terms(sizes), strict=True))

    @property
    def of_library(self) -> tuple[float, float, float, float]:
        return self.call, self.score, self.multiplication, self.number

    @staticmethod
    def terms(sizes: AttentionSizes) -> tuple[float, float, float, float]:
        """What the costs of the library are multiplied with."""
        keys = sizes.count * sizes.keys
        return 1.0, float(keys * sizes.queries), float(sizes.multiplications), float(keys * 2 * sizes.width)
