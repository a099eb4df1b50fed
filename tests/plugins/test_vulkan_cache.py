"""Kernels for a Vulkan device on disk: a second process translates none to SPIR-V, and computes the same."""

import json
from pathlib import Path

from tests.codegen.gpu.on_vulkan import needs_vulkan
from tests.processes import run_new

_PROGRAM = """
import sys
sys.path.insert(0, "plugins/vulkan")
import json
import torch
import smelt
from smelt_vulkan import VulkanChip

smelt.register_chip("vk", VulkanChip())
x = torch.arange(12.0, device="vk").view(3, 4)
found = [((x + 1).relu() @ x.t()).softmax(-1).sum().item(), x[torch.tensor([2, 0]).to("vk")].sum().item()]
compiled = smelt.compile(lambda t: (t.sin() * 2).sum(0))
found += compiled(x).tolist()
names = ("kernels_built", "cache_hits", "cache_writes", "chip_launches")
print(json.dumps([found, {name: smelt.counters[name] for name in names}]))
"""


def test_a_second_process_builds_nothing(tmp_path: Path) -> None:
    needs_vulkan()
    environment = {"SMELT_CACHE": None, "SMELT_CACHE_DIR": str(tmp_path)}
    runs = []
    for _ in range(2):
        done = run_new(_PROGRAM, environment=environment)
        assert done.returncode == 0, done
        runs.append(json.loads(done.stdout))
    (first, built), (second, stored) = runs
    assert first == second and built["chip_launches"] == stored["chip_launches"] > 0
    assert built["kernels_built"] and built["cache_writes"]
    assert stored["kernels_built"] == 0 and stored["cache_hits"], stored
