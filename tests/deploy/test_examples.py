"""The programs of examples/deploy, as their first comments call them, in processes without Python."""

import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy
import pytest
import torch

import smelt
from tests.deploy.models import MODELS
from tests.deploy.programs import built, run


def test_a_classifier_in_cpp(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, _, kwargs = MODELS["resnet"]()
    image = kwargs["pixel_values"][:1].contiguous()
    path = smelt.export(model, (), {"pixel_values": image}).save(tmp_path / "model.smelt")
    (tmp_path / "image.bin").write_bytes(image.numpy().tobytes())
    shown = run(built("examples/deploy/classify.cpp", tmp_path), path, tmp_path / "image.bin", 3)
    with torch.no_grad():
        best = model(pixel_values=image).logits[0].topk(3)
    found = [line.split() for line in shown.splitlines()]
    assert [int(place) for place, _ in found] == best.indices.tolist()
    torch.testing.assert_close(torch.tensor([float(score) for _, score in found]), best.values, rtol=1e-3, atol=1e-4)


@contextmanager
def _served(program: Path, *arguments: object) -> Iterator[str]:
    """The address of a server that runs as long as the block."""
    process = subprocess.Popen([program, *map(str, arguments)], stdout=subprocess.PIPE, text=True, env={})
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()


def _posted(address: str, body: bytes) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(address, body), timeout=60) as answer:
        found: bytes = answer.read()
    return found


def test_a_server_in_c(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, _, _ = MODELS["mlp"]()
    rows = smelt.Dimension("rows", 1, 64)
    path = smelt.export(model, (torch.randn(3, 16),), dynamic={"input": {0: rows}}).save(tmp_path / "model.smelt")
    batches = [torch.randn(1 + 7 * number % 64, 16) for number in range(48)]
    with _served(built("examples/deploy/serve.c", tmp_path), path, 0, 4) as address:
        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(lambda batch: _posted(address, batch.numpy().tobytes()), batches))
        for batch, answer in zip(batches, answers, strict=True):
            found = torch.from_numpy(numpy.frombuffer(answer, numpy.float32).copy()).reshape(-1, 4)
            with torch.no_grad():
                torch.testing.assert_close(found, model(batch))
        refused = {
            b"": "rows is 0, and must be from 1 to 64",
            bytes(64 * 65): "rows is 65",
            bytes(100): "no whole number of rows",
        }
        for body, why in refused.items():
            with pytest.raises(urllib.error.HTTPError, match="400") as error:
                _posted(address, body)
            assert why in error.value.read().decode()
        assert len(_posted(address, bytes(64))) == 16  # it goes on
    with pytest.raises(urllib.error.URLError):
        _posted(address, bytes(64))
