"""libsmelt itself on processors that this machine is not: built by a cross compiler, run by qemu, one artifact for all.

A cross compiler is `x86_64-linux-gnu-gcc` and its like, or zig (`zig cc`, in PATH or as the package `ziglang`). AVX-512
is not run: qemu emulates none.
"""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from tests.codegen.foreign import runner
from tests.native.deploy.building import CSRC, HERE, INCLUDE, sources, zig
from tests.native.deploy.conftest import Said
from tests.native.deploy.test_runtime import tensor, values

TARGETS = ("x86-64-v3", "x86-64-v2", "riscv64-v", "riscv64", "aarch64")
CHOSEN = {"x86-64-v3": "avx2", "x86-64-v2": "", "riscv64-v": " v", "riscv64": ""}
"""What the target that is chosen on each has to name."""


def cross_compiler(architecture: str) -> list[str]:
    gcc = shutil.which(f"{architecture}-linux-gnu-gcc")
    if gcc is not None:
        return [gcc, "-static"]
    return [*zig(), "cc", "-target", f"{architecture}-linux-musl", "-static"]


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {"": tmp_path_factory.mktemp("drivers")}


def driven(drivers: dict[str, Path], target: str, path: Path, *commands: str) -> Said:
    """What the driver of the runtime's own tests says there."""
    emulator = runner(target)
    architecture = "riscv64" if target.startswith("riscv64") else "x86_64"
    if architecture not in drivers:
        made = drivers[""] / architecture
        files = [str(HERE / "driver.c"), *sources()]
        flags = ["-std=c11", "-O1", f"-I{CSRC}", f"-I{INCLUDE}"]
        command = [*cross_compiler(architecture), *flags, *files, "-o", str(made), "-lm", "-lpthread", "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        drivers[architecture] = made
    done = subprocess.run(
        [*emulator, drivers[architecture], path, "threads=2", *commands],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-1000:]
    return Said(done.stdout.splitlines())


class Everything(torch.nn.Module):
    """Products, a norm, a loop that data ends, and state."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 4)
        )
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> Any:
        y = self.layers(x).softmax(-1)
        while y.sum() > 1:
            y = y * 0.75
        self.total += y.sum(0)
        return y, self.total * 1.0


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    made = smelt.export(Everything().eval(), (torch.randn(3, 16),), targets=TARGETS, name="everything")
    return made.save(tmp_path_factory.mktemp("artifact") / "everything.smelt")


@pytest.mark.parametrize("target", CHOSEN)
def test_the_runtime_runs_there(target: str, artifact: Path, drivers: dict[str, Path]) -> None:
    torch.manual_seed(0)
    model = Everything().eval()
    given = [torch.randn(3, 16), 5 * torch.randn(3, 16)]
    calls = [word for x in given for word in ("run", tensor(x))]
    told = driven(drivers, target, artifact, "info").lines
    shown = next(line for line in told if line.startswith("model everything for "))
    assert CHOSEN[target] in shown.partition(":")[0]
    said = driven(drivers, target, artifact, *calls)
    assert said.status("run") == [0, 0]
    for place, x in enumerate(given):
        with torch.no_grad():
            want = model(x)
        names = dict.fromkeys(line.split(" ")[1] for line in said.lines if line.startswith("output "))
        for name, each in zip(names, want, strict=True):
            torch.testing.assert_close(values(said.outputs(name)[place]), each)


@pytest.mark.parametrize("target", ["riscv64", "riscv64-v", "x86-64-v2", "x86-64-v4"])
@pytest.mark.parametrize("sizes", [(4, 2), (9, 7), (16, 32)])
def test_layers_are_exported_for_others(target: str, sizes: tuple[int, int]) -> None:
    model = torch.nn.Linear(*sizes).eval()
    sizes_of: list[dict[str, Any]] = [{}, {"input": {0: "rows"}}]
    for dynamic in sizes_of:
        made = smelt.export(model, (torch.randn(3, sizes[0]),), dynamic=dynamic, targets=(target,))
        assert len(made.artifact_file.targets) == 1
