"""`TensorSpec`: sizes in bytes, and whether a tensor is contiguous."""

import pytest
import torch

from smelt.ir.tensorspec import TensorSpec


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float64, torch.bool, torch.complex128), ids=str)
def test_the_size_in_bytes_follows_from_the_dtype(dtype: torch.dtype) -> None:
    tensor = torch.empty(3, 5, dtype=dtype)
    assert TensorSpec.of(tensor).nbytes == tensor.nbytes


def test_dimensions_of_size_one_may_have_any_stride() -> None:
    host = torch.device("cpu")
    assert TensorSpec((4, 1), (1, 7), torch.float32, host).is_contiguous
    assert not TensorSpec((4, 2), (1, 4), torch.float32, host).is_contiguous
