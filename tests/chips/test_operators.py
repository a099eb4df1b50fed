"""Some of PyTorch's operators on a chip, forward and backward; `tests.ops_db.sweep --backend sim` tries all of them."""

import warnings

import pytest

import smelt
from tests.ops_db.sweep import Case, Task, check

KERNELS = ("add", "cumsum", "index_put", "nn.functional.layer_norm", "var_mean", "sort", "masked_fill")
"""None of which the host has a part in."""


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("operator", KERNELS)
def test_an_operator_gives_what_the_host_gives(operator: str, dtype: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", smelt.SmeltWarning)
        found = check(Case(operator, "", dtype), Task("sim", samples=1))
    assert found.wrong == [] and found.fallbacks == [] and found.samples
