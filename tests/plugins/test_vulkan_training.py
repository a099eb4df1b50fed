"""A model trained on a Vulkan device, by eager calls and compiled: the losses of the host. In a process of its own: one
has one device of this kind."""

import os
import subprocess
import sys
from pathlib import Path

from tests.codegen.gpu.on_vulkan import PLUGIN, needs_vulkan

ROOT = Path(__file__).parents[2]
PROGRAM = """
import torch
import smelt
from smelt_vulkan import VulkanChip

chip = VulkanChip()
smelt.register_chip("vk", chip)


def losses(device, how):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.GELU(), torch.nn.Linear(32, 4)
    )
    x, target = torch.randn(8, 16).to(device), torch.randint(0, 4, (8,)).to(device)
    model = model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = how(lambda x, target: torch.nn.functional.cross_entropy(model(x), target))
    found = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = step(x, target)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return torch.tensor(found)


want = losses("cpu", lambda function: function)
for how in (lambda function: function, smelt.compile):
    torch.testing.assert_close(losses("vk", how), want)
assert smelt.counters.get("chip_fallbacks", 0) == 0, smelt.counters
assert chip.counters["launches"] > 0
print("trained")
"""


def test_losses_are_those_of_the_host() -> None:
    needs_vulkan()
    path = os.pathsep.join([str(ROOT / "src"), str(PLUGIN), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "SMELT_CACHE": "0"}
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert found.stdout.strip() == "trained", found.stderr[-3000:]
