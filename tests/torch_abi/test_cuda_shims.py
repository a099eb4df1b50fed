"""PyTorch's functions for CUDA are used if they do what they should; here they are those of the fake driver."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from smelt import _native
from smelt.torch_abi import cuda_shims
from smelt.torch_abi.probe import Experiment
from tests.layout import needs_layout
from tests.runtime.cuda.fake_cuda import FakeCuda, built_cuda, cuda

__all__ = ["built_cuda", "cuda"]
pytestmark = needs_layout


class Streams:
    """PyTorch's current stream, as its Python functions tell."""

    def __init__(self, fake: FakeCuda) -> None:
        self.fake, self.current = fake, 0

    @property
    def cuda_stream(self) -> int:
        return self.current

    @contextlib.contextmanager
    def entered(self, stream: int) -> Iterator[None]:
        self.current = stream
        self.fake.set_stream(0, stream)
        yield
        self.current = 0
        self.fake.set_stream(0, 0)


@pytest.fixture
def streams(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> Streams:
    made = Streams(cuda)
    changes: dict[str, Any] = {
        "is_initialized": lambda: True,
        "is_current_stream_capturing": lambda: False,
        "current_device": lambda: 0,
        "current_stream": lambda device: made,
        "Stream": lambda device: 0x77,
        "stream": made.entered,
    }
    for name, change in changes.items():
        monkeypatch.setattr(torch.cuda, name, change)
    known = cuda.torch_functions()
    monkeypatch.setattr(cuda_shims, "find_in_cuda", known.get)
    monkeypatch.setattr(cuda_shims, "EXPERIMENT", Experiment(cuda_shims.find_functions, _native.set_cuda_library))
    return made


def test_what_works_is_used(streams: Streams, cuda: FakeCuda) -> None:
    assert cuda_shims.connect() and cuda_shims.connect()
    assert cuda_shims.EXPERIMENT.result == cuda.torch_functions()
    assert cuda.workspaces == (1, 1)


def test_nothing_is_tried_before_cuda_is_in_use(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert not cuda_shims.connect()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert not cuda_shims.connect()
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert cuda_shims.connect()


def test_a_stream_that_is_not_the_current_one(streams: Streams, cuda: FakeCuda) -> None:
    cuda.set_stream(0, 0x5)
    assert not cuda_shims.connect()
    assert "does not say which stream" in (cuda_shims.EXPERIMENT.why_not() or "")


def test_no_functions(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_shims, "find_in_cuda", lambda name: None)
    assert not cuda_shims.connect()
    assert "is not exported" in (cuda_shims.EXPERIMENT.why_not() or "")


def test_memory_that_cannot_be_had_leaves_the_stream(streams: Streams, cuda: FakeCuda) -> None:
    cuda.fail("raw_alloc", 1)
    assert cuda_shims.connect()
    assert list(cuda_shims.EXPERIMENT.result or {}) == [cuda_shims.STREAM]


def test_here_is_no_pytorch_for_cuda() -> None:
    if torch.version.cuda is not None:
        pytest.skip("this PyTorch is for CUDA")
    assert not cuda_shims.connect()
