"""Hugging Face models under autocast and with gradient checkpointing: one graph, no break, eager's values."""

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from tests.models.architectures import ARCHITECTURES, Architecture
from tests.models.test_models import as_when_compiled, deterministic, outcome, raise_errors
from tests.targets import device_type

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers")

__all__ = ["deterministic", "raise_errors"]  # fixtures

BY_NAME = {row.name: row for row in ARCHITECTURES}
ROWS = [BY_NAME[name] for name in ("gpt2", "llama", "bert", "vit", "t5")]
each_model = pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])


def compare(model: Any, run: Callable[..., Any], inputs: dict[str, Any], backend: str, tolerance: float) -> None:
    """Compiled against eager, two calls each; one graph without a break."""
    with as_when_compiled():
        _, tensors, gradients = outcome(model, run, inputs)
    smelt.reset()
    compiled = smelt.compile(run, backend=backend, fullgraph=True)
    for _ in range(2):
        _, my_tensors, my_gradients = outcome(model, compiled, inputs)
        for one, other in zip(my_tensors + my_gradients, tensors + gradients, strict=True):
            assert (one is None) == (other is None)
            if other is not None:
                assert one.dtype == other.dtype
                error = (one.double() - other.double()).norm()
                assert error <= tolerance * other.double().norm() + 1e-6
    assert smelt.counters["graphs"] == 1 and smelt.counters["graph_breaks"] == 0


@each_model
@pytest.mark.parametrize("backend", ["eager", "llvm"])
def test_autocast(row: Architecture, backend: str) -> None:
    torch.manual_seed(0)
    model, inputs = row.build(transformers).train(), row.inputs()

    def run(**inputs: Any) -> Any:
        with torch.autocast(device_type(), dtype=torch.bfloat16):
            return model(**inputs)

    compare(model, run, inputs, backend, 5e-2 if backend == "llvm" else 0.0)


# T5 sets requires_grad of a tensor that it makes inside the checkpointed layer: B015, and PyTorch runs the layer.
@pytest.mark.parametrize("row", ROWS[:4], ids=[row.name for row in ROWS[:4]])
@pytest.mark.parametrize("backend,reentrant", [("eager", False), ("aot_eager", True), ("llvm", False)])
def test_gradient_checkpointing(row: Architecture, backend: str, reentrant: bool) -> None:
    torch.manual_seed(0)
    model, inputs = row.build(transformers).train(), row.inputs()
    if hasattr(model.config, "use_cache"):
        model.config.use_cache = False
    kept = []
    for enabled in (False, True):
        if enabled:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
        compare(model, lambda **inputs: model(**inputs), inputs, backend, 1e-4)
        kept.append(smelt.counters["saved_bytes"])
    assert kept == [0, 0] if backend == "eager" else kept[1] < 0.8 * kept[0]
