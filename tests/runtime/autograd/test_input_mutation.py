"""New values of mutated inputs, copied back by as few launches as PyTorch makes of them."""

from types import SimpleNamespace
from typing import Any

import torch

import smelt
from smelt.runtime.autograd.input_mutation import _launched_together


def _tensor(dtype: torch.dtype, device: str) -> Any:
    return SimpleNamespace(dtype=dtype, device=device, is_cuda=device.startswith("cuda"))


def test_copies_of_one_dtype_on_a_gpu_share_a_launch() -> None:
    """PyTorch copies a list of several dtypes one by one."""
    kinds = [(torch.bfloat16, "cuda:0"), (torch.bfloat16, "cuda:0"), (torch.int64, "cuda:0"), (torch.int64, "cuda:1")]
    kinds += [*kinds, (torch.float32, "cpu"), (torch.float32, "cpu")]
    pairs = [(_tensor(*kind), _tensor(*kind)) for kind in kinds]
    groups = _launched_together(pairs)
    assert [len(group) for group in groups] == [4, 2, 2, 1, 1]
    assert all(len({(tensor.dtype, tensor.device) for tensor, _ in group}) == 1 for group in groups)


def test_writes_back_statistics_and_counts() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.BatchNorm1d(8))
    twin = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.BatchNorm1d(8))
    twin.load_state_dict(model.state_dict())
    compiled = smelt.compile(model)
    for _ in range(3):
        x = torch.randn(5, 4)
        compiled(x).sum().backward()
        twin(x).sum().backward()
    for mine, theirs in zip(model.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs)
