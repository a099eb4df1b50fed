"""Which target kernels on GPUs are for: by what the driver says, or none, with one warning."""

import warnings
from collections.abc import Iterator

import pytest
import torch

from smelt.base.errors import SmeltWarning
from smelt.codegen import targets
from smelt.device import devices, find, registry, target_of
from smelt.runtime.cuda import driver

CUDA = torch.device("cuda", 0)


@pytest.fixture
def asked_anew() -> Iterator[None]:
    before = registry._by_device.pop("cuda", None)
    yield
    registry._by_device.pop("cuda", None)
    if before is not None:
        registry._by_device["cuda"] = before


def _gpu(*capability: int) -> driver.CudaDevice:
    return driver.CudaDevice(0, "a GPU", (capability[0], capability[1]), 32, 1, 1, 1)


@pytest.mark.parametrize(
    ("found", "name"),
    [
        ([(9, 0)], "sm_90"),
        ([(9, 0), (8, 0)], "sm_80"),
        ([(8, 8)], "sm_87"),
        ([(12, 9)], "sm_121"),
        ([(7, 0), (7, 5)], "sm_75"),
    ],
)
def test_the_oldest_gpu_decides(
    asked_anew: None, monkeypatch: pytest.MonkeyPatch, found: list[tuple[int, int]], name: str
) -> None:
    gpus = tuple(_gpu(*capability) for capability in found)
    monkeypatch.setattr(driver, "why_not_cuda", lambda: None)
    monkeypatch.setattr(driver, "devices", lambda: gpus)
    assert target_of(CUDA) == name == devices()["cuda"]
    assert find(name).warp_size == 32


def test_without_a_driver_pytorch_runs_it_and_one_warning_says_why(
    asked_anew: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "why_not_cuda", lambda: "there is no CUDA driver: nowhere")
    with pytest.warns(SmeltWarning, match="no kernels are made for tensors on GPUs: there is no CUDA driver: nowhere"):
        assert target_of(CUDA) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert target_of(CUDA) is None
    assert "cuda" not in devices()


def test_code_for_a_gpu_that_is_not_here(asked_anew: None) -> None:
    assert target_of(CUDA, "sm_90") == "sm_90" and target_of(torch.device("cpu"), "sm_90") == "cpu"
    assert all(find(name).triple == "nvptx64-nvidia-cuda" for name in targets.ARCHITECTURES)
