"""All of PyTorch's and Python's state that a compiler could leave changed, as one dict.

What `sys.exc_info()` says is left out: CPython itself does not restore it where an exception arrives while a handler is
entered or left, which signals do not.
"""

import gc
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.overrides import _get_current_function_mode_stack
from torch.utils import _python_dispatch

from smelt import _native
from tests.capture.interrupted.locks import held_locks


def _hooks() -> Any:
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


_SCALARS: dict[str, Callable[[], Any]] = {
    "dispatch modes": torch._C._len_torch_dispatch_stack,
    "function modes": lambda: [id(mode) for mode in _get_current_function_mode_stack()],  # type: ignore[no-untyped-call]
    "transforms": lambda: torch._C._functorch.peek_interpreter_stack() is None,
    "keys included": lambda: str(torch._C._dispatch_tls_local_include_set()),
    "keys excluded": lambda: str(torch._C._dispatch_tls_local_exclude_set()),
    "torch function": lambda: (torch._C._is_torch_function_enabled(), torch._C._is_torch_function_all_disabled()),
    "grad": torch.is_grad_enabled,
    "forward grad": lambda: (torch._C._is_fwd_grad_enabled(), forward_ad._current_level),
    "inference": torch.is_inference_mode_enabled,
    "multithreading": torch._C._is_multithreading_enabled,
    "autocast": lambda: [
        (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in ("cpu", "cuda")
    ],
    "autocast cache": torch.is_autocast_cache_enabled,
    "autocast nesting": lambda: (torch.autocast_increment_nesting(), torch.autocast_decrement_nesting()),
    "saving hooks": lambda: None if _hooks() is None else [id(hook) for hook in _hooks()],
    "anomaly": lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
    "deterministic": lambda: (
        torch.are_deterministic_algorithms_enabled(),
        torch._C._get_deterministic_fill_uninitialized_memory()
        if hasattr(torch._C, "_get_deterministic_fill_uninitialized_memory")
        else torch.utils.deterministic.fill_uninitialized_memory,
    ),
    "dtype": torch.get_default_dtype,
    "threads": torch.get_num_threads,
    "autograd engine": lambda: type(torch.autograd.Variable._execution_engine),  # type: ignore[attr-defined]
    "flags of dispatch modes": lambda: {
        name: value for name, value in vars(_python_dispatch).items() if name.startswith("_is_in")
    },
    "Tensor": lambda: {name: id(value) for name, value in vars(torch.Tensor).items()},
    "Optimizer": lambda: {name: id(value) for name, value in vars(torch.optim.Optimizer).items()},
    "collector": lambda: (gc.isenabled(), gc.get_threshold()),
    "recursion limit": sys.getrecursionlimit,
    "switch interval": sys.getswitchinterval,
    "tracing": lambda: (sys.gettrace(), sys.getprofile()),
    "warnings": lambda: (list(map(str, warnings.filters)), warnings.showwarning, warnings.formatwarning),
    "running threads": threading.active_count,
    "region": lambda: (_native.active() is None, _native.Region.held()),
    "locks": held_locks,
}


def snapshot() -> dict[str, Any]:
    """The state of this moment."""
    return {name: read() for name, read in _SCALARS.items()}


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What is not as it was, in words."""
    return [f"{name}: {before[name]} became {after[name]}" for name in before if before[name] != after[name]]


_include, _exclude = torch._C._dispatch_tls_local_include_set, torch._C._dispatch_tls_local_exclude_set


def quick() -> Any:
    """The part that is cheap to read, for a look before each bytecode."""
    return (
        torch._C._len_torch_dispatch_stack(),
        torch._C._len_torch_function_stack(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch._C._is_torch_function_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_anomaly_enabled(),
        _hooks() is None,
        _python_dispatch._is_in_torch_dispatch_mode,
        _include().raw_repr(),
        _exclude().raw_repr(),
        gc.isenabled(),
        _native.Region.held(),
        _native.active() is None,
        tuple(held_locks()),
    )
