"""Writes the files of a version: run once for each version that changes how files are written.

    python -m tests.deploy.earlier.write FOLDER

Each `NAME.npz` has a file with code for x86-64 and AArch64, calls of it in order with their inputs and outputs, and the
state after the last. `test_earlier.py` loads and calls all files of all versions.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch

import smelt

TARGETS = ("x86-64-v2", "aarch64")
Call = tuple[str, tuple[Any, ...]]
Made = tuple[smelt.Artifact, list[Call]]


def dynamic() -> Made:
    """Inference with a size that differs from call to call."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.Linear(16, 3))
    batch = {"input": {0: smelt.Dimension("batch", 1, 64)}}
    artifact = smelt.export(model.eval(), (torch.randn(4, 8),), dynamic=batch, targets=TARGETS, name="dynamic")
    return artifact, [("dynamic", (torch.randn(rows, 8),)) for rows in (1, 4, 7, 64)]


def training() -> Made:
    """Whole training steps, with an optimizer that has a state."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    x, y = torch.randn(16, 4), torch.randn(16, 2)
    return smelt.export(step, (x, y), targets=TARGETS, name="training"), [("training", (x, y))] * 5


def branches() -> Made:
    """Control flow: a branch on values, a loop, and a function that raises."""

    def halve(x: torch.Tensor) -> torch.Tensor:
        if x.min() < 0:
            return torch.zeros_like(x)
        while x.sum() > 10:
            x = x / 2
        return x + 1

    artifact = smelt.export(halve, (torch.ones(3),), targets=TARGETS, name="branches")
    values = ([1.0, 2.0, 3.0], [100.0, 50.0, 3.0], [-1.0, 5.0, 5.0])
    return artifact, [("branches", (torch.tensor(each),)) for each in values]


def entries() -> Made:
    """Two functions over one set of weights and one state."""
    weight, total = torch.randn(6, 6), torch.zeros(6)

    def put(x: torch.Tensor) -> torch.Tensor:
        total.add_(x @ weight)
        return total.sum()

    def get(scale: torch.Tensor) -> torch.Tensor:
        return torch.softmax(total * scale, 0)

    pair = {"put": smelt.Entry(put, (torch.randn(6),)), "get": smelt.Entry(get, (torch.tensor(1.0),))}
    artifact = smelt.export_entries(pair, name="entries", targets=TARGETS)
    scales = [("get", (torch.tensor(each),)) for each in (0.5, 2.0)]
    return artifact, [("put", (torch.randn(6),)), scales[0], ("put", (torch.randn(6),)), scales[1]]


def quantized() -> Made:
    """Weights of four bits."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8)).eval()
    model = smelt.quantize(model, "int4", group_size=32)
    artifact = smelt.export(model, (torch.randn(2, 64),), targets=TARGETS, name="quantized")
    return artifact, [("quantized", (torch.randn(2, 64),))]


def generation() -> Made:
    """A language model with a cache: `prefill`, then `decode`."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 24, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 16}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads)).eval()
    artifact = smelt.export_generation(model, max_length=12, targets=TARGETS)
    decode: list[Call] = [("decode", (torch.tensor([each]),)) for each in (1, 5)]
    return artifact, [("prefill", (torch.tensor([[3, 1, 4]]),)), *decode]


MODELS: dict[str, Callable[[], Made]] = {
    each.__name__: each for each in (dynamic, training, branches, entries, quantized, generation)
}


def arrays(result: Any) -> list[Any]:
    """The tensors and numbers of a result, in order."""
    if isinstance(result, tuple | list):
        return [leaf for each in result for leaf in arrays(each)]
    return [numpy.asarray(result)]


def write(folder: Path) -> None:
    """All files, with what they compute here."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in MODELS.items():
        torch.manual_seed(0)
        artifact, calls = make()
        with tempfile.TemporaryDirectory() as temporary:
            path = artifact.save(Path(temporary) / f"{name}.smelt")
            loaded, data = smelt.load(path), path.read_bytes()
        kept: dict[str, Any] = {"artifact": numpy.frombuffer(data, numpy.uint8)}
        kept["calls"] = numpy.array([entry for entry, _ in calls])
        for number, (entry, inputs) in enumerate(calls):
            given = [each.numpy().copy() for each in inputs]
            kept |= {f"in {number} {place}": each for place, each in enumerate(given)}
            found = arrays(loaded.entry(entry)(*given))
            kept |= {f"out {number} {place}": each for place, each in enumerate(found)}
        kept |= {f"state {key}": numpy.asarray(each) for key, each in loaded.state_dict().items()}
        numpy.savez_compressed(folder / f"{name}.npz", **kept)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
