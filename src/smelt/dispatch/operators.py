"""Every ATen operator on our device, registered with PyTorch's dispatcher: a call goes to the device's owner.

Autograd, composite operators and functionalization stay PyTorch's. So do operators that only change metadata (`t_`,
`squeeze_`) or set a bit (`_conj`), and `out=` variants that PyTorch computes by the functional operator and a copy."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

import torch

KEY = "PrivateUse1"

# What changes sizes and strides alone, or bits that PyTorch itself resolves before a kernel sees the tensor.
_PYTORCHS = frozenset(
    {
        *("t_", "transpose_", "squeeze_", "unsqueeze_", "as_strided_", "swapaxes_", "swapdims_"),
        *("detach_", "detach", "alias"),
        *("_conj", "_neg_view", "conj", "_conj_physical", "is_pinned", "_is_zerotensor", "result_type"),
        *("_fw_primal", "_make_dual", "_unpack_dual", "_version", "is_same_size", "sym_size", "sym_stride"),
        "_has_same_storage_numel",
        *("sym_numel", "sym_storage_offset", "size", "stride", "storage_offset", "numel", "dim", "requires_grad_"),
        *("retain_grad", "is_leaf", "output_nr", "set_data", "_backward", "record_stream", "rename_", "rename"),
        "_pack_padded_sequence",  # made of other operators; how many steps a batch has is for the host
    }
)


class Owner(Protocol):
    """Answers for the tensors of our device."""

    def call(self, operator: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What a call of an operator returns; at least one argument is a tensor of the device, or it is asked for."""


def names() -> Iterator[str]:
    """The name of every overload of ATen's that a device has to answer: `add.Tensor`, `relu`."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    for full in torch._C._dispatch_get_all_op_names():
        namespace, _, name = full.partition("::")
        if namespace != "aten" or has(full, "CompositeImplicitAutograd"):
            continue
        base, _, overload = name.partition(".")
        if base in _PYTORCHS:
            continue
        is_out = overload.endswith("out")
        if is_out and not any(has(full, key) for key in ("CPU", "CompositeExplicitAutogradNonFunctional")):
            continue  # written by PyTorch: the functional operator, and a copy
        yield name


def overload_of(name: str) -> torch._ops.OpOverload:
    base, _, overload = name.partition(".")
    operator: torch._ops.OpOverload = getattr(getattr(torch.ops.aten, base), overload or "default")
    return operator


def register(owner: Owner) -> list[Any]:
    """Let `owner` answer. The registrations end when what is returned dies.

    An owner with a method `kernel(name)` makes itself what is called for an operator, in C perhaps."""
    library: Any = torch.library.Library  # untyped
    aten = library("aten", "IMPL")
    kernel = getattr(owner, "kernel", None) or partial(_kernel, call=owner.call)
    for name in names():
        aten.impl(name, kernel(name), KEY)
    others = library("_", "IMPL")

    def fallback(operator: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
        return owner.call(operator, args, kwargs)

    others.fallback(fallback, KEY)  # operators that are not PyTorch's
    return [aten, others]


def _kernel(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    operator: torch._ops.OpOverload | None = None  # found at the first call: finding all of them takes half a second

    def kernel(*args: Any, **kwargs: Any) -> Any:
        nonlocal operator
        if operator is None:
            operator = overload_of(name)
        return call(operator, args, kwargs)

    return kernel
