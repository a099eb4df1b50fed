"""A calibration: measures, fits and keeps the costs of this machine.

    calibrate()  →  Calibration({1: HostCosts(…), 16: HostCosts(…)}, points=121, seconds=8.1)
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.device.host_costs import HostCosts, defaults
from smelt.device.product_costs import AttentionCosts, ProductCosts
from smelt.pipeline.cache.calibrated import keep
from smelt.pipeline.calibration.fit import LEAST_POINTS, attention_costs, product_costs
from smelt.pipeline.calibration.measure import MeasuredPoint, cycles_to_pass, measured
from smelt.pipeline.calibration.points import points

SECONDS = 9.0  # on a machine that does nothing else


@dataclass(frozen=True, slots=True)
class Calibration:
    """The costs by numbers of threads, and whether later processes have them."""

    costs: Mapping[int, HostCosts]
    measured: tuple[MeasuredPoint, ...]
    seconds: float
    is_kept: bool


def calibrate(seconds: float = SECONDS) -> Calibration:
    """Measure with one thread and with as many as PyTorch has. Of a number of threads with which less than half of the
    points could be measured, as on a busy machine, nothing is kept."""
    began = time.monotonic()
    threads, wanted = sorted({1, torch.get_num_threads()}), points()
    with torch.no_grad():
        times = tuple(measured(wanted, threads, seconds))
        passed = {count: cycles_to_pass(count) for count in threads}
    costs = {
        count: costs_of([each for each in times if each.threads == count], *passed[count])
        for count in threads
        if 2 * sum(each.threads == count for each in times) >= len(wanted)
    }
    return Calibration(costs, times, time.monotonic() - began, keep(costs))


def costs_of(times: Sequence[MeasuredPoint], byte_after: float, conversion: float) -> HostCosts:
    """The costs that points of one number of threads give. Kinds with too few points keep the defaults."""
    kinds: dict[str, list[MeasuredPoint]] = {}
    for each in times:
        kinds.setdefault(each.point.kind, []).append(each)
    products: dict[str, ProductCosts] = {}
    attention: dict[str, AttentionCosts] = {}
    for kind, these in kinds.items():
        if len(these) < LEAST_POINTS:
            continue
        if these[0].point.is_attention:
            attention[kind] = attention_costs(these)
        else:
            products[kind] = product_costs(these, byte_after)
    known = defaults()
    return replace(
        known,
        products={**known.products, **products},
        attention={**known.attention, **attention},
        conversion=conversion,
    )
