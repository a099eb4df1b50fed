"""Autocast on our device, with PyTorch's policies for the device that runs its operators.

    with torch.autocast("lazy", dtype=torch.bfloat16):
        x @ w            bfloat16          mse_loss(x, y)      float32          cat([x, y])      the widest of the two

PyTorch says which operators have a policy. Few compute in the narrow dtype or promote; all others compute in float32.
A GPU narrows more operators. It does not cast operands of sums, only their results, which are float32.
"""

from collections.abc import Callable
from typing import Any

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.device.host_library import HOST
from smelt.meta.devices import tensors_in

KEY = "AutocastPrivateUse1"


@dataclass(frozen=True, slots=True)
class Policies:
    """PyTorch's policies for one type of device. `wide_results`: operators whose result dtype is set instead."""

    key: str
    narrow: frozenset[str]
    promoted: frozenset[str]
    wide_results: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()


_BOTH = frozenset(
    {
        *("conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        *("_convolution", "mm", "bmm", "addmm", "addbmm", "baddbmm", "matmul", "linear", "linalg_vecdot", "prelu"),
        "scaled_dot_product_attention",
    }
)

POLICIES = {
    HOST.type: Policies(
        "AutocastCPU",
        _BOTH | {"_native_multi_head_attention", "mkldnn_rnn_layer"},
        frozenset({"stack", "cat", "index_copy"}),
    ),
    "cuda": Policies(
        "AutocastCUDA",
        _BOTH
        | {
            *("convolution", "cudnn_convolution", "cudnn_convolution_transpose", "addmv", "addr", "einsum", "mv"),
            *("chain_matmul", "linalg_multi_dot"),
            *("_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell"),
            *("rnn_relu_cell", "_scaled_dot_product_flash_attention"),
        },
        frozenset(
            {
                *("addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put"),
                *("tensordot", "scatter_add"),
            }
        ),
        frozenset(
            {
                *("prod", "softmax", "log_softmax", "cumprod", "cumsum", "linalg_vector_norm", "linalg_matrix_norm"),
                *("sum", "norm"),
            }
        ),
        frozenset({"binary_cross_entropy"}),
    ),
}


def register_autocast(device_type: str, like: str = HOST.type) -> list[Any]:
    """Let autocast cast on our device as on devices of type `like`. Ends when the returned registrations die."""
    policies = POLICIES[like]
    library: Any = torch.library.Library  # untyped
    others = library("_", "IMPL", KEY)
    others.fallback(torch.library.fallthrough_kernel, KEY)
    aten = library("aten", "IMPL", KEY)
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    for full in torch._C._dispatch_get_all_op_names():
        namespace, _, name = full.partition("::")
        if namespace == "aten" and has(full, policies.key):
            aten.impl(name, _kernel(name, device_type, policies), KEY)
    return [others, aten]


def _kernel(name: str, device_type: str, policies: Policies) -> Callable[..., Any]:
    base, _, overload = name.partition(".")
    key = torch._C._parse_dispatch_key(KEY)
    assert key is not None
    excluded = torch._C.DispatchKeySet(key)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        operator = getattr(getattr(torch.ops.aten, base), overload or "default")
        if base in policies.refused:
            raise RuntimeError(_REFUSED.format(base))
        if base in policies.wide_results:
            with torch._C._ExcludeDispatchKeyGuard(excluded):
                return _with_wide_results(operator, args, kwargs)
        to = _dtype(base, device_type, policies, (*args, *kwargs.values()))
        with torch._C._ExcludeDispatchKeyGuard(excluded):
            named = {key: _cast(each, to) for key, each in kwargs.items()}
            return operator(*[_cast(each, to) for each in args], **named)

    return kernel


_REFUSED = (
    "torch.nn.functional.{0} and torch.nn.BCELoss are unsafe to autocast: combine the sigmoid and the loss by "
    "torch.nn.functional.binary_cross_entropy_with_logits"
)


def _with_wide_results(operator: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Sums and similar reductions: results are float32 unless the program sets a dtype; operands are not cast."""
    first = args[0]
    is_narrow = first.is_floating_point() and first.dtype is not torch.float64 and _is_ours(first)
    names = [argument.name for argument in operator._schema.arguments]
    if is_narrow and operator._schema.name == "aten::norm" and "dtype" not in names:
        power = args[1] if len(args) > 1 else kwargs.get("p", 2)
        if operator._overloadname == "Scalar":
            return torch.ops.aten.norm.ScalarOpt_dtype(first, power, dtype=torch.float32)
        dims = args[2] if len(args) > 2 else kwargs["dim"]
        keeps = args[3] if len(args) > 3 else kwargs.get("keepdim", False)
        return torch.ops.aten.norm.ScalarOpt_dim_dtype(first, power, dims, keeps, dtype=torch.float32)
    if not is_narrow or "dtype" not in names:
        return operator(*args, **kwargs)
    place = names.index("dtype")
    dtype = args[place] if place < len(args) else kwargs.get("dtype")
    if dtype is not None:
        return operator(*args, **kwargs)
    after = dict(zip(names[place + 1 :], args[place + 1 :], strict=False))
    return operator(*args[:place], **{**kwargs, **after, "dtype": torch.float32})


def _dtype(name: str, device_type: str, policies: Policies, values: Any) -> torch.dtype:
    if name in policies.narrow:
        return torch.get_autocast_dtype(device_type)
    if name in policies.promoted and not any(each.dtype is torch.float32 for each in tensors_in(values)):
        return torch.get_autocast_dtype(device_type)
    return torch.float32


def _cast(value: Any, to: torch.dtype) -> Any:
    """Cast as PyTorch does: floating-point tensors on the device, except float64."""
    if isinstance(value, tuple | list):
        return type(value)([_cast(item, to) for item in value])
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.dtype is torch.float64:
        return value
    return value.to(to) if _is_ours(value) else value


def _is_ours(tensor: torch.Tensor) -> bool:
    return tensor.device.type == torch._C._get_privateuse1_backend_name()
