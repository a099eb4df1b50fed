"""Random tensor programs on lazy tensors, always the same; `python -m tests.lazy.generated.campaign` has others."""

import pytest

from tests.lazy.generated.running import failure_of
from tests.pipeline.generated.grammar import program_of


@pytest.mark.parametrize("seed", range(1, 13))
def test_programs(seed: int) -> None:
    assert failure_of(program_of(seed)) is None
