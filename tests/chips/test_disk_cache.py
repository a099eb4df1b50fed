"""Kernels for a chip on disk: a second process builds none, and computes the same; damaged files count as absent."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.processes import run_new

_PROGRAM = """
import sys
sys.path.insert(0, "plugins/sim")
import json
import torch
import smelt
from smelt_sim import Sim
from tests.chips.models import Training

smelt.register_chip("sim", Sim(int(sys.argv[1])))
x = torch.arange(12.0, device="sim").view(3, 4)
found = [((x + 1).relu() @ x.t()).softmax(-1).sum().item(), x[torch.tensor([2, 0]).to("sim")].sum().item()]
for how in ("eager", "compiled", "step"):
    found += Training("sim", "mlp", how).losses(3).tolist()
names = ("kernels_built", "cache_hits", "cache_writes", "chip_fallbacks", "chip_launches")
print(json.dumps([[each.hex() for each in found], {name: smelt.counters[name] for name in names}]))
"""

_MEMORY = 1 << 28


def _ran(folder: Path, memory: int = _MEMORY, environment: Mapping[str, str | None] | None = None) -> tuple[Any, Any]:
    variables = {"SMELT_CACHE": None, "SMELT_CACHE_DIR": str(folder), **(environment or {})}
    done = run_new(_PROGRAM, arguments=[str(memory)], environment=variables)
    assert done.returncode == 0, done
    found, counts = json.loads(done.stdout)
    assert counts["chip_launches"] and not counts["chip_fallbacks"]
    return found, counts


def test_a_second_process_builds_nothing(tmp_path: Path) -> None:
    first, counts = _ran(tmp_path)
    assert counts["kernels_built"] and counts["cache_writes"]
    second, counts = _ran(tmp_path)
    assert second == first
    assert counts["kernels_built"] == 0 and counts["cache_writes"] == 0 and counts["cache_hits"], counts
    # Another chip, by what it says of itself.
    other, counts = _ran(tmp_path, _MEMORY // 2)
    assert other == first and counts["kernels_built"] and not counts["cache_hits"], counts

    for number, path in enumerate(sorted(tmp_path.iterdir())):
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2] if number % 2 else data[:-40] + bytes(40))
    third, counts = _ran(tmp_path)
    assert third == first and counts["kernels_built"] and not counts["cache_hits"], counts


def test_the_cache_may_be_off(tmp_path: Path) -> None:
    _, counts = _ran(tmp_path, environment={"SMELT_CACHE": "0"})
    assert counts["kernels_built"] and not counts["cache_writes"]
    assert not list(tmp_path.iterdir())
