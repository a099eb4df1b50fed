"""Tests with and without a look into PyTorch's memory: `make test-no-layout` runs some with SMELT_NO_LAYOUT=1.

    @needs_layout                          the test is about what is found there: it is skipped without
    assert captures() == when_read(1)      no backward is captured where nodes of autograd's graph are not read
"""

import pytest

from smelt.torch_abi.probe import why_not_probe

LOOKED_AT = why_not_probe() is None

needs_layout = pytest.mark.skipif(not LOOKED_AT, reason=f"is about PyTorch's memory: {why_not_probe()}")


def when_read(count: int) -> int:
    return count if LOOKED_AT else 0
