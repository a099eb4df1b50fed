"""`smelt doctor` is content where all is there, and says what is missing where it is not."""

import sys

import pytest
import torch

import smelt
from smelt.cli import main
from smelt.explain import doctor
from smelt.explain.doctor import examine
from smelt.runtime.cuda import driver
from tests.runtime.cuda.fake_cuda import FakeCuda, built_cuda, cuda

__all__ = ["built_cuda", "cuda"]


def test_all_is_well_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "FAIL" not in out and "ok    self-check" in out and "ok    llvmlite" in out


def test_a_missing_code_generator_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "FAIL  llvmlite" in out and "pip install llvmlite" in out


def test_a_wrong_result_fails_the_self_check() -> None:
    def crooked(model: object, *, backend: str, options: dict[str, object]) -> object:
        compiled = smelt.compile(model, backend=backend, options=options)  # type: ignore[arg-type]
        return (lambda *args: compiled(*args) * 1.001) if backend == "llvm" else compiled

    checks = {check.name: check for check in examine(crooked)}
    assert checks["self-check"].good is False and "WRONG" in checks["self-check"].text


def test_the_driver_and_its_gpus(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    ends = ((None, None, "; graphs on it fall back to eager, "), ("sm_90", True, "; code is generated for sm_90"))
    for target, good, end in ends:
        monkeypatch.setattr("smelt.device.target_of", lambda device, target=target: target)
        found, text = doctor._gpu()
        assert found is good and text.startswith("CUDA driver 12.4: Fake GPU 0 (sm_90), Fake GPU 1 (sm_90)" + end)
    cuda.set(version=11040)
    assert doctor._gpu() == (
        None,
        "PyTorch runs graphs on its own: the CUDA driver is for CUDA 11.4, and 12 is needed",
    )
    cuda.set(version=13000)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert doctor._gpu() == (
        None,
        "CUDA driver 13.0: Fake GPU 0 (sm_90), Fake GPU 1 (sm_90); this PyTorch cannot use it",
    )


def test_a_gpu_that_is_used_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [check.name for check in examine(smelt.compile)]  # type: ignore[arg-type]
    assert "GPU check" not in names or doctor._uses_gpu()
    asked: list[torch.device] = []

    def checked(compile: object, device: torch.device) -> tuple[bool, str]:
        asked.append(device)
        return True, "right"

    monkeypatch.setattr(doctor, "_gpu", lambda: (True, "a GPU"))
    monkeypatch.setattr(doctor, "_self_check", checked)
    found = {check.name: str(check) for check in examine(smelt.compile)}  # type: ignore[arg-type]
    assert asked == [torch.device("cpu"), torch.device("cuda")] and found["GPU check"].startswith("ok    GPU check")


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(driver.SWITCH, "/nowhere.so")
    driver.forget()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    good, text = doctor._gpu()
    driver.forget()
    assert good is None and text.startswith("none: there is no CUDA driver: /nowhere.so")


def test_doctor_says_what_it_knows_of_this_torch() -> None:
    assert doctor._torch("2.13.0+cpu") == (True, "2.13.0+cpu")
    assert doctor._torch("2.11.0") == (True, "2.11.0")
    for version, how in (("2.99.1", "newer"), ("3.0.0a0+git", "newer"), ("2.4.0", "older")):
        good, text = doctor._torch(version)
        assert good is None
        assert text.startswith(f"PyTorch {version} is {how} than the versions smelt is tested with (2.11 to 2.15)")
