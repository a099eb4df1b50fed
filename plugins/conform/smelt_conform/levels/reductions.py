"""Level `reductions`: sums, extremes, norms and scans along each dimension, with lengths of incomplete vectors."""

import math
from typing import Any

import torch
import torch.nn.functional as F

from smelt_conform.bench import Bench, compared, numbers
from smelt_conform.check import Check, Level, Measurement
from smelt_conform.programs.functions import centered

_LENGTHS = (1, 3, 16, 17, 64, 65, 1000, 4097, 100_003)


def _rows(device: str) -> Any:
    return [numbers(device, 5, length).mean(-1) for length in _LENGTHS[:-1]]


def _columns(device: str) -> Any:
    return [numbers(device, length, 5).mean(0) for length in _LENGTHS[:-1]]


def _all(device: str) -> Any:
    return [numbers(device, length).abs().mean() for length in _LENGTHS]


def _middle(device: str) -> Any:
    x = numbers(device, 4, 33, 6)
    return x.sum(1), x.sum((0, 2)), x.sum((1, 2), keepdim=True), x.prod(1)


def _many(device: str) -> Any:
    """Sums of many equal numbers: sequential addition in float32 is inaccurate."""
    return torch.full((1 << 20,), 0.1).to(device).sum(), torch.ones(1 << 18).to(device).cumsum(0)[-1]


def _extremes(device: str) -> Any:
    x = numbers(device, 7, 100)
    return x.amax(1), x.amin(0), x.max(), x.max(1).values, x.argmin()


def _ties(device: str) -> Any:
    x = torch.tensor([[1.0, 3, 3, 2], [5, 5, 0, 5]]).to(device)
    return x.argmax(1), x.max(1).indices, x.argmin(0)


def _nan(device: str) -> Any:
    x = numbers(device, 6, 40)
    x[2, 17], x[4, 3] = math.nan, math.inf
    return x.amax(1), x.amin(1), x.sum(1), x.argmax(1)


def _integers(device: str) -> Any:
    x = torch.arange(-50, 1000, device=device)
    return x.sum(), x.amax(), (x > 10).sum(), (x > 2000).any(), (x > -51).all(), x.int().sum()


def _statistics(device: str) -> Any:
    x = numbers(device, 9, 50) + 100
    return x.var(1), x.std(), torch.linalg.vector_norm(x, dim=1), x.logsumexp(1)


def _softmax(device: str) -> Any:
    x = numbers(device, 9, 130) * 30
    return x.softmax(-1), x.log_softmax(-1), x.softmax(0)


def _norms(device: str) -> Any:
    x = numbers(device, 4, 6, 5, 5)
    rows = F.layer_norm(x.flatten(1), (150,), numbers(device, 150), numbers(device, 150, seed=1))
    return rows, F.group_norm(x, 3), F.batch_norm(x, None, None, training=True)


def _scans(device: str) -> Any:
    x = numbers(device, 5, 70)
    return x.cumsum(1), x.cumsum(0), (x / 2).cumprod(1)


def _fused(bench: Bench) -> None:
    """Reductions in one kernel with the operators before and after them."""

    def program(device: str) -> Any:
        called = bench.compiled_on(device, centered)
        return [called(numbers(device, 6, size)) for size in (9, 64, 300)]

    bench.agrees(program)


def _timed(bench: Bench) -> tuple[Any, int]:
    x = torch.ones(2048, 2048, device=bench.name)
    return lambda: x.sum(1), x.nbytes


def _timed_softmax(bench: Bench) -> tuple[Any, int]:
    x = torch.ones(2048, 2048, device=bench.name)
    return lambda: x.softmax(-1), 2 * x.nbytes


_WITHIN = "cooperation of the threads of a block: barriers, shared memory, Target.warp_size"
_WORKSPACE = "launch(): the workspace, and memory between launches"

LEVEL = Level(
    "reductions",
    "Reductions",
    (
        Check("rows", "means along rows of any length", _WITHIN, compared(_rows)),
        Check("columns", "means along columns of any length", _WORKSPACE, compared(_columns)),
        Check("all", "means of all elements", _WORKSPACE, compared(_all)),
        Check("middle", "sums along other dimensions", "launch(): the order of sizes", compared(_middle)),
        Check(
            "many",
            "sums of a million numbers are accurate",
            "compile(): additions may not be reordered",
            compared(_many),
        ),
        Check("extremes", "maxima and minima", _WITHIN, compared(_extremes)),
        Check("ties", "the first of several equal maxima", _WITHIN, compared(_ties)),
        Check("nan", "NaN propagates through maxima and minima", "compile(): no fast-math", compared(_nan)),
        Check(
            "integers",
            "sums of integers and counts",
            "compile(): 64-bit integers",
            compared(_integers, torch.int64, torch.bool),
        ),
        Check("statistics", "variances and norms", _WITHIN, compared(_statistics)),
        Check("softmax", "softmax of large numbers", _WITHIN, compared(_softmax)),
        Check("norms", "layer, group and batch norm", _WITHIN, compared(_norms)),
        Check("scans", "running sums and products", _WITHIN, compared(_scans)),
        Check("fused", "reductions fused with element-wise operators", _WITHIN, _fused),
    ),
    (Measurement("row sums", _timed), Measurement("softmax", _timed_softmax)),
)
