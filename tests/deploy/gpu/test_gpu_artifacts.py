"""Artifacts for GPUs, run by C programs through a driver that runs kernels on the host, and on a GPU that is there."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
import torch

import smelt
from tests.codegen.gpu.test_ptx import PTXAS, assembled
from tests.deploy.gpu.fake_gpu import CHIP, FakeGpu
from tests.deploy.gpu.real_gpu import RealGpu
from tests.deploy.models import MODELS
from tests.deploy.programs import built
from tests.deploy.test_entry_points import Box
from tests.deploy.test_models import _converted, _first, assert_accurate
from tests.targets import none_by_default

Gpu = type[FakeGpu] | type[RealGpu]
_no_driver = pytest.mark.skipif(torch.cuda.is_available(), reason="tells what happens where there is no GPU")


@pytest.fixture(autouse=True)
def tensors_on_the_host() -> Iterator[None]:
    """Models are exported on the host, and their results are compared with eager's there, also with `--device cuda`."""
    with none_by_default():
        yield


@pytest.fixture(params=[FakeGpu, RealGpu], ids=["fake", "real"])
def kind(request: pytest.FixtureRequest) -> Gpu:
    if request.param is RealGpu and not torch.cuda.is_available():
        pytest.skip("no GPU is here")
    found: Gpu = request.param
    return found


@pytest.mark.parametrize("name", ["mlp", "gpt2", pytest.param("resnet", marks=pytest.mark.slow)])
def test_a_model_runs_on_a_gpu_as_in_python(name: str, kind: Gpu, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, args, kwargs = MODELS[name]()
    artifact = smelt.export(model, args, kwargs, targets=(CHIP,), name=name)
    path = artifact.save(tmp_path / "model.smelt")
    gpu = kind(artifact, tmp_path)
    program = built("examples/deploy/infer.c", tmp_path)
    inputs = []
    for place, leaf in enumerate([*args, *kwargs.values()]):
        inputs.append(tmp_path / f"{place}.bin")
        inputs[-1].write_bytes(leaf.contiguous().numpy().tobytes())
    gpu.run(program, path, tmp_path / "out.bin", *inputs)
    with torch.no_grad():
        eager = _first(model(*args, **kwargs))
        wide = {key: _converted(value, torch.float64) for key, value in kwargs.items()}
        exact = _first(model.double()(*[_converted(each, torch.float64) for each in args], **wide))
    found = torch.from_numpy(numpy.fromfile(tmp_path / "out.bin", dtype=numpy.float32)).reshape(eager.shape)
    assert_accurate(found, eager, exact)
    assert gpu.nothing_left()


def _mlp(targets: tuple[str, ...]) -> smelt.Artifact:
    torch.manual_seed(0)
    model, args, kwargs = MODELS["mlp"]()
    return smelt.export(model, args, kwargs, targets=targets, name="mlp")


def test_memory_of_the_gpu_and_threads(kind: Gpu, tmp_path: Path) -> None:
    artifact = _mlp((CHIP,))
    path = artifact.save(tmp_path / "model.smelt")
    gpu = kind(artifact, tmp_path)
    assert gpu.run(built("tests/deploy/gpu/device_memory.c", tmp_path), path) == "same\n"
    assert gpu.nothing_left()


def test_entry_points_share_state_and_weights_on_the_gpu(kind: Gpu, tmp_path: Path) -> None:
    box = Box()
    entries = {"put": smelt.Entry(box.put, (torch.tensor(2.0),)), "get": smelt.Entry(box.get)}
    artifact = smelt.export_entries(entries, name="box", targets=(CHIP,))
    path = artifact.save(tmp_path / "box.smelt")
    gpu = kind(artifact, tmp_path)
    shown = gpu.run(built("tests/deploy/entry_points.c", tmp_path), path, 3, 5)
    assert shown.splitlines() == ["box: 2 entry points, put takes number", "4, of input 3"]
    assert gpu.nothing_left()


_TARGET = "import smelt.deploy.loaded as l; m = l.load({path!r}); print(m.target)"


@_no_driver
def test_the_best_target_is_chosen_when_a_file_is_opened(tmp_path: Path) -> None:
    artifact = _mlp(("host", CHIP, "sm_75"))
    path = str(artifact.save(tmp_path / "model.smelt"))
    gpu = FakeGpu(artifact, tmp_path)
    code = _TARGET.format(path=path)
    assert gpu.python(code) == f"cuda {CHIP}\n"
    assert gpu.python(code, SMELT_FAKE_CAPABILITY="120") == f"cuda {CHIP}\n"
    assert gpu.python(code, SMELT_FAKE_CAPABILITY="75") == "cuda sm_75\n"
    host = smelt.load(path).target  # no driver is here
    assert not host.startswith("cuda")
    assert gpu.python(code, SMELT_FAKE_CAPABILITY="61") == f"{host}\n"
    assert gpu.python(code, SMELT_FAKE_FAIL="cuInit 0 100") == f"{host}\n"


@_no_driver
def test_why_no_target_runs_is_told(tmp_path: Path) -> None:
    artifact = _mlp((CHIP,))
    path = artifact.save(tmp_path / "model.smelt")
    with pytest.raises(smelt.SmeltError, match=r"does not run here: there is no CUDA driver: libcuda.so.1"):
        smelt.load(path)
    gpu = FakeGpu(artifact, tmp_path)
    done = gpu.attempt(built("examples/deploy/infer.c", tmp_path), path, "o", "i", SMELT_FAKE_CAPABILITY="75")
    assert done.returncode and "Fake GPU 0, is sm_75, and the code needs sm_80" in done.stderr


@pytest.mark.parametrize(
    ("failing", "message"),
    [
        ("cuMemAlloc 0 2", "no memory for the weights: out of memory"),
        ("cuMemAlloc 1 2", "no memory for a session"),
        ("cuMemAlloc 2 2", "no memory to copy input"),
        ("cuMemAlloc 3 2", "no memory to run the model"),
        ("cuStreamCreate 0 2", "no memory for a session"),
        ("cuModuleLoadDataEx 0 218", "the driver refuses the code: a PTX JIT compilation failed"),
        ("cuModuleGetFunction 1 500", "something else"),
        ("cuLaunchKernel 1 700", "an illegal memory access was encountered"),
        ("cuStreamSynchronize 1 700", "the GPU failed: an illegal memory access"),
        ("cuMemcpyDtoH 0 700", "memory of the GPU cannot be read"),
    ],
)
def test_what_fails_is_told_and_nothing_is_left(failing: str, message: str, tmp_path: Path) -> None:
    artifact = _mlp((CHIP,))
    path = artifact.save(tmp_path / "model.smelt")
    gpu = FakeGpu(artifact, tmp_path)
    code = (
        "import smelt.deploy.loaded as l, numpy\n"
        f"try:\n m = l.load({str(path)!r})\n m(numpy.zeros((3, 16), numpy.float32))\n"
        "except Exception as error: print(error)\n"
    )
    assert message in gpu.python(code, SMELT_FAKE_FAIL=failing)
    assert not gpu.report()["left"]


def test_frees_a_model_when_python_has_cleared_its_modules(tmp_path: Path) -> None:
    artifact = _mlp((CHIP,))
    path = artifact.save(tmp_path / "model.smelt")
    gpu = FakeGpu(artifact, tmp_path)
    code = (
        "import smelt.deploy.loaded as l, smelt.deploy.runtime as runtime, numpy\n"
        f"model = l.load({str(path)!r})\nmodel(numpy.zeros((3, 16), numpy.float32))\n"
        "for name in vars(runtime): setattr(runtime, name, None)  # as Python may do at exit\n"
    )
    gpu.python(code)
    assert gpu.nothing_left()


def test_a_training_goes_on_on_a_gpu(kind: Gpu, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
    x, y = torch.randn(6, 8), torch.randint(0, 3, (6,))

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        return loss

    for _ in range(3):
        step(x, y)
    artifact = smelt.export(step, (x, y), targets=(CHIP,))
    path = artifact.save(tmp_path / "step.smelt")
    gpu = kind(artifact, tmp_path)
    numpy.savez(tmp_path / "batch.npz", x=x.numpy(), y=y.numpy())
    code = (
        "import smelt.deploy.loaded as l, numpy, json\n"
        f"given = numpy.load({str(tmp_path / 'batch.npz')!r}); m = l.load({str(path)!r})\n"
        "losses = [float(m(given['x'], given['y'])) for _ in range(4)]\n"
        f"m.save({str(tmp_path / 'half.smelt')!r}); n = l.load({str(tmp_path / 'half.smelt')!r})\n"
        "losses += [float(n(given['x'], given['y'])) for _ in range(4)]\n"
        "n.reset(); n.load_state_dict(m.state_dict()); m.restore"
        f"({str(path)!r}); again = float(m(given['x'], given['y']))\n"
        "print(json.dumps([losses, again, float(n(given['x'], given['y']))]))\n"
    )
    losses, again, fifth = json.loads(gpu.python(code))
    want = [float(step(x, y)) for _ in range(8)]
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(want), rtol=1e-4, atol=1e-5)
    assert abs(again - want[0]) < 1e-5 and abs(fifth - want[4]) < 1e-4
    assert gpu.nothing_left()


def test_control_flow_sizes_and_numbers(kind: Gpu, tmp_path: Path) -> None:
    def refine(x: torch.Tensor, scale: float, limit: int) -> tuple[torch.Tensor, int]:
        rounds = 0
        while x.abs().max() > 1e-3 and rounds < limit:
            x = x * scale
            rounds += 1
        return x, rounds

    x, given = torch.randn(5, 3), ((0.5, 50), (0.25, 50), (0.5, 0), (0.5, 4))
    artifact = smelt.export(refine, (x, 0.5, 50), targets=("host", CHIP))
    path = artifact.save(tmp_path / "refine.smelt")
    gpu = kind(artifact, tmp_path)
    numpy.save(tmp_path / "x.npy", x.numpy())
    code = (
        "import smelt.deploy.loaded as l, numpy, json\n"
        f"x = numpy.load({str(tmp_path / 'x.npy')!r}); m = l.load({str(path)!r})\n"
        f"found = [m(x, s, k) for s, k in {given}]; print(json.dumps([[float(v.sum()), n] for v, n in found]))\n"
    )
    for (total, rounds), (scale, limit) in zip(json.loads(gpu.python(code)), given, strict=True):
        want, count = refine(x, scale, limit)
        assert rounds == count and abs(total - float(want.sum())) < 1e-5
    assert gpu.nothing_left()


def test_an_index_out_of_range_is_told(kind: Gpu, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Embedding(10, 4)
    rows = smelt.Dimension("rows", 1, 100)
    artifact = smelt.export(model, (torch.tensor([1, 2, 3]),), dynamic={"input": {0: rows}}, targets=(CHIP,))
    path = artifact.save(tmp_path / "model.smelt")
    gpu = kind(artifact, tmp_path)
    code = (
        "import smelt.deploy.loaded as l, numpy\n"
        f"m = l.load({str(path)!r})\nprint(m(numpy.array([4, 9, 4, 4, 4])).tolist())\n"
        "try:\n m(numpy.array([10]))\nexcept Exception as error: print(error)\n"
        "print(m(numpy.array([9])).tolist())\n"
    )
    found, error, last = gpu.python(code).splitlines()
    want = model(torch.tensor([4, 9, 4, 4, 4])).tolist()
    assert found == str(want) and "out of range" in error and last == str(want[1:2])


def test_what_has_no_kernel_is_refused_by_name() -> None:
    with pytest.raises(smelt.SmeltError, match="linalg_inv"):
        smelt.export(torch.linalg.inv, (torch.eye(3),), targets=(CHIP,))


def test_ptx_is_assembled(tmp_path: Path) -> None:
    if PTXAS is None:
        pytest.skip("no ptxas: pip install nvidia-cuda-nvcc")
    for chip, name in ((CHIP, "gpt2"), ("sm_90", "resnet")):
        torch.manual_seed(0)
        model, args, kwargs = MODELS[name]()
        artifact = smelt.export(model, args, kwargs, targets=(chip,), name=name)
        (part,) = artifact.artifact_file.targets
        found = assembled(part.code.image.rstrip(b"\0").decode(), chip, tmp_path)
        assert set(found) == {grid.name for kernel in part.table.kernels for grid in kernel.grids}


def test_weights_of_another_file_and_a_profile(kind: Gpu, tmp_path: Path) -> None:
    artifact = _mlp((CHIP,))
    path, weights = tmp_path / "model.smelt", tmp_path / "w.safetensors"
    artifact.save(path, weights=weights)
    whole = artifact.save(tmp_path / "whole.smelt")
    code = f"""
import numpy, smelt
from smelt.cli import main

x = numpy.linspace(-1, 1, 48, dtype=numpy.float32).reshape(3, 16)
apart = smelt.load({str(path)!r}, weights={str(weights)!r})
assert apart.target.startswith("cuda") and (apart(x) == smelt.load({str(whole)!r})(x)).all()
assert main(["profile", {str(path)!r}, "--weights", {str(weights)!r}, "--calls", "2"]) == 0
"""
    printed = kind(artifact, tmp_path).python(code)
    assert "mlp for cuda sm_" in printed and "all kernels" in printed
