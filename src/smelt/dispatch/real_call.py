"""A call of an operator on real tensors in place of tensors of our device, whose results become tensors of our device.

    ours ── argument ──► real ── the operator ──► real ── result ──► ours: an argument, a view of one, or new
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch

from smelt.dispatch import tensors
from smelt.dispatch.signatures import Signature
from smelt.dispatch.tensors import Layout, layout_of


class RealCall(ABC):
    """One call of an operator. Subclasses say which tensors it gets on `real_device`, and what becomes of them."""

    def __init__(self, device_name: str, real_device: torch.device) -> None:
        self.device_name, self.real_device = device_name, real_device
        self.pairs: list[tuple[torch.Tensor, torch.Tensor, Layout]] = []  # ours, the real one, its layout before

    def run(self, known: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        real_args = self._argument(args)
        real_kwargs = {name: self._argument(value) for name, value in kwargs.items()}
        if known.takes_device and (kwargs.get("device") is not None or not self.pairs):
            real_kwargs["device"] = self.real_device
        with torch._C._InferenceMode(False), torch._C.DisableTorchFunction(), torch.no_grad():
            results = known.operator(*real_args, **real_kwargs)
            self.write_back(known, args, kwargs)
            return self._result(results)

    @abstractmethod
    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """The real tensor for one of ours."""

    @abstractmethod
    def write_back(self, known: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Apply to our tensors what the operator wrote to the real ones."""

    @abstractmethod
    def offset(self, ours: torch.Tensor, view: torch.Tensor) -> int:
        """Where a view of the real tensor of `ours` begins in the storage of `ours`, in elements of the view."""

    @abstractmethod
    def bring(self, real: torch.Tensor) -> torch.Tensor:
        """A tensor of ours for a new real one."""

    def _argument(self, value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)([self._argument(item) for item in value])
        if not isinstance(value, torch.Tensor) or value.device.type != self.device_name:
            return value
        for ours, real, _ in self.pairs:
            if ours is value:  # PyTorch asks whether what is written is an operand: `add(a, b, out=a)`
                return real
        real = self.read(value)
        self.pairs.append((value, real, layout_of(real)))
        return real

    def _result(self, value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)([self._result(item) for item in value])
        if not isinstance(value, torch.Tensor):
            return value
        if (kind := _unsupported_kind(value)) is not None:
            raise NotImplementedError(f"the device {self.device_name!r} has no {kind}")
        for ours, real, _ in self.pairs:
            if real is value:
                return ours
        for ours, real, _ in self.pairs:
            if value.numel() and real.untyped_storage()._cdata == value.untyped_storage()._cdata:
                return tensors.view_as(ours, value.dtype, value.shape, value.stride(), self.offset(ours, value))
        return self.bring(value.resolve_conj().resolve_neg())


def _unsupported_kind(tensor: torch.Tensor) -> str | None:
    """The kind of a tensor that a storage and strides do not describe."""
    if tensor.is_nested:
        return "nested tensors"
    if tensor.is_quantized:
        return "quantized tensors"
    return None if tensor.layout is torch.strided else f"tensors of layout {tensor.layout}"
