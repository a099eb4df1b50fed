"""Training as people write it: the model is moved to the GPU, and the default device is left alone.

Where a default device is set, optimizers count their steps in tensors on it, and each step waits for them.
"""

from collections.abc import Iterator

import pytest

from tests.targets import none_by_default


@pytest.fixture(autouse=True)
def no_default_device() -> Iterator[None]:
    with none_by_default():
        yield
