"""Every schedule of a GPU on a GPU: twice eager's error and four ulp, forward and backward, in each float."""

import pytest
import torch

from tests.gpu.helpers import CUDA, made_for_gpu
from tests.gpu.schedules import SCHEDULES
from tests.ops_db.comparing import compare


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("name", SCHEDULES)
def test_as_exact_as_eager(name: str, dtype: torch.dtype) -> None:
    schedule = SCHEDULES[name]
    with made_for_gpu():
        found = compare(schedule.function, tuple(schedule.inputs(CUDA, dtype)), {})
    assert found.wrong == [] and found.fallbacks == []
