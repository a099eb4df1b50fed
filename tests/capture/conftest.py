"""A warning of smelt's is a failure here unless the test expects it: nothing may fall back unnoticed."""

from collections.abc import Iterator

import pytest

from smelt.base.options import config


@pytest.fixture(autouse=True)
def raise_errors() -> Iterator[None]:
    config.suppress_errors = False
    yield
    config.suppress_errors = True
