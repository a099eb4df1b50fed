"""Operators of PyTorch that the program replaced with `torch.library`: graphs that call them run in eager PyTorch.

    torch.library.Library("aten", "IMPL").impl("sin", mine, "CPU")    →   replaced_operators() == {"aten/sin/CPU"}
    why_replaced(aten.sin.default, replaced_operators())              →   "the program replaced aten::sin (CPU)"

Guards compare the set with the one at capture, so compiled code is used again once a registration ends.
"""

import os
from functools import cache, lru_cache
from typing import Any

import torch

from smelt import _native
from smelt.meta.effects import is_view

_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key

_OF_SMELT = frozenset({"aten/_pin_memory/CPU"})  # for lazy tensors; changes no result
_OF_PYTORCH = os.path.join(os.path.dirname(torch.__file__), "_native", "")  # kernels of PyTorch's own in Python
# Below the keys that a trace runs with; what is above them decides what the trace sees.
_BACKEND_KEYS = frozenset(("CPU", "CUDA", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional"))
# What a call on the CPU or a GPU may go through. PyTorch itself registers others: for `vmap`, for meta tensors.
_KEYS = _BACKEND_KEYS | frozenset((
    "", "CompositeImplicitAutograd", "Autograd", "AutogradCPU", "AutogradCUDA", "AutocastCPU", "AutocastCUDA",
    "ADInplaceOrView", "BackendSelect",
))  # fmt: skip
# Without a kernel of their own, but all that they call makes or fills memory.
_MEMORY_ONLY = frozenset((
    "arange", "clone", "copy", "empty_like", "empty_permuted", "fill", "full", "full_like", "lift", "lift_fresh",
    "new_empty", "new_full", "new_ones", "new_zeros", "ones", "ones_like", "scalar_tensor", "zero", "zeros",
    "zeros_like", "_reshape_copy", "_to_copy", "_unsafe_view",
))  # fmt: skip


_seen: set[str] = set()  # registrations that existed at some time


def _read(registrations: set[str]) -> frozenset[str]:
    of_aten = [name for name in registrations if name.startswith("aten/") and name not in _OF_SMELT]
    _seen.update(name for name in of_aten if name.rpartition("/")[2] in _KEYS)
    replaced = frozenset(filter(_is_registered, _seen))
    registrations |= replaced  # so that their end is noticed, too
    return replaced


def _is_registered(registration: str) -> bool:
    """Whether the dispatcher has the kernel, and it is not PyTorch's own. PyTorch's set is not exact: a library that is
    freed after `_destroy()` removes what another one has registered since."""
    _, operator, key = registration.split("/")
    listed = torch._C._dispatch_dump(f"aten::{operator}").splitlines()
    heads = (f"{key or 'CompositeImplicitAutograd'}: ", f"{key or 'CompositeImplicitAutograd'}[alias]: ")
    return any(line.startswith(heads) and ".py:" in line and _OF_PYTORCH not in line for line in listed)


_native.watch_operators(torch.library._impls, _read)
replaced_operators = _native.replaced_operators


def why_none_compile(replaced: frozenset[str]) -> str | None:
    """Why no graph can be compiled: what a trace sees depends on a replaced operator, or every kernel may call it, as
    it writes to memory or allocates it."""
    everywhere, _ = _scopes(replaced)
    return None if everywhere is None else _sentence(everywhere)


def why_replaced(operator: Any, replaced: frozenset[str]) -> str | None:
    """Why a graph that calls an operator cannot be compiled, if others can: the call reaches a replaced operator, or
    may, as it is computed by other operators. Overloads of one name count as one operator."""
    _, named = _scopes(replaced)
    name = _name_of(operator)
    if name in named:
        return _sentence(named[name])
    if _is_computed_by_others(operator):
        return f"{_sentence(min(named.values()))}, which {operator} may call"
    return None


@lru_cache(maxsize=8)
def _scopes(replaced: frozenset[str]) -> tuple[str | None, dict[str, str]]:
    """A registration that matters to every graph, if there is one; and registrations by the names of operators."""
    for registration in sorted(replaced):
        _, operator, key = registration.split("/")
        writes = operator.endswith(("_", "out")) or operator.partition(".")[0].endswith("_")
        if key not in _BACKEND_KEYS or writes or operator.startswith("empty"):
            return registration, {}
    return None, {_plain(registration.split("/")[1]): registration for registration in sorted(replaced)}


def _sentence(registration: str) -> str:
    _, operator, key = registration.split("/")
    return f"the program replaced aten::{operator}" + (f" ({key})" if key else "")


def _plain(operator: str) -> str:
    return operator.partition(".")[0]


@cache
def _name_of(operator: Any) -> str:
    return _plain(str(operator._schema.name).partition("::")[2]) if operator.namespace == "aten" else ""


@cache
def _is_computed_by_others(operator: Any) -> bool:
    if operator.namespace != "aten" or is_view(operator) or _name_of(operator) in _MEMORY_ONLY:
        return False
    return not _has_kernel(operator.name(), "CPU")
