"""Where an operator's result is: on the device of its operands, by PyTorch's rules for operands on several devices.

    mul(f32[4, 8] on cuda:0, f32[] on cpu)        → cuda:0        a CPU tensor without dimensions counts as a number
    index(f32[9] on cuda:0, [i64[3] on cpu])      → cuda:0        indices may be on the CPU
    add(f32[4] on cuda:0, f32[4] on cpu)          → RuntimeError, with PyTorch's words

Rules of operators (`meta.rules`) return specs without a device; this is the one place that adds it. What PyTorch would
accept and nothing here knows of raises as well: then the call runs as the program has it, in eager PyTorch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from smelt.device.host_library import HOST, on_host
from smelt.meta.effects import is_pointwise_op

# Operators that take their operands from anywhere: they copy from one device to another.
_COPIES = frozenset({"copy", "copy_", "_to_copy", "_copy_from", "_copy_from_and_resize", "set_data"})
_LIST_COPIES = frozenset({"_foreach_copy", "_foreach_copy_"})

# Operators with arguments that may be on the CPU whatever the others are on, by the names of those.
_HOST_ARGUMENTS: dict[str, frozenset[str]] = {
    **dict.fromkeys(
        ("index", "_unsafe_index", "index_put", "index_put_", "_unsafe_index_put", "_index_put_impl",
         "_index_put_impl_", "_unsafe_masked_index", "_unsafe_masked_index_put_accumulate"),
        frozenset({"indices"}),
    ),
    **dict.fromkeys(
        ("_ctc_loss", "_ctc_loss_backward", "_cudnn_ctc_loss", "_use_cudnn_ctc_loss", "_use_miopen_ctc_loss"),
        frozenset({"targets", "input_lengths", "target_lengths"}),
    ),
    "_pack_padded_sequence": frozenset({"lengths"}),
    "_pack_padded_sequence_backward": frozenset({"batch_sizes"}),
    "_cudnn_rnn": frozenset({"dropout_state"}),
    **dict.fromkeys(
        ("_scaled_dot_product_flash_attention_backward", "_scaled_dot_product_efficient_attention_backward",
         "_scaled_dot_product_cudnn_attention_backward", "_flash_attention_backward", "_efficient_attention_backward",
         "_cudnn_attention_backward"),
        frozenset({"philox_seed", "philox_offset", "rng_state", "unused", "cum_seq_q", "cum_seq_k"}),
    ),
    **dict.fromkeys(
        ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_", "_fused_adam", "_fused_adamw",
         "_fused_sgd", "_fused_adagrad"),
        frozenset({"lr", "grad_scale", "found_inf"}),
    ),
}  # fmt: skip

# Operators beside those that PyTorch marks as element-wise that take a CPU tensor without dimensions for a number.
_ELEMENT_WISE = frozenset(
    {"floor_divide", "floor_divide_", "rsub", "copysign_", "eq_", "ne_", "lt_", "le_", "gt_", "ge_", "fill", "fill_",
     "masked_fill", "masked_fill_"}
)  # fmt: skip
# Operators that PyTorch marks as element-wise and that take no number of the CPU for another device all the same.
_ONE_DEVICE = frozenset(
    {"clamp", "clamp_", "clamp_max", "clamp_max_", "clamp_min", "clamp_min_", "gcd", "lcm", "logaddexp", "logaddexp2",
     "nextafter", "nextafter_", "igamma", "igamma_", "igammac", "igammac_", "equal", "gelu_backward",
     "threshold_backward", "sigmoid_backward", "tanh_backward", "logit_backward", "native_dropout_backward",
     "addcdiv", "addcdiv_"}
)  # fmt: skip
# Operators that take such a number for some arguments alone, by the names of those.
_NUMBERS_AS: dict[str, frozenset[str]] = {
    **dict.fromkeys(("addcmul", "addcmul_"), frozenset({"tensor2"})),
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor"), frozenset({"other"})),
    **dict.fromkeys(("lerp", "lerp_"), frozenset({"weight"})),
    **dict.fromkeys(("masked_fill", "masked_fill_"), frozenset({"value"})),
}
_BY_INDEX = frozenset(
    {"index_put", "index_put_", "_index_put_impl", "_index_put_impl_", "_unsafe_index_put", "index_fill",
     "index_fill_"}
)  # fmt: skip


def result_device(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.device:
    """The device of what a call returns: the one it asks for, else that of its operands, else the CPU.

    Raises PyTorch's error for operands on devices that do not go together.
    """
    explicit = kwargs.get("device")
    if explicit is not None:
        return with_index(torch.device(explicit))
    device: torch.device | None = None
    for tensor in tensors_in((*args, *kwargs.values())):
        if device is None:
            device = tensor.device
        elif tensor.device != device:
            return _common_device(func, args, kwargs)
    return device or HOST


def result_devices(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], count: int) -> list[torch.device]:
    """The devices of the `count` tensors that a call returns in a list. Operators on lists of tensors (`_foreach_add`)
    compute element by element of those, each where it is."""
    lists = [value for value in args if isinstance(value, tuple | list) and value and _is_tensor(value[0])]
    if not _is_foreach(func) or not lists or len(lists[0]) != count:
        return [result_device(func, args, kwargs)] * count
    if _name(func) in _LIST_COPIES:
        return [tensor.device for tensor in lists[0]]
    named = {**dict(zip((each.name for each in func._schema.arguments), args, strict=False)), **kwargs}
    numbers = [value for name, value in named.items() if isinstance(value, torch.Tensor) and name != "scalars"]
    return [_of_operands(func, [*each, *numbers], True) for each in zip(*lists, strict=True)]


def with_index(device: torch.device) -> torch.device:
    """`cuda` as the device that means now; tensors are never on a device without a number, but for the CPU's."""
    if device.index is not None or on_host(device) or device.type == "meta":
        return device
    backend = getattr(torch, device.type, None)
    usable = backend is not None and backend.is_available() and hasattr(backend, "current_device")
    return torch.device(device.type, backend.current_device() if usable else 0)


def current_index(kind: str) -> Callable[[], int] | None:
    """What answers the number of the current device of a kind, a function in C where there is one; None where there is
    no second one that could be current."""
    backend = getattr(torch, kind, None)
    if backend is None or not hasattr(backend, "current_device") or backend.device_count() < 2:
        return None
    asked: Callable[[], int] = getattr(torch._C, f"_{kind}_getDevice", backend.current_device)
    return asked


def current_devices() -> tuple[torch.device, ...]:
    """What devices without a number mean now, where that can change: what is traced depends on it."""
    if not torch.cuda.is_initialized() or current_index("cuda") is None:  # type: ignore[no-untyped-call]
        return ()
    return (with_index(torch.device("cuda")),)


def tensors_in(values: Sequence[Any]) -> list[torch.Tensor]:
    """Every tensor among arguments, lists included."""
    tensors: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, tuple | list):
            tensors.extend(tensors_in(value))
    return tensors


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _name(func: Any) -> str:
    return str(func._schema.name).partition("::")[2]


def _is_foreach(func: Any) -> bool:
    return func.namespace == "aten" and _name(func).startswith("_foreach_")


def is_element_wise(func: Any) -> bool:
    """Whether an operator computes point by point, so that a CPU tensor without dimensions can count as a number."""
    return isinstance(func, torch._ops.OpOverload) and (is_pointwise_op(func) or _name(func) in _ELEMENT_WISE)


def takes_number(func: Any, name: str) -> bool:
    """Whether PyTorch takes a CPU tensor without dimensions for a number, as the argument of this name."""
    return _takes_numbers(func) or name in _NUMBERS_AS.get(_name(func), ())


def _takes_numbers(func: Any) -> bool:
    """Whether PyTorch lets a program mix devices so."""
    name = _name(func)
    return name in _BY_INDEX or (name not in _ONE_DEVICE and name not in _NUMBERS_AS and is_element_wise(func))


def _common_device(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.device:
    """The device of a call whose operands are on several."""
    name = _name(func)
    if func.namespace not in ("aten", "prims"):
        raise RuntimeError(f"{func} takes tensors on several devices, and does not say on which its result is")
    if name in _COPIES:
        return tensors_in(args)[0].device
    if _is_foreach(func):
        lists = [value for value in args if isinstance(value, tuple | list) and value and _is_tensor(value[0])]
        return result_devices(func, args, kwargs, len(lists[0]))[0]
    device = _of_operands(func, list(_operands(func, args, kwargs)), _takes_numbers(func))
    _check_written(func, args, kwargs, device)
    return device


def _operands(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    """The tensors that must be on one device."""
    anywhere = _HOST_ARGUMENTS.get(_name(func), frozenset())
    numbers = _NUMBERS_AS.get(_name(func), frozenset())
    by_name = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)}
    for name, value in {**by_name, **kwargs}.items():
        for tensor in tensors_in((value,)):
            if not on_host(tensor.device) or not (name in anywhere or (name in numbers and tensor.dim() == 0)):
                yield tensor


def _of_operands(func: Any, operands: Sequence[torch.Tensor], takes_numbers: bool) -> torch.device:
    def is_number(tensor: torch.Tensor) -> bool:
        return takes_numbers and tensor.dim() == 0 and on_host(tensor.device)

    devices = dict.fromkeys(tensor.device for tensor in operands if not is_number(tensor))
    if len(devices) > 1:
        first, second, *_ = devices
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{first} and {second}! (in {func})"
        )
    return next(iter(devices), HOST)


def _check_written(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], device: torch.device) -> None:
    """What a call writes is on the device that it computes on: a number of the CPU is read, never written."""
    if not func._schema.is_mutable:
        return
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        written = args[position] if position < len(args) else kwargs.get(argument.name)
        for tensor in tensors_in((written,)):
            if tensor.device != device:
                raise RuntimeError(
                    "Expected all tensors to be on the same device, but found at least two devices, "
                    f"{device} and {tensor.device}! (in {func})"
                )
