"""Random programs on lazy tensors, always the same; `python -m tests.lazy.generated.campaign` has others, and
`python -m tests.lazy.generated.training_campaign` other trainings."""

import pytest

from tests.lazy.generated import training
from tests.lazy.generated.running import failure_of
from tests.pipeline.generated.grammar import program_of


@pytest.mark.parametrize("seed", range(1, 13))
def test_programs(seed: int) -> None:
    assert failure_of(program_of(seed)) is None


@pytest.mark.parametrize("seed", range(1, 9))
def test_trainings(seed: int) -> None:
    assert training.failure_of(seed) is None


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(9, 41))
def test_more_trainings(seed: int) -> None:
    assert training.failure_of(seed) is None
