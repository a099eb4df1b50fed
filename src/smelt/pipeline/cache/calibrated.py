"""The costs that `smelt doctor --calibrate` measured on this machine, as a file of the disk cache.

    keep({1: HostCosts(…), 16: HostCosts(…)})       written under the versions of all code and the processor
    kept()                                          the same in a later process; {} without a calibration

Importing this module has `device.host_costs` ask here. Without the disk cache there are no calibrations.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import astuple, fields
from typing import Any

from smelt.device.host_costs import HostCosts, provide
from smelt.device.product_costs import AttentionCosts, ProductCosts
from smelt.ir.serialize import CannotStore
from smelt.pipeline.cache.keys import installation
from smelt.runtime.cache import CacheFile, CacheStore, open_store

MOST_THREADS = 1 << 16

_read: dict[CacheStore, Mapping[int, HostCosts]] = {}  # a file is read once by a process


def keep(measured: Mapping[int, HostCosts]) -> bool:
    """Write a calibration, for this process and later ones; whether that worked."""
    store = open_store()
    try:
        stored = store is not None and store.put(_key(), CacheFile({"costs": _plain(measured)}))
    except CannotStore:
        return False
    _read.clear()
    return stored


def kept() -> Mapping[int, HostCosts]:
    """The calibration of this machine, by numbers of threads."""
    store = open_store()
    if store is None:
        return {}
    if store not in _read:
        _read[store] = _load(store)
    return _read[store]


def _key() -> str:
    return "\n".join(("calibration", *installation()))


def _load(store: CacheStore) -> Mapping[int, HostCosts]:
    """What is stored; {} if there is nothing, or nothing that a calibration could have written."""
    try:
        stored = store.get(_key())
        return {} if stored is None else _costs(stored.values["costs"])
    except (CannotStore, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return {}


def _plain(measured: Mapping[int, HostCosts]) -> dict[str, Any]:
    return {
        str(threads): {
            "products": {kind: list(astuple(each)) for kind, each in costs.products.items()},
            "attention": {kind: list(astuple(each)) for kind, each in costs.attention.items()},
            "as_fast": sorted(costs.as_fast),
            "conversion": costs.conversion,
        }
        for threads, costs in measured.items()
    }


def _costs(plain: Mapping[str, Any]) -> Mapping[int, HostCosts]:
    by_threads = {}
    for threads, costs in plain.items():
        digest = hashlib.sha256(json.dumps(costs, sort_keys=True).encode()).hexdigest()[:16]
        products = {str(kind): _record(ProductCosts, each) for kind, each in costs["products"].items()}
        attention = {str(kind): _record(AttentionCosts, each) for kind, each in costs["attention"].items()}
        (conversion,) = _numbers([costs["conversion"]])
        by_threads[int(threads)] = HostCosts(products, attention, frozenset(costs["as_fast"]), conversion, digest)
    if any(not 1 <= threads <= MOST_THREADS for threads in by_threads):
        raise ValueError("no machine has so many threads")
    return by_threads


def _record(kind: Any, values: list[float]) -> Any:
    if len(values) != len(fields(kind)):
        raise ValueError("it is another version's")
    return kind(*_numbers(values))


def _numbers(values: list[float]) -> list[float]:
    numbers = [float(value) for value in values]
    if not all(math.isfinite(number) and number >= 0 for number in numbers):
        raise ValueError("a cost is a number from zero on")
    return numbers


provide(kept)
