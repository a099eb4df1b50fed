"""Functions of PyTorch's that ask for another compiler or look at data, once more in Python; found by their names.

    associative_scan(combine, xs, 0, combine_mode="pointwise")      →      the generic scan, of the same function
    flex_attention(q, k, v, score_mod, block_mask)                  →      PyTorch's own formula, as eager computes it

Their modules are loaded when the program loads them, and not by smelt.
"""

import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from smelt.capture.model.marks import unsupported

_BARE_CONTAINERS = tuple(torch._jit_internal._RAW_TYPE_NAME_MAPPING)


def check_args_exist(target_type: Any) -> None:
    """For `torch.jit.isinstance`, which refuses `list` where `list[int]` has to stand."""
    for bare in _BARE_CONTAINERS:
        if target_type is bare:
            unsupported("torch.jit.isinstance by a container without the types in it")


def check_empty_containers(obj: Any) -> None:
    """For `torch.jit.isinstance`, which warns of those."""
    if isinstance(obj, (list, dict, tuple)) and len(obj) == 0:
        unsupported("torch.jit.isinstance of an empty container")


def check_min_max_valid(min_val: Any, max_val: Any) -> bool:
    """For observers of quantization. Where one has seen nothing the graph fails, and Python runs the call."""
    if min_val.numel() == 0 or max_val.numel() == 0:
        unsupported("the quantization parameters of an observer that has seen nothing")
    torch._check_tensor_all(~((min_val == float("inf")) & (max_val == float("-inf"))))  # type: ignore[no-untyped-call]
    torch._check_tensor_all(min_val <= max_val)  # type: ignore[no-untyped-call]
    return True


def module_to(
    module: Any,
    *args: Any,
    device: Any = None,
    dtype: Any = None,
    non_blocking: bool = False,
    memory_format: Any = None,
) -> Any:
    """`module.to(…)` of a module that is there already, which changes nothing."""
    for argument in args:
        if isinstance(argument, torch.Tensor):
            device, dtype = argument.device, argument.dtype
        elif isinstance(argument, torch.dtype):
            dtype = argument
        elif isinstance(argument, (str, torch.device)):
            device = argument
        elif not isinstance(argument, bool):
            unsupported("Module.to")
    device = None if device is None else torch.device(device)
    if memory_format is not None or (dtype is not None and not dtype.is_floating_point):
        unsupported("Module.to")
    for tensor in [*module.parameters(), *module.buffers()]:
        if device is not None and tensor.device != device:
            unsupported("Module.to another device")
        if dtype is not None and tensor.dtype != dtype and tensor.is_floating_point():
            unsupported("Module.to another dtype")
        if tensor.is_complex():
            unsupported("Module.to of complex numbers")
    return module


def annotate(annotation_dict: Any) -> Iterator[None]:
    """Inside of it PyTorch's tracers note something down with each node."""
    yield


def attribute_behind(module: Any, attr: str) -> Any:
    """`torch.backends.cudnn` is an object in front of the module that has its functions."""
    return getattr(module.m, attr)


def hide_backend_settings(hidden: bool) -> None:
    """From here on `torch.backends.cudnn.enabled` and the like cannot be read: they would be others in eager."""
    raise RuntimeError("capture follows this, and Python never runs it")


def cudnn_flags(*args: Any, **kwargs: Any) -> Iterator[None]:
    """Where there is no GPU, nothing depends on these flags but who asks for them."""
    if torch.cuda.is_available():
        unsupported("torch.backends.cudnn.flags, by which operators on a GPU choose their kernels")
    hide_backend_settings(True)
    try:
        yield
    finally:
        hide_backend_settings(False)


def run_function(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function that PyTorch would compile first."""
    return function(*args)


def scan_pointwise(operator: Any, combine_fn: Any, xs: Any, additional_inputs: Any) -> Any:
    from torch._higher_order_ops.associative_scan import generic_associative_scan

    leaves, others = list(xs), tuple(additional_inputs)
    return generic_associative_scan(combine_fn, leaves, additional_inputs=others)  # type: ignore[no-untyped-call]


def flex_attention(operator: Any, query: Any, *args: Any, **kwargs: Any) -> Any:
    from torch._higher_order_ops.flex_attention import math_attention

    out, logsumexp, max_scores = math_attention(query, *args, **kwargs)
    fill_order = sorted(range(query.dim()), key=query.stride)  # of memory, as the query has it: the fastest first
    fill_order.remove(query.dim() - 1)
    slowest_first = [*reversed(fill_order), query.dim() - 1]
    back = [slowest_first.index(dim) for dim in range(query.dim())]
    return out.permute(slowest_first).clone(memory_format=torch.contiguous_format).permute(back), logsumexp, max_scores


def index_by_tensors(enabled: bool) -> None:
    """From here on `x[i]` by a tensor without dimensions is an operator, which does not ask for the number."""
    raise RuntimeError("capture follows this, and Python never runs it")


class IndexByTensors:
    """Stands for `TransformGetItemToIndex`, a mode of PyTorch's that does the same."""

    def __enter__(self) -> None:
        index_by_tensors(True)

    def __exit__(self, *failure: object) -> None:
        index_by_tensors(False)


def ask_classes(enabled: bool) -> bool:
    """From here on classes of tensors are asked for functions of PyTorch, or not; returns whether they were before."""
    raise RuntimeError("capture follows this, and Python never runs it")


class ClassesUnasked:
    """Stands for `torch._C.DisableTorchFunctionSubclass` in a `__torch_function__`."""

    def __enter__(self) -> None:
        self.before = ask_classes(False)

    def __exit__(self, *failure: object) -> None:
        ask_classes(self.before)


BY_NAME: dict[str, Callable[..., Any]] = {
    "torch._jit_internal.check_args_exist": check_args_exist,
    "torch._jit_internal.check_empty_containers": check_empty_containers,
    "torch.ao.quantization.utils.check_min_max_valid": check_min_max_valid,
    "torch.nn.modules.module.Module.to": module_to,
    "torch.backends.PropModule.__getattr__": attribute_behind,
    "torch.backends.cudnn.flags": cudnn_flags,
    "torch.fx.traceback.annotate": annotate,
    "torch._higher_order_ops.utils._maybe_compile_and_run_fn": run_function,
    "torch._higher_order_ops.associative_scan.AssociativeScanOp.__call__": scan_pointwise,
    "torch._higher_order_ops.flex_attention.FlexAttentionHOP.__call__": flex_attention,
}

WHOLE: frozenset[str] = frozenset(
    {
        "torch._jit_internal.check_args_exist",
        "torch._jit_internal.check_empty_containers",
        "torch.ao.quantization.utils.check_min_max_valid",
        "torch.nn.modules.module.Module.to",
        "torch._higher_order_ops.flex_attention.FlexAttentionHOP.__call__",
        "torch.nn.attention.flex_attention.create_mask",
    }
)
"""Functions inside of which no graph may end: Python calls those that cannot be followed to their end."""

_INDEXING = types.ModuleType("torch._dynamo._trace_wrapped_higher_order_op")
_INDEXING.TransformGetItemToIndex = IndexByTensors  # type: ignore[attr-defined]

MODULES: dict[str, types.ModuleType] = {_INDEXING.__name__: _INDEXING}
"""What stands for modules of another compiler that PyTorch's functions import, so that they are not loaded."""
