"""Inputs of ahead-of-time tracing: tensors, plain values to specialize on, and the state of the process.

    fn(x, 2.5, mode="fast")   →   key: (layout of x, (float, "2.5"), (str, "fast"), grad mode on, …)

What has no key is not traced: a tensor subclass, an object that may change between two calls. Nor is user code that
reads data.
"""

import enum
import types
from collections.abc import Sequence
from typing import Any

import torch

from smelt.autograd.joint.functional_trace import CannotTrace
from smelt.autograd.joint.without_data import WithoutData, stands_for_data
from smelt.ir.nodes.ambient import autocast_settings, default_devices
from smelt.ir.tensorspec import TensorSpec
from smelt.meta.devices import current_devices
from smelt.meta.fake_tensor import FakeTensor

_PLAIN = (
    type(None), type(...), type(NotImplemented), bool, int, str, bytes, range, torch.dtype, torch.device, torch.layout,
    torch.memory_format, torch.Size,
)  # fmt: skip
_BY_TEXT = (float, complex, slice)  # 0.0 and -0.0 are equal, NaN equals nothing, and slices have no hash before 3.12
# Compared by identity.
_BY_IDENTITY = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, enum.Enum,
                torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch.Generator)  # fmt: skip


class NotPure(CannotTrace):
    """The function runs, but does what no pure graph can: it falls back to eager."""


def key_of(leaf: Any) -> Any:
    """The part of a version's key for one argument."""
    if isinstance(leaf, torch.Tensor):
        return TensorSpec(tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.device, 0, leaf.requires_grad)
    if isinstance(leaf, _BY_TEXT):
        return type(leaf), repr(leaf)
    return (type(leaf), id(leaf)) if isinstance(leaf, _BY_IDENTITY) else (type(leaf), leaf)


def ambient_key() -> tuple[Any, ...] | None:
    """The part of a version's key for the state of the process; None where an active mode must see the function's
    calls."""
    devices = default_devices() if torch._C._len_torch_function_stack() else ()
    if devices is None or torch._C._len_torch_dispatch_stack() or torch._C._are_functorch_transforms_active():
        return None
    casts = autocast_settings() if torch._C._is_any_autocast_enabled() else None
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    return grad, inference, casts, torch.get_default_dtype(), devices, current_devices()


def why_not_traced(leaf: Any) -> str | None:
    """Why an argument cannot be an input of a graph."""
    if isinstance(leaf, torch.Tensor):
        return _why_no_input(leaf)
    if type(leaf) in _PLAIN or isinstance(leaf, (*_BY_TEXT, *_BY_IDENTITY)):
        return None
    return f"an argument is a {type(leaf).__name__}, which may change between calls"


def _why_no_input(tensor: torch.Tensor) -> str | None:
    if is_stand_in(tensor):
        return None
    if not _has_no_code(type(tensor)):
        return f"an argument is a {type(tensor).__name__}, a tensor subclass with operators of its own"
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        return "an argument is sparse, nested or quantized"
    if tensor.is_conj() or tensor.is_neg():
        return "an argument is conjugated or negated lazily"
    return None


def _has_no_code(kind: Any) -> bool:
    """Whether a tensor class overrides neither `__torch_function__` nor `__torch_dispatch__`."""
    if kind in (torch.Tensor, torch.nn.Parameter):
        return True
    plain, disabled = torch.Tensor, torch._C._disabled_torch_function_impl
    return kind.__torch_function__ is disabled and kind.__torch_dispatch__ is plain.__torch_dispatch__


def is_stand_in(leaf: Any) -> bool:
    """Whether a tensor is a fake tensor or a fake tensor."""
    return isinstance(leaf, FakeTensor | torch._subclasses.FakeTensor)


def varies(leaf: Any) -> bool:
    """Whether an example has dynamic shapes, or is a dynamic scalar."""
    if isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool):
        return True
    return isinstance(leaf, torch.Tensor) and TensorSpec.of(leaf).varies


_OF_STORAGE = frozenset(
    getattr(torch.Tensor, name)
    for name in ("untyped_storage", "storage", "_typed_storage", "storage_offset", "share_memory_", "is_shared")
)
_RESIZES_STORAGE = "resize_storage_bytes_"  # an operator of sharded parameters, whose schema says nothing of a write
_RESIZING = frozenset({torch.Tensor.resize_, torch.Tensor.resize_as_, torch.Tensor.set_})


class ProgramCode(WithoutData):
    """While this mode is on, user code runs on tensors without data, and what no pure graph can do raises."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if torch.is_inference_mode_enabled():
            raise NotPure("inference mode is entered inside of the function")
        if func in _OF_STORAGE and stands_for_data(args[0]):
            raise NotPure(f"Tensor.{func.__name__} depends on the memory of one call")
        if getattr(func, "__name__", "").partition(".")[0] == _RESIZES_STORAGE:
            raise NotPure(f"{func} resizes a storage")
        try:
            return super().__torch_function__(func, types, args, kwargs)
        except RuntimeError as error:
            if func in _RESIZING and not isinstance(error, CannotTrace):
                raise NotPure(f"Tensor.{func.__name__} resizes a storage") from error
            raise
