"""Training on the lazy device: the losses of eager, one graph a step, nothing compiled after the second step."""

from typing import Any

import pytest
import torch
from torch import nn

import smelt

OPTIMIZERS: list[tuple[Any, dict[str, Any]]] = [
    (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}),
    (torch.optim.AdamW, {"lr": 1e-2}),
    (torch.optim.AdamW, {"lr": 1e-2, "foreach": False}),
    (torch.optim.Adagrad, {"lr": 1e-2}),
]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Dropout(0.1), nn.LayerNorm(32), nn.Linear(32, 10))


def batches(count: int, size: int = 8) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(1)
    return [(torch.randn(size, 20), torch.randint(0, 10, (size,))) for _ in range(count)]


def train(device: str, kind: Any, settings: dict[str, Any], steps: int = 5) -> tuple[list[float], list[torch.Tensor]]:
    trained = model().to(device)
    optimizer = kind(trained.parameters(), **settings)
    losses = []
    torch.manual_seed(5)
    for x, y in batches(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(trained(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [parameter.detach().cpu() for parameter in trained.parameters()]


@pytest.mark.parametrize("kind, settings", OPTIMIZERS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_training_is_eagers(kind: Any, settings: dict[str, Any]) -> None:
    before = smelt.lazy.explain()
    losses, parameters = train("lazy", kind, settings)
    runs = smelt.lazy.explain().runs[before.run_count - smelt.lazy.explain().run_count :]
    wanted, eager = train("cpu", kind, settings)
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(wanted), rtol=1e-5, atol=1e-6)
    for mine, theirs in zip(parameters, eager, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
    steps = [run for run in runs if run.operators > 1]
    assert len(steps) == 5
    assert [run.how for run in steps[2:]] == ["cached"] * 3


def test_masks_of_dropout_are_eagers() -> None:
    torch.manual_seed(3)
    x = torch.ones(64)
    wanted = nn.functional.dropout(x, 0.3)
    torch.manual_seed(3)
    assert torch.equal(nn.functional.dropout(x.to("lazy"), 0.3).cpu(), wanted)


def test_gradients_of_gradients() -> None:
    def second(x: torch.Tensor) -> torch.Tensor:
        (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        (found,) = torch.autograd.grad(first.sum(), x)
        return found.cpu()

    x = torch.tensor([1.0, 2.0])
    assert torch.equal(second(x.to("lazy").requires_grad_()), second(x.requires_grad_()))


def test_hooks_see_gradients() -> None:
    x = torch.ones(3, device="lazy", requires_grad=True)
    seen: list[torch.Tensor] = []

    def hook(grad: torch.Tensor) -> torch.Tensor:
        seen.append(grad)
        return grad * 2

    x.register_hook(hook)
    (x * 3).sum().backward()
    assert seen[0].tolist() == [3.0] * 3
    assert x.grad is not None and x.grad.tolist() == [6.0] * 3


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers(kind: Any) -> None:
    def run(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        layer = kind(4, 5, num_layers=2, bidirectional=True).to(device)
        x = torch.randn(3, 2, 4).to(device).requires_grad_()
        out, _ = layer(x)
        (out * out).sum().backward()
        assert x.grad is not None
        return [out.detach().cpu(), x.grad.cpu(), *(each.grad.cpu() for each in layer.parameters())]

    for mine, theirs in zip(run("lazy"), run("cpu"), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_loop_whose_values_nobody_needs_ends_its_rounds() -> None:
    def train(device: str) -> torch.Tensor:
        torch.manual_seed(0)
        layer = nn.Linear(4, 4).to(device)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for _ in range(6):
            optimizer.zero_grad()
            layer(torch.ones(2, 4, device=device)).square().sum().backward()
            optimizer.step()
        return layer.weight.detach().cpu()

    before = smelt.lazy.explain().run_count
    found = train("lazy")
    runs = smelt.lazy.explain().runs[before - smelt.lazy.explain().run_count :]
    assert [run.reason for run in runs[:6]] == ["an optimizer's step"] * 6
    assert [run.how for run in runs[2:6]] == ["cached"] * 4
    torch.testing.assert_close(found, train("cpu"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_casts_as_on_the_cpu(dtype: torch.dtype) -> None:
    def run(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3)).to(device)
        x, y = torch.randn(4, 8).to(device), torch.randn(4, 3).to(device)
        with torch.autocast(device, dtype=dtype):
            out = layers(x)
            loss = nn.functional.mse_loss(out, y)
            both = torch.cat([out, y])
        loss.backward()
        return [out, loss, both, x @ x.t(), *(each.grad for each in layers.parameters() if each.grad is not None)]

    for mine, theirs in zip(run("lazy"), run("cpu"), strict=True):
        assert mine.dtype is theirs.dtype
        torch.testing.assert_close(mine.detach().cpu(), theirs.detach(), rtol=2e-2, atol=2e-2)


def test_an_evaluation_in_half_precision_beside_statistics_of_float32() -> None:
    """PyTorch describes results that are not there."""
    x = torch.randn(4, 5, dtype=torch.float16)
    found = []
    for device in ("cpu", "lazy"):
        given = x.clone().to(device).requires_grad_()
        made = torch.nn.functional.batch_norm(given, torch.zeros(5, device=device), torch.ones(5, device=device))
        made.float().square().sum().backward()
        found.append([made.detach().cpu(), given.grad.cpu() if given.grad is not None else None])
    torch.testing.assert_close(found[1], found[0])


def test_a_scaled_loss_is_compiled_and_steps_as_on_the_host() -> None:
    """An infinite gradient skips a step and lowers the scale; two good ones raise it."""

    def run(device: str) -> tuple[list[float], list[torch.Tensor]]:
        trained = model().eval().to(device)
        optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-2)
        scaler, scales = torch.amp.GradScaler(device, init_scale=1000.0, growth_interval=2), []
        for number, (x, y) in enumerate(batches(6, size=7)):
            x[0, 0] = torch.inf if number == 3 else x[0, 0]
            optimizer.zero_grad()
            scaler.scale(nn.functional.cross_entropy(trained(x.to(device)), y.to(device))).backward()
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return scales, [parameter.detach().cpu() for parameter in trained.parameters()]

    before = sum(smelt.lazy.explain().not_compiled.values())
    scales, found = run("lazy")
    assert sum(smelt.lazy.explain().not_compiled.values()) == before
    expected_scales, expected = run("cpu")
    assert scales == expected_scales == [1000.0, 2000.0, 2000.0, 1000.0, 1000.0, 2000.0]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
