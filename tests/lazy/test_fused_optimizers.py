"""Optimizers with `fused=True` on lazy tensors: their updates are compiled with the step, and eager's numbers."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import smelt

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda given: torch.optim.AdamW(given, lr=0.01, fused=True),
    "adam": lambda given: torch.optim.Adam(given, lr=0.01, weight_decay=0.1, maximize=True, fused=True),
    "amsgrad": lambda given: torch.optim.AdamW(given, lr=0.01, amsgrad=True, fused=True),
    "no momentum": lambda given: torch.optim.Adam(given, lr=0.01, betas=(0.0, 0.0), fused=True),
    "sgd": lambda given: torch.optim.SGD(given, lr=0.01, fused=True),
    "nesterov": lambda given: torch.optim.SGD(
        given, lr=0.01, momentum=0.9, nesterov=True, weight_decay=0.1, fused=True
    ),
    "dampened": lambda given: torch.optim.SGD(given, lr=0.01, momentum=0.9, dampening=0.2, fused=True),
    "adagrad": lambda given: torch.optim.Adagrad(given, lr=0.01, lr_decay=0.1, weight_decay=0.1, fused=True),
}


def _trained(device: str, make: Callable[[Any], torch.optim.Optimizer], dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).to(device, dtype)
    optimizer = make(model.parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for _ in range(4):
        model(torch.randn(8, 16).to(device, dtype)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return [parameter.detach().cpu() for parameter in model.parameters()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training(name: str, dtype: torch.dtype) -> None:
    expected = _trained("cpu", OPTIMIZERS[name], dtype)
    before = dict(smelt.lazy.explain().fallbacks)
    with warnings.catch_warnings():
        warnings.simplefilter("error", smelt.SmeltWarning)
        found = _trained("lazy", OPTIMIZERS[name], dtype)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-14
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    assert smelt.lazy.explain().fallbacks == before


def test_narrow_parameters_are_rounded_once() -> None:
    def updated(device: str) -> torch.Tensor:
        torch.manual_seed(0)
        parameter = nn.Parameter(torch.randn(1000, dtype=torch.bfloat16).to(device))
        optimizer = torch.optim.AdamW([parameter], lr=0.01, fused=True)
        for _ in range(5):
            parameter.grad = torch.randn(1000, dtype=torch.bfloat16).to(device)
            optimizer.step()
        return parameter.detach().cpu()

    found, expected = updated("lazy"), updated("cpu")
    assert (found != expected).sum() <= 2  # which lie between two numbers of bfloat16


@pytest.mark.parametrize("infinite", [False, True])
def test_gradients_are_unscaled_and_infinite_ones_change_nothing(infinite: bool) -> None:
    def updated(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        param, grad, average, square = (torch.rand(50).to(device) for _ in range(4))
        torch._fused_adamw_(
            [param], [grad], [average], [square], [], [torch.tensor(3.0).to(device)],
            lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.1, eps=1e-8, amsgrad=False, maximize=False,
            grad_scale=torch.tensor(4.0).to(device), found_inf=torch.tensor(float(infinite)).to(device),
        )  # fmt: skip
        return [tensor.cpu() for tensor in (param, grad, average, square)]

    torch.testing.assert_close(updated("lazy"), updated("cpu"), rtol=1e-6, atol=1e-6)
