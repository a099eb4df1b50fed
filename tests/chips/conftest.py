"""The simulated chip, registered once for the tests of this folder; what one leaves in its memory fails it."""

import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import smelt

sys.path.insert(0, str(Path(__file__).parents[2] / "plugins" / "sim"))
sys.path.insert(0, str(Path(__file__).parents[2] / "plugins" / "conform"))

from smelt_sim import Sim


@pytest.fixture(scope="session")
def registered() -> Any:
    sim = Sim()
    smelt.register_chip("sim", sim)
    return sim


@pytest.fixture(autouse=True)
def sim(registered: Any) -> Iterator[Any]:
    from smelt.chips import device_named

    yield registered
    gc.collect()
    device_named("sim").release()
    left = device_named("sim").allocations
    if left:  # arenas of what a test has compiled
        smelt.reset()
        gc.collect()
        left = device_named("sim").allocations
    assert left == 0, f"{left} allocations were not given back"
