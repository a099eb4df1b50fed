"""What happens when a graph cannot be compiled: eager with a warning, or the error, by option and by setting."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import fx

import smelt


class Broken(Exception):
    pass


def broken(module: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
    raise Broken("no such luck")


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    before = smelt.config.suppress_errors
    yield
    smelt.config.suppress_errors = before


def test_by_default_the_answer_is_eagers_and_a_warning_says_why() -> None:
    with pytest.warns(smelt.SmeltWarning, match="SM020.*no such luck"):
        assert torch.equal(smelt.compile(double, backend=broken)(torch.ones(2)), torch.full((2,), 2.0))


def test_an_option_makes_it_an_error() -> None:
    with pytest.raises(Broken, match="no such luck"):
        smelt.compile(double, backend=broken, options={"fallback": False})(torch.ones(2))


def test_a_setting_makes_it_an_error_everywhere() -> None:
    smelt.config.suppress_errors = False
    with pytest.raises(Broken, match="no such luck"):
        smelt.compile(double, backend=broken)(torch.ones(2))
