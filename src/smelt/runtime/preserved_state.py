"""PyTorch's thread state that the compiler changes: registered with `_native.preserving_state`, which restores it.

A compiler enters dispatch modes, switches grad mode and autocast, pops the caller's hooks. `with` blocks restore
all that, unless an exception arrives from outside (Ctrl-C) while one of them is entered or left. So what captures or
compiles is called through `_native.preserving_state`: whatever was raised and wherever, it restores what differs.
"""

import functools
import os
from typing import Any

import torch
from torch.utils import _python_dispatch

from smelt import _native
from smelt.base import events, terminal
from smelt.ir import provenance
from smelt.ir.nodes import backward_node
from smelt.ir.nodes.ambient import AUTOCAST_DEVICES

_FLAGS = (
    "_is_in_torch_dispatch_mode",
    "_is_in_non_infra_torch_dispatch_mode",
    "_is_in_any_mode_without_ignore_compile_internals",
)


def _settings() -> tuple[Any, ...]:
    settings: list[Any] = [
        ((torch.is_grad_enabled,), torch._C._set_grad_enabled, ()),
        ((torch.is_autocast_cache_enabled,), torch.set_autocast_cache_enabled, ()),
        ((torch.is_anomaly_enabled, torch.is_anomaly_check_nan_enabled), torch.set_anomaly_enabled, ()),
        ((torch._C._is_fwd_grad_enabled,), torch._C._set_fwd_grad_enabled, ()),
        ((torch._C._is_multithreading_enabled,), torch._C._set_multithreading_enabled, ()),
        (
            (torch._C._get_deterministic_fill_uninitialized_memory,),
            torch._C._set_deterministic_fill_uninitialized_memory,
            (),
        ),
    ]
    for device in AUTOCAST_DEVICES:
        settings.append(((torch.is_autocast_enabled,), torch.set_autocast_enabled, (device,)))
        settings.append(((torch.get_autocast_dtype,), torch.set_autocast_dtype, (device,)))
    return tuple(settings)


def _flags() -> tuple[Any, ...]:
    names = tuple(name for name in _FLAGS if name in vars(_python_dispatch))
    set_flag = getattr(_python_dispatch, "set_is_in_mode_without_ignore_compile_internals", None)
    return vars(_python_dispatch), names, set_flag if names == _FLAGS else None


def teach() -> None:
    """Register all this with `_native.preserving_state`."""
    modes = (
        torch._C._len_torch_dispatch_stack,
        torch._C._get_dispatch_stack_at,
        functools.partial(torch._C._pop_torch_dispatch_stack, None),
        torch._C._push_on_torch_dispatch_stack,
    )
    functions = (
        torch._C._len_torch_function_stack,
        torch._C._get_function_stack_at,
        torch._C._pop_torch_function_stack,
        torch._C._push_on_torch_function_stack,
    )
    autograd = torch._C._autograd
    hooks = (
        autograd._top_saved_tensors_default_hooks,
        autograd._pop_saved_tensors_default_hooks,
        autograd._push_saved_tensors_default_hooks,
    )
    guards = (
        # It goes back to the set of dispatch keys of the thread too, which functionalization is part of.
        (torch._C._InferenceMode, torch.is_inference_mode_enabled, False),
        (torch._C.DisableTorchFunctionSubclass, None, True),
    )
    counters = ((torch.autocast_increment_nesting, torch.autocast_decrement_nesting),)
    threads = (events._sinks, terminal._current, provenance._now, backward_node._now)
    _native.install_preserved_state(_settings(), (modes, functions), counters, hooks, threads, (_flags(),), guards)


def _lower_flags() -> None:
    """Other threads of the parent may have been in modes; a forked child does not have them."""
    flags, names, set_flag = _flags()
    if not torch._C._len_torch_dispatch_stack():
        flags.update(dict.fromkeys(names, False))
        if set_flag is not None:
            set_flag(False)


teach()
os.register_at_fork(after_in_child=_lower_flags)
