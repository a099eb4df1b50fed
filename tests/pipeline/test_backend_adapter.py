"""`torch.compile(model, backend="smelt")`: the peer's capture, our code, eager's numbers."""

import copy
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

import pytest
import torch
import transformers

import smelt
from smelt.pipeline.backend_adapter import backend, why_not_taken

INSTALLED = any(point.name == "smelt" for point in entry_points(group="torch_dynamo_backends"))


def gpt2() -> torch.nn.Module:
    config = transformers.GPT2Config(
        n_layer=2, n_embd=32, n_head=2, vocab_size=50, n_positions=32, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )
    return transformers.GPT2LMHeadModel(config)


def resnet() -> torch.nn.Module:
    return transformers.ResNetModel(transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1]))


@pytest.fixture(autouse=True)
def fresh() -> Any:
    torch.compiler.reset()
    smelt.counters.clear()
    yield
    torch.compiler.reset()


BY_NAME = pytest.mark.skipif(not INSTALLED, reason="smelt is not installed, so no entry point names it")


@pytest.mark.parametrize("by", [backend, pytest.param("smelt", marks=BY_NAME)], ids=["callable", "name"])
@pytest.mark.parametrize(
    ("build", "inputs"),
    [(gpt2, lambda: torch.randint(50, (2, 8))), (resnet, lambda: torch.randn(2, 3, 16, 16))],
    ids=["gpt2", "resnet"],
)
def test_training_steps_are_eagers(build: Callable[[], Any], inputs: Callable[[], torch.Tensor], by: Any) -> None:
    torch.manual_seed(0)
    plain = build()
    twin = copy.deepcopy(plain)
    compiled = torch.compile(twin, backend=by)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in (plain, twin)]
    for _ in range(3):
        x = inputs()
        losses = []
        for model, optimizer in zip((plain, compiled), optimizers, strict=True):
            optimizer.zero_grad()
            loss = model(x)[0].square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-5)
    for mine, theirs in zip(twin.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-5)
    assert smelt.counters["kernels"] > 0
    assert smelt.counters["eager_graphs"] == 0


def test_sizes_that_change() -> None:
    def f(x: torch.Tensor, n: int) -> torch.Tensor:
        return (x * n).softmax(-1) + x.shape[0]

    compiled = torch.compile(f, backend=backend)
    for rows in (3, 4, 5, 6):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x, rows), f(x, rows))


def test_what_is_not_taken_runs_as_it_is() -> None:
    class Calls(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.inner(x) * 2
            return found

    traced = torch.fx.symbolic_trace(Calls())
    assert why_not_taken(traced) == "it calls the module inner"
    x = torch.randn(3, 2)
    torch.testing.assert_close(backend(traced, [x])(x), traced(x))
    assert smelt.counters["eager_graphs"] == 1


def test_graphs_are_counted() -> None:
    compiled = torch.compile(lambda x: x.sin() + 1, backend=backend)
    compiled(torch.randn(3))
    compiled(torch.randn(3))
    assert smelt.counters["graphs"] == 1
