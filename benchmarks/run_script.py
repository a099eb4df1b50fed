"""What `smelt run` makes of an unedited script: the same script by `python` and by `smelt run`, interleaved.

    python -m benchmarks.run_script [--rounds 3] [--steps 60]

The script below knows nothing of smelt: a model of normalisations, gates and narrow layers, a loss, an optimizer, and a
loop. It prints its last loss, which must be the same, and the median processor time of a step on one thread. What the
whole process took is beside it: compiling is in it, with an empty cache.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCRIPT = """
import json, statistics, sys, time
import torch
from torch import nn
from torch.nn import functional as F

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(width, width)

    def forward(self, x):
        a, b = self.up(self.norm(x)).chunk(2, -1)
        return x + self.down(F.gelu(a) * torch.sigmoid(b) + torch.tanh(a * b))

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(*(Block(64) for _ in range(4)), nn.LayerNorm(64), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
x, y = torch.randn(2048, 64), torch.randint(0, 10, (2048,))
times = []
for _ in range(int(sys.argv[1])):
    began = time.process_time()
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    times.append(time.process_time() - began)
print(json.dumps({"loss": loss.item(), "step": statistics.median(times[len(times) // 3:])}))
"""


def run(script: Path, steps: int, by_smelt: bool) -> dict[str, float]:
    command = [sys.executable, *(("-m", "smelt.cli", "run", "--quiet") if by_smelt else ()), str(script), str(steps)]
    began = time.perf_counter()
    ended = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, "SMELT_CACHE": "0"}
    )
    found: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    found["process"] = time.perf_counter() - began
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    given = parser.parse_args()
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(SCRIPT)
        for _ in range(given.rounds):
            plain, compiled = (run(script, given.steps, by_smelt) for by_smelt in (False, True))
            if abs(plain["loss"] - compiled["loss"]) > 1e-4 * abs(plain["loss"]):
                sys.exit(f"the losses differ: {plain['loss']} by python, {compiled['loss']} by smelt run")
            ratios.append(plain["step"] / compiled["step"])
            print(
                f"python {plain['step'] * 1e3:.1f} ms a step, {plain['process']:.1f} s in all; "
                f"smelt run {compiled['step'] * 1e3:.1f} ms, {compiled['process']:.1f} s; loss {compiled['loss']:.5f}"
            )
    print(f"{statistics.median(ratios):.2f} times the speed of python, a step; the script was not touched")


if __name__ == "__main__":
    main()
