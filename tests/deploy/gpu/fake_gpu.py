"""A GPU for machines without one: a driver that runs grids on the host, by code made of the same kernels as the PTX.

    gpu = FakeGpu(artifact, folder)
    gpu.run(program, "model.smelt", …)     a C program, for which the driver is where libcuda.so.1 is looked for
    gpu.report()                           how many launches there were, and what was not given back
    gpu.install_library()                  a cuBLASLt beside the driver, which multiplies on the host
    gpu.library_report()                   how many products it computed, and what was not given back
"""

import json
import os
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import smelt
from smelt.codegen.ahead_of_time import write_grids
from smelt.codegen.llvm.compile import object_codes
from smelt.codegen.llvm.print_module import print_module
from smelt.deploy.records import kernel_places, unaligned_kernels
from smelt.device import register
from smelt.ir.artifact.machine import Machine
from tests.compiled_c import build
from tests.runtime.cuda.fake_cuda import build_driver
from tests.simt_host.warps import HostGenerator, describe_host_warps

WARP = 32
CHIP = "sm_80"  # whose kernels have no clusters, as the driver here has none
_NAME = "warps of 32 on the host"


@cache
def _target() -> Any:
    made = describe_host_warps(_NAME, WARP)
    register(_NAME, lambda: made, generator=HostGenerator, devices=("cpu",), on_request=True)
    return made


class FakeGpu:
    """The driver and the kernels of an artifact in a folder."""

    def __init__(self, artifact: smelt.Artifact, folder: Path) -> None:
        self.folder = folder
        build_driver(folder, "libcuda.so.1")
        parts = [part for part in artifact._parts if part.code.target.warp_size > 1]
        for number, part in enumerate(parts[: len(artifact.entries)], 1):
            self._kernels(part.machine, f"kernels.so{'' if number == 1 else number}")

    def _kernels(self, machine: Machine, file: str) -> None:
        kernels = list(kernel_places(machine).values())
        written = write_grids(kernels, _target(), unaligned_kernels(machine))
        (code,) = object_codes([print_module(written.modules[0])], _target())
        (self.folder / "kernels.o").write_bytes(code)
        lines = ["void (*fake_barrier)(void);", "void smelt_simt_barrier(void) { fake_barrier(); }"]
        counts: dict[str, int] = {}
        for kernel, entry in zip(kernels, written.entries, strict=True):
            counts |= {grid.name: len(kernel.parameters) for grid in entry.grids}
        lines += [f"const int {name}_buffers = {count};" for name, count in counts.items()]
        (self.folder / "counts.c").write_text("\n".join(lines) + "\n")
        build(str(self.folder / "counts.c"), self.folder, str(self.folder / "kernels.o"), name=file)

    def install_library(self) -> None:
        build("tests/deploy/gpu/fake_cublaslt.c", self.folder, name="libcublasLt.so.12")

    def library_report(self) -> dict[str, int]:
        found: dict[str, int] = json.loads((self.folder / "library.json").read_text())
        return found

    def environment(self, settings: Mapping[str, str]) -> dict[str, str]:
        return {
            "LD_LIBRARY_PATH": str(self.folder),
            "SMELT_FAKE_KERNELS": str(self.folder / "kernels.so"),
            "SMELT_FAKE_REPORT": str(self.folder / "report.json"),
            "SMELT_FAKE_LIBRARY_REPORT": str(self.folder / "library.json"),
            **settings,
        }

    def attempt(self, *command: object, **settings: str) -> subprocess.CompletedProcess[str]:
        given = list(map(str, command))
        return subprocess.run(
            given, check=False, capture_output=True, text=True, timeout=300, env=self.environment(settings)
        )

    def run(self, *command: object, **settings: str) -> str:
        """What a program prints."""
        done = self.attempt(*command, **settings)
        assert done.returncode == 0, (done.returncode, done.stderr)
        return done.stdout

    def python(self, code: str, **settings: str) -> str:
        """What a Python program prints, which sees the driver."""
        import sys

        known = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        return self.run(sys.executable, "-c", code, **known, **settings)

    def report(self) -> dict[str, int]:
        found: dict[str, int] = json.loads((self.folder / "report.json").read_text())
        return found

    def nothing_left(self) -> bool:
        """Whether all that was taken of the GPU was given back."""
        found = self.report()
        return found["launches"] > 0 and not any(found[name] for name in ("left", "modules", "streams", "contexts"))
