"""Nothing compiled before, no compiler error hidden, compiled autograd off afterwards."""

import warnings
from collections.abc import Iterator

import pytest
import torch

import smelt


@pytest.fixture(autouse=True)
def strictly() -> Iterator[None]:
    smelt.reset()
    torch.manual_seed(0)
    smelt.config.suppress_errors = False
    with warnings.catch_warnings():
        warnings.simplefilter("error", smelt.SmeltWarning)
        yield
    smelt.config.compiled_autograd = False
    smelt.config.suppress_errors = True
    smelt.reset()
