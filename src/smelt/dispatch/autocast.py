"""Autocast on our device: the operators that PyTorch casts on the CPU are cast here, by the same policies.

    with torch.autocast("lazy", dtype=torch.bfloat16):
        x @ w            bfloat16          mse_loss(x, y)      float32          cat([x, y])      the widest of the two

Which operators have a policy is asked of PyTorch. Few compute in the narrow dtype or promote; all others are float32.
"""

from collections.abc import Callable
from typing import Any

import torch

KEY = "AutocastPrivateUse1"

# PyTorch's policies for the CPU.
_NARROW = frozenset(
    {
        *("conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        *("_convolution", "mm", "bmm", "addmm", "addbmm", "baddbmm", "matmul", "linear", "linalg_vecdot", "prelu"),
        *("scaled_dot_product_attention", "_native_multi_head_attention", "mkldnn_rnn_layer"),
    }
)
_PROMOTED = frozenset({"stack", "cat", "index_copy"})


def register_autocast(device_type: str) -> list[Any]:
    """Let autocast cast on our device. It ends when what is returned dies."""
    library: Any = torch.library.Library  # untyped
    others = library("_", "IMPL", KEY)
    others.fallback(torch.library.fallthrough_kernel, KEY)
    aten = library("aten", "IMPL", KEY)
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    for full in torch._C._dispatch_get_all_op_names():
        namespace, _, name = full.partition("::")
        if namespace == "aten" and has(full, "AutocastCPU"):
            aten.impl(name, _kernel(name, device_type), KEY)
    return [others, aten]


def _kernel(name: str, device_type: str) -> Callable[..., Any]:
    base, _, overload = name.partition(".")
    key = torch._C._parse_dispatch_key(KEY)
    assert key is not None
    excluded = torch._C.DispatchKeySet(key)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        operator = getattr(getattr(torch.ops.aten, base), overload or "default")
        to = _dtype(base, device_type, (*args, *kwargs.values()))
        with torch._C._ExcludeDispatchKeyGuard(excluded):
            named = {key: _cast(each, to) for key, each in kwargs.items()}
            return operator(*[_cast(each, to) for each in args], **named)

    return kernel


def _dtype(name: str, device_type: str, values: Any) -> torch.dtype:
    if name in _NARROW:
        return torch.get_autocast_dtype(device_type)
    if name in _PROMOTED and not any(each.dtype is torch.float32 for each in _floats(values)):
        return torch.get_autocast_dtype(device_type)
    return torch.float32


def _floats(values: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, tuple | list):
            found += _floats(value)
        elif isinstance(value, torch.Tensor) and value.is_floating_point():
            found.append(value)
    return found


def _cast(value: Any, to: torch.dtype) -> Any:
    """As PyTorch casts arguments: floats of tensors on the device, but no doubles."""
    if isinstance(value, tuple | list):
        return type(value)([_cast(item, to) for item in value])
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.dtype is torch.float64:
        return value
    return value.to(to) if value.device.type == torch._C._get_privateuse1_backend_name() else value
