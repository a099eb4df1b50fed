"""Functional tensors: PyTorch's functionalization follows their mutations and aliases; behind each is a fake tensor."""

import torch

from smelt.meta.fake_tensor import FakeTensor


def functional(fake: FakeTensor) -> torch.Tensor:
    """A tensor that functionalization follows, standing for `fake`."""
    wrapped: torch.Tensor = torch._to_functional_tensor(fake)
    return wrapped


def synced(tensor: torch.Tensor) -> FakeTensor:
    """The fake tensor behind a functional tensor, after all mutations of it and its aliases (`torch._sync`)."""
    torch._sync(tensor)  # type: ignore[attr-defined, no-untyped-call]
    fake = torch._from_functional_tensor(tensor)
    assert isinstance(fake, FakeTensor)
    return fake


def storage_id(tensor: torch.Tensor) -> int:
    """Equal for functional tensors that share a storage in eager."""
    address: int = tensor.untyped_storage()._cdata
    return address
