"""Modules and small models: the eager answer, training and evaluation, forward and backward."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from smelt.base.errors import SmeltWarning
from tests.capture.programs import Captured, assert_alike


def gradients(model: nn.Module, run: Callable[..., Any], *args: Any) -> tuple[Any, list[torch.Tensor | None]]:
    model.zero_grad(set_to_none=True)
    torch.manual_seed(0)
    out = run(model, *args)
    flat = out if isinstance(out, torch.Tensor) else out[0]
    flat.float().square().mean().backward()
    return out, [parameter.grad for parameter in model.parameters()]


def check(model: nn.Module, *args: Any, breaks: int | None = 0) -> Captured:
    runner = Captured()
    for training in (True, False, True):
        model.train(training)
        for _ in range(2):
            state = {name: value.clone() for name, value in model.state_dict().items()}
            eager, eager_gradients = gradients(model, lambda module, *given: module(*given), *args)
            model.load_state_dict(state)
            mine, my_gradients = gradients(model, runner, *args)
            assert_alike(mine, eager)
            assert_alike(my_gradients, eager_gradients)
    if breaks is not None:
        assert len(runner.breaks) <= breaks, runner.texts("breaks")
    return runner


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.named = nn.ModuleDict({"a": nn.Tanh(), "b": nn.GELU()})
        self.scale = nn.Parameter(torch.ones(4))
        self.register_buffer("shift", torch.zeros(4))
        self.tied = self.layers[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            x = x + layer(x) * (number + 1)
        for name, module in self.named.items():
            x = module(x) + len(name)
        return self.tied(x) * self.scale + self.shift


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)),
        nn.Sequential(nn.LayerNorm(4), nn.GELU(), nn.Dropout(0.3), nn.Softmax(-1)),
        Residual(),
        nn.Bilinear(4, 4, 2),
        nn.Sequential(nn.BatchNorm1d(4), nn.SiLU(), nn.Linear(4, 4, bias=False)),
    ],
    ids=["mlp", "norms", "residual", "bilinear", "batchnorm"],
)
def test_modules(model: nn.Module) -> None:
    inputs = (torch.randn(5, 4),) if not isinstance(model, nn.Bilinear) else (torch.randn(5, 4), torch.randn(5, 4))
    runner = check(model, *inputs, breaks=0 if not isinstance(model, nn.Sequential) or len(model) != 3 else None)
    assert len(runner.graphs) >= 1


def test_convolutions() -> None:
    check(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 2)),
        torch.randn(2, 3, 8, 8),
    )


def test_transformer_encoder_layer() -> None:
    check(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.randn(2, 3, 8), breaks=None)


def test_lstm() -> None:
    check(nn.LSTM(4, 4), torch.randn(3, 2, 4), breaks=None)


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_transformers(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    small = {"vocab_size": 50, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    if name == "gpt2":
        config = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=16, **small)
        model: nn.Module = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.BertConfig(
            hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, **small
        )
        model = transformers.BertModel(config)
    model.eval()
    ids = torch.randint(0, 50, (2, 7))
    runner = Captured()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmeltWarning)  # some of its bookkeeping is compiled for every name it looks up
        for _ in range(2):
            mine, eager = runner(model, ids), model(ids)
            assert list(mine) == list(eager)
            torch.testing.assert_close(mine[0], eager[0])
    assert len(runner.graphs) >= 1
