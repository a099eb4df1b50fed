"""The examples for several processes, as their users start them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("name", "graphs"), [("ddp", "1 graph"), ("fsdp2", "4 graphs")])
def test_two_processes_train_as_eager_does(name: str, graphs: str) -> None:
    paths = [str(ROOT / "src"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": ":".join(paths)}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, str(ROOT / "examples" / f"{name}.py")], capture_output=True, text=True, env=environment, timeout=240
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    losses = [re.search(r"loss (\S+) eagerly, (\S+) compiled", line) for line in lines]
    pairs = [(float(match[1]), float(match[2])) for match in losses if match is not None]
    assert len(pairs) == 3 and pairs[-1][0] < pairs[0][0] / 2
    assert all(abs(eager - compiled) < 1e-4 * max(1.0, eager) for eager, compiled in pairs)
    assert lines[-1] == f"2 processes, {graphs}, 0 breaks"
