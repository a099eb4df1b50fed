"""Variables of the environment decide what is captured: no break, and another graph where they change."""

import os

import pytest
import torch

import smelt


def by_variable(x: torch.Tensor) -> torch.Tensor:
    if os.getenv("SMELT_TEST_TWICE", "0") == "1":
        return x * 2
    if "SMELT_TEST_THRICE" in os.environ:
        return x * 3
    if os.environ.get("SMELT_TEST_HALVES"):
        return x / 2
    return x + 1


def test_variables_are_read_and_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    smelt.reset()
    compiled = smelt.compile(by_variable, backend="eager", fullgraph=True)
    x = torch.full((3,), 5.0)
    for name, value in (
        (None, ""), ("TWICE", "1"), ("TWICE", "0"), ("THRICE", ""), ("HALVES", ""), ("HALVES", "é"),
    ):  # fmt: skip
        with monkeypatch.context() as patch:
            if name is not None:
                patch.setenv(f"SMELT_TEST_{name}", value)
            assert torch.equal(compiled(x), by_variable(x))
        assert torch.equal(compiled(x), x + 1)


def test_a_variable_that_is_missing() -> None:
    def insists(x: torch.Tensor) -> torch.Tensor:
        return x * float(os.environ["SMELT_TEST_MISSING"])

    with pytest.raises(KeyError, match="SMELT_TEST_MISSING"):
        smelt.compile(insists, backend="eager")(torch.ones(2))
