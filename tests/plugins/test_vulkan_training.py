"""Models in training on a Vulkan device, by eager calls, compiled and lazily: the losses of the host, and what is
launched and copied, by the device's own counters. In processes of their own: one has one device of this kind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chips.models import MODELS
from tests.codegen.gpu.on_vulkan import PLUGIN, needs_vulkan

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
import torch
import smelt
from smelt.chips import fallbacks
from smelt.ir.program import Launch
from smelt.runtime.program.launch import Executable
from smelt_vulkan import VulkanChip
from tests.chips.models import HOW, Training, far_off

chip = VulkanChip()
smelt.register_chip("vk", chip)
name = sys.argv[1]
for how in HOW:
    training = Training("vk", name, how)
    wrong = far_off(training.losses(3), name)
    assert wrong is None, (how, wrong)
assert not fallbacks("vk"), fallbacks("vk")

# The whole step is compiled by now. Its kernels, and those of the host's program:
batch = training.batch()
before = dict(chip.counters)
training.step(batch)
used = {each: count - before[each] for each, count in chip.counters.items()}
programs, compiled = [], []
make = Executable.__init__


def noted(self, program, *rest, **more):
    programs.append(program)
    make(self, program, *rest, **more)


Executable.__init__ = noted
host = Training("cpu", name, "step")
for _ in range(3):  # the first step makes the optimizer's state
    known = len(programs)
    host.step(host.batch())
    compiled = programs[known:] or compiled
kernels = sum(isinstance(step, Launch) for program in compiled for step in program.steps)
assert kernels and used["launches"] <= 1.2 * kernels, (used, kernels)
assert used["copies_in"] == 0, used
assert used["copies_out"] <= 1, used  # whether all indices were in range: of labels, tokens, positions

if name == "mlp":  # with dropout: random numbers are the host's
    from tests.chips.test_training import train, with_dropout

    wanted = torch.tensor(train("cpu", with_dropout))
    for how in ({}, {"compiled": True}, {"whole": True}):
        found = [torch.tensor(train("vk", with_dropout, **how)) for _ in range(2)]
        assert torch.equal(*found), how
        torch.testing.assert_close(found[0], wanted, rtol=1e-4, atol=1e-5)
    assert not fallbacks("vk"), fallbacks("vk")

smelt.lazy.enable(on="vk", background=False)
wrong = far_off(Training("vk", name).losses(3), name)
assert wrong is None, ("lazily", wrong)
told = smelt.lazy.explain()
assert told.compile_count and not told.fallbacks and not told.not_compiled, told
assert not fallbacks("vk"), fallbacks("vk")
print("trained", used, kernels)
"""


@pytest.mark.parametrize("name", MODELS)
def test_losses_are_those_of_the_host(name: str) -> None:
    needs_vulkan()
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), str(PLUGIN), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "SMELT_CACHE": "0"}
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, name], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert found.stdout.startswith("trained"), found.stderr[-3000:]
