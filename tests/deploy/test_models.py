"""Models of ten families, exported, and run by a C program in a process without Python; results as eager's."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import smelt
from tests.deploy.models import MODELS
from tests.deploy.programs import built, run

FEW = ("mlp", "gpt2", "resnet")
ALL = [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]


def _first(value: Any) -> torch.Tensor:
    while not isinstance(value, torch.Tensor):
        value = next(iter(value.values())) if isinstance(value, dict) else value[0]
    return value


def _converted(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def assert_accurate(got: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> None:
    """At most twice eager's error against float64, plus a few ulp."""
    allowed = 2 * (eager.double() - exact).abs().max() + 8 * torch.finfo(got.dtype).eps * exact.abs().max()
    assert got.shape == eager.shape and got.dtype == eager.dtype
    assert (got.double() - exact).abs().max() <= allowed


@pytest.mark.parametrize("name", ALL)
def test_a_model_runs_in_c_as_in_python(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, args, kwargs = MODELS[name]()
    artifact = smelt.export(model, args, kwargs, name=name)
    path = artifact.save(tmp_path / "model.smelt")
    with torch.no_grad():
        eager = _first(model(*args, **kwargs))
        wide = {key: _converted(value, torch.float64) for key, value in kwargs.items()}
        exact = _first(model.double()(*[_converted(each, torch.float64) for each in args], **wide))
    assert_accurate(_first(smelt.load(path)(*args, **kwargs)), eager, exact)

    program = built("examples/deploy/infer.c", tmp_path)
    inputs = []
    for place, leaf in enumerate([*args, *kwargs.values()]):
        inputs.append(tmp_path / f"{place}.bin")
        inputs[-1].write_bytes(leaf.contiguous().numpy().tobytes())
    run(program, path, tmp_path / "out.bin", *inputs)
    found = torch.from_numpy(numpy.fromfile(tmp_path / "out.bin", dtype=numpy.float32)).reshape(eager.shape)
    assert_accurate(found, eager, exact)


def test_programs_need_the_c_library_alone(tmp_path: Path) -> None:
    ldd = shutil.which("ldd")
    if ldd is None:
        pytest.skip("no ldd")
    program = built("examples/deploy/infer.c", tmp_path)
    shown = subprocess.run([ldd, str(program)], check=True, capture_output=True, text=True).stdout
    names = {line.split()[0].rpartition("/")[2].split(".")[0] for line in shown.splitlines()}
    assert names <= {"linux-vdso", "libm", "libc", "libpthread", "ld-linux-aarch64", "ld-linux-x86-64"}, shown
