"""Explored machines against eager."""

from collections.abc import Callable
from typing import Any

import torch

from smelt.capture.explore.explore import explore
from tests.capture.explore.machine_reference import Reference


def same(ours: Any, theirs: Any, error: float = 0.0) -> None:
    """Equal, or where kernels computed it, but for a relative error."""
    assert type(ours) is type(theirs)
    if isinstance(theirs, torch.Tensor):
        torch.testing.assert_close(ours, theirs, rtol=error, atol=error, equal_nan=True)
    elif isinstance(theirs, tuple | list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            same(one, other, error)
    elif isinstance(theirs, dict):
        assert list(ours) == list(theirs)
        for key in theirs:
            same(ours[key], theirs[key], error)
    else:
        assert ours == theirs


def explored(function: Callable[..., Any], *inputs: tuple[Any, ...], **options: Any) -> Reference:
    """Explore with the first of the inputs, and compare on all of them."""
    machine = Reference(explore(function, inputs[0], **options))
    with torch.no_grad():
        for args in inputs:
            same(machine(*args), function(*[each.clone() if isinstance(each, torch.Tensor) else each for each in args]))
    return machine
