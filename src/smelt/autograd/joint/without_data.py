"""User code on tensors that have no data: reading data raises.

x.numpy()   →   FakeTensorError, where NumPy would return uninitialized memory
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from smelt.meta.fake_tensor import FakeTensorError

_ASK_FOR_DATA = frozenset(
    getattr(torch.Tensor, name) for name in ("numpy", "__array__", "__dlpack__", "data_ptr", "tolist")
)


def stands_for_data(value: object) -> bool:
    """Whether a tensor is a functional tensor, which stands for a fake tensor."""
    return isinstance(value, torch.Tensor) and torch._is_functional_tensor(value)


class WithoutData(TorchFunctionMode):
    """While this mode is on, reading data of functional tensors raises."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _ASK_FOR_DATA and args and stands_for_data(args[0]):
            raise FakeTensorError(f"Tensor.{func.__name__} asks for data")
        return func(*args, **(kwargs or {}))
