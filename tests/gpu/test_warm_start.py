"""A second process with the first one's disk cache generates and assembles nothing."""

import json
from pathlib import Path
from typing import Any

from tests import processes

_SCRIPT = """
import json
import torch, smelt
import torch.nn.functional as F
from smelt.runtime.cuda import image
assembled = []
assemble = image.assemble
image.assemble = lambda *given: assembled.append(1) or assemble(*given)
torch.set_default_device("cuda")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.LayerNorm(64), torch.nn.GELU(), torch.nn.Linear(64, 8))
compiled = smelt.compile(model, options={"fallback": False})
losses = []
for number in range(3):
    x = torch.randn(16, 32)
    model.zero_grad()
    loss = compiled(x).square().mean()
    loss.backward()
    losses.append([loss.item(), model[0].weight.grad.sum().item()])
counters = {name: smelt.counters[name] for name in ("kernels_built", "cache_hits", "graphs")}
print(json.dumps({"losses": losses, "assembled": len(assembled), **counters}))
"""


def started(folder: Path) -> dict[str, Any]:
    done = processes.run_new(_SCRIPT, environment={"SMELT_CACHE": None, "SMELT_CACHE_DIR": str(folder)})
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_warm_start_builds_nothing(tmp_path: Path) -> None:
    cold, warm = started(tmp_path), started(tmp_path)
    assert cold["kernels_built"] > 0 and cold["assembled"] > 0, cold
    assert warm["kernels_built"] == 0 and warm["assembled"] == 0, f"{warm}, and at first {cold}"
    assert warm["cache_hits"] > 0 and warm["losses"] == cold["losses"], f"{warm}, and at first {cold}"


def test_a_damaged_cache_is_made_again(tmp_path: Path) -> None:
    cold = started(tmp_path)
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.stat().st_size > 100:
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 0xFF
            path.write_bytes(bytes(data))
    assert started(tmp_path)["losses"] == cold["losses"]
