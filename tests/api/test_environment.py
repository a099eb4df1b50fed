"""`SMELT_DISABLE=1` turns the compiler off without a change to the program."""

import pytest
import torch

import smelt
from smelt.explain.doctor import examine


@pytest.fixture(autouse=True)
def disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_DISABLE", "1")
    smelt.reset()


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_compile_returns_its_argument() -> None:
    model = torch.nn.Linear(2, 2)
    assert smelt.compile(model) is model
    assert smelt.compile(doubled, fullgraph=True) is doubled
    assert smelt.compile(fullgraph=True)(doubled) is doubled


def test_wrong_arguments_are_still_errors() -> None:
    with pytest.raises(smelt.SmeltError, match="SM003"):
        smelt.compile(doubled, options={"feul": 3})


@pytest.mark.parametrize("value", ["", "0"])
def test_empty_and_zero_mean_no(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("SMELT_DISABLE", value)
    assert smelt.compile(doubled) is not doubled


def test_torch_compile_with_our_backend_runs_eagerly() -> None:
    x = torch.ones(3)
    assert torch.equal(torch.compile(doubled, backend="smelt")(x), x * 2)
    assert smelt.counters["kernels"] == 0


def test_backwards_are_the_engines() -> None:
    weight = torch.ones(3, requires_grad=True)
    with smelt.compiled_autograd.enable(smelt.compile()):
        doubled(weight).sum().backward()
    assert weight.grad is not None and torch.equal(weight.grad, torch.full((3,), 2.0))
    assert smelt.counters["compiled_autograd_captures"] == 0


def test_doctor_names_the_reason() -> None:
    (check,) = [check for check in examine(smelt.compile) if check.name == "self-check"]
    assert check.good is None and "SMELT_DISABLE" in check.text
