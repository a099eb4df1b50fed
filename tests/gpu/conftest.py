"""Tests that a GPU alone can answer: each begins with nothing compiled, and a warning of smelt's is a failure."""

import warnings
from collections.abc import Iterator

import pytest

import smelt
from tests.targets import device_type


@pytest.fixture(autouse=True)
def on_gpu() -> Iterator[None]:
    if device_type() != "cuda":
        pytest.skip("needs a GPU: pytest --device cuda")
    smelt.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error", smelt.SmeltWarning)
        yield
    smelt.reset()
