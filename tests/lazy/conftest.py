"""The lazy device, enabled once for the tests of this folder; each begins with nothing recorded."""

from collections.abc import Iterator

import pytest
import torch

import smelt


@pytest.fixture(autouse=True)
def lazy() -> Iterator[torch.device]:
    device = smelt.lazy.enable(background=False)
    smelt.lazy.step()
    yield device
    smelt.lazy.step()
