"""The GPU of this machine, with the face of `fake_gpu.FakeGpu`: the same tests run on either."""

import subprocess
import sys
from pathlib import Path

import smelt


class RealGpu:
    """Programs run with the driver that is installed. What they leave on the GPU ends with their process."""

    def __init__(self, artifact: smelt.Artifact, folder: Path) -> None:
        del artifact, folder  # what a fake needs to make kernels of

    def run(self, *command: object) -> str:
        """What a program prints."""
        done = subprocess.run(list(map(str, command)), check=False, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, (done.returncode, done.stderr)
        return done.stdout

    def python(self, code: str) -> str:
        """What a Python program prints."""
        return self.run(sys.executable, "-c", code)

    def nothing_left(self) -> bool:
        return True
