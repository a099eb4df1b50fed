"""The programs of examples/deploy, as their first comments call them, in processes without Python."""

from pathlib import Path

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


def test_gpt2_generates_text_in_c(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, _, _ = MODELS["gpt2"]()
    ids = torch.tensor([[3, 14, 15]])
    lengths = {"input_ids": {1: smelt.Dimension("tokens", 2, 32)}}
    path = smelt.export(model, (), {"input_ids": ids}, dynamic=lengths).save(tmp_path / "gpt2.smelt")
    shown = run(built("examples/deploy/generate.c", tmp_path), path, 12, 3, 14, 15)
    with torch.no_grad():
        for _ in range(12):
            ids = torch.cat([ids, model(input_ids=ids).logits[:, -1:].argmax(-1)], 1)
    assert [int(token) for token in shown.split()] == ids[0].tolist()
