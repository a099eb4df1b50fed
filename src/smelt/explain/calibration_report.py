"""What `smelt doctor --calibrate` prints: a line for each kind of call and number of threads.

threads kind                                                library  kernels kernels are faster  chosen
      1 float32 few rows along                                 32.2     46.8        1.05 … 1.88  4 of 6
"""

from collections.abc import Iterator

from smelt.device.host_costs import CYCLE_SECONDS, HostCosts
from smelt.pipeline.calibration.calibrate import Calibration
from smelt.pipeline.calibration.fit import is_chosen
from smelt.pipeline.calibration.measure import MeasuredPoint


def report(calibration: Calibration) -> Iterator[str]:
    """The lines."""
    kinds: dict[tuple[int, str], list[MeasuredPoint]] = {}
    for each in calibration.measured:
        kinds.setdefault((each.threads, each.point.kind), []).append(each)
    yield f"{'threads':7} {'kind':50} {'library':>8} {'kernels':>8} {'kernels are faster':>18}  chosen"
    for (threads, kind), these in sorted(kinds.items()):
        costs = calibration.costs.get(threads, HostCosts())
        known = costs.attention.get(kind) or costs.products.get(kind)
        chosen = sum(known is not None and is_chosen(each, known) for each in these)
        ratios = [each.library / each.kernel for each in these]
        rates = [_gflops(these, [getattr(each, by) for each in these]) for by in ("library", "kernel")]
        speed = f"{min(ratios):.2f} … {max(ratios):.2f}"
        yield f"{threads:7} {kind:50} {rates[0]:8.1f} {rates[1]:8.1f} {speed:>18}  {chosen} of {len(these)}"
    yield f"{len(calibration.measured)} measurements in {calibration.seconds:.1f} s; rates in GFLOP/s"
    for threads in sorted({threads for threads, _ in kinds} - {*calibration.costs}):
        yield f"too few measurements with {threads} threads, which are not used: do other programs use the processor?"
    if not calibration.is_kept:
        yield "not kept, because the disk cache is off or cannot be written: nothing is chosen by these figures"


def _gflops(these: list[MeasuredPoint], cycles: list[float]) -> float:
    flops = sum(2 * each.point.sizes.multiplications for each in these)
    return flops / (sum(cycles) * CYCLE_SECONDS) / 1e9
