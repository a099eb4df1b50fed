"""Inference beside peers: who is measured with which models, how turns are taken, what the tables say."""

import argparse
import time
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks import harness, onnx_peer, run, table
from benchmarks.models import MODELS, SMALL_MODELS, model_named
from benchmarks.worker import tensors_in

needs_onnx = pytest.mark.skipif(bool(onnx_peer.missing()), reason="onnxruntime, onnx and onnxscript are not here")


def rounds(*seconds: float) -> list[dict[str, float]]:
    return [{"seconds": each, "processor": each} for each in seconds]


def result(model: str, failed: dict[str, str] | None = None, **steady: list[dict[str, float]]) -> dict[str, Any]:
    keys = ("first", "saved", "error", "within", "breaks")
    return {"model": model, "mode": "infer", "dtype": "float32", "failed": failed or {}, "steady": steady} | {
        key: {} for key in keys
    }


def test_small_models_are_measured_beside_peers_with_batches_of_one_and_four() -> None:
    names = [key.model for key in run.keys("cpu", None, ["infer"], None, beside_peers=True)]
    assert names[: len(MODELS)] == list(MODELS)
    assert {"swin/1", "swin/4", "transformer64/1"} < set(names[len(MODELS) :])
    assert [key.model for key in run.keys("cpu", None, ["infer"], None)] == list(MODELS)


def test_a_model_is_named_with_a_batch_or_without() -> None:
    assert [run.model_name(text) for text in ("mlp", "mlp/2", "clip/1")] == ["mlp", "mlp/2", "clip/1"]
    for wrong in ("mlp/", "mlp/0", "mlp/x", "nobody"):
        with pytest.raises(argparse.ArgumentTypeError):
            run.model_name(wrong)


def test_peers_that_only_infer_are_not_asked_to_train() -> None:
    peers = list(harness.PEERS)
    assert run.chosen(harness.Key("mlp", "infer"), (), peers) == ["eager", "smelt", *peers]
    assert run.chosen(harness.Key("mlp", "train"), (), peers) == ["eager", "smelt", "torch.compile"]
    assert run.chosen(harness.Key("mlp", "train"), ["smelt"], None) == ["eager", "smelt"]


def test_a_smaller_batch_is_the_first_of_the_whole_one() -> None:
    whole, part = (model_named(name).build() for name in ("transformer64", "transformer64/2"))
    assert [len(x) for x in part.inputs] == [2, 2]
    assert all(torch.equal(mine, x[:2]) for mine, x in zip(part.inputs, whole.inputs, strict=True))
    with torch.no_grad():
        shorter = next(tensors_in(part.inferring().call(part.module)))
        longer = next(tensors_in(whole.inferring().call(whole.module)))
    torch.testing.assert_close(shorter, longer[:2])


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_small_models_are_the_same_whenever_they_are_built(name: str) -> None:
    first, second = model_named(f"{name}/1").build(), model_named(f"{name}/1").build()
    for mine, again in zip(first.module.parameters(), second.module.parameters(), strict=True):
        assert torch.equal(mine, again)
    given = zip((*first.inputs, *first.kwargs.values()), (*second.inputs, *second.kwargs.values()), strict=True)
    assert all(len(mine) == 1 and torch.equal(mine, again) for mine, again in given)


class _Recorded:
    """Stands for a worker, and says what was asked of it."""

    def __init__(self, name: str, log: list[tuple[str, object]]) -> None:
        self.name, self.log = name, log

    def steps(self, count: int) -> dict[str, float]:
        self.log.append((self.name, count))
        return {"seconds": 0.05, "processor": 0.05}


def test_a_pause_and_an_uncounted_step_come_before_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[tuple[str, object]] = []
    monkeypatch.setattr(time, "sleep", lambda seconds: log.append(("sleep", seconds)))
    workers: Any = {name: _Recorded(name, log) for name in ("smelt", "ort")}
    found = harness.by_turns(workers, 2, per_round=0.2, pause=0.3)
    turn = [("sleep", 0.3), ("smelt", 1), ("smelt", 4), ("sleep", 0.3), ("ort", 1), ("ort", 4)]
    assert log[4:] == turn * 2
    assert [len(each) for each in found.values()] == [2, 2]
    log.clear()
    harness.by_turns(workers, 1)
    assert "sleep" not in {name for name, _ in log}


def test_the_table_beside_peers_has_a_column_each_and_says_what_failed() -> None:
    found = [
        result("mlp", eager=rounds(4, 4, 4), smelt=rounds(2, 2, 2), ort=rounds(3, 3, 3)),
        result("swin/1", {"ort": "no export: ValueError"}, eager=rounds(2, 2, 2), smelt=rounds(2, 2, 2)),
    ]
    text = table.markdown(found, "seconds")
    assert "| infer, float32: step, ms | eager | smelt | ort | eager/smelt | ort/smelt |" in text
    assert "| mlp | 4000.00 | 2000.00 | 3000.00 | 2.00× | 1.50× |" in text
    assert "| swin/1 | 2000.00 | 2000.00 | – | 1.00× | – |" in text
    assert "| geometric mean |  |  |  | 1.41× | 1.50× |" in text
    assert "- swin/1: ort failed: no export: ValueError" in text
    assert "ort/smelt" in table.report(found[0], ["eager", "smelt", "ort"], "seconds")


def test_what_is_asked_beside_a_peer_can_be_missed() -> None:
    slower = result("mlp", smelt=rounds(2, 2, 2), ort=rounds(1, 1, 1))
    faster = result("vit", smelt=rounds(1, 1, 1), ort=rounds(8, 8, 8))
    lines = table.bars([slower, faster], "seconds")
    assert lines == [
        "infer, float32: speed against ort 2.00×, geometric mean; 1.50× asked: holds",
        "infer, float32: speed against ort, 1.00× asked of each: missed by mlp 0.50×",
    ]
    assert "missed" in table.bars([slower], "seconds")[0]


def test_without_its_packages_the_peer_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_peer, "missing", lambda: ["onnxruntime", "onnx"])
    with pytest.raises(onnx_peer.CannotExport, match="pip install onnxruntime onnx"):
        onnx_peer.OnnxModel(nn.Linear(2, 2))(torch.randn(1, 2))


@needs_onnx
def test_an_exported_model_computes_the_same() -> None:
    module = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).eval()
    model, x = onnx_peer.OnnxModel(module), torch.randn(3, 8)
    with torch.no_grad():
        wanted = module(x)
    for _ in range(2):
        (found,) = model(x)
        torch.testing.assert_close(found, wanted)


@needs_onnx
def test_what_cannot_be_exported_is_said_in_one_line() -> None:
    class Looks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum().item() > 0 else -x

    with pytest.raises(onnx_peer.CannotExport) as said:
        onnx_peer.OnnxModel(Looks())(torch.randn(3))
    assert "\n" not in str(said.value) and str(said.value).startswith("no export: ")
