"""Which rule answers a call. Families of rules are looked through in turn, each loaded when those before it have none.

The families of `EVERYWHERE` hold on every device, the libraries' on the CPU, those of `OFF_HOST` everywhere else. No
operator has rules for one device in two of them.
Rules of operators whose records are elsewhere are looked up last (`smelt.meta.facts`); they hold on the CPU.
Rules go by the names of operators, "sum.dim_IntList": looking up each that has one took longer than capturing an MLP.
"""

import importlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from smelt.device.host_library import on_host
from smelt.ir.tensorspec import UnplacedSpec
from smelt.meta.facts import facts_of
from smelt.meta.rules import accelerators, pointwise

if TYPE_CHECKING:
    import torch
else:
    from smelt.base.torch_originals import pristine as torch

EVERYWHERE = ("pointwise", "reduction", "creation", "views", "whole_layers")
ON_CPU = ("linalg_nn", "images", "data_movement", "indexing", "fourier", "corrections")
OFF_HOST = ("accelerators",)

Rule = Callable[..., Any]


class _Known(NamedTuple):
    """What is known of an operator: its rule, or the operator that it writes the result of."""

    rule: Rule | None = None
    functional: Any = None
    on_cpu: bool = False  # and nowhere else
    off_host: Rule | None = None  # the rule on devices beside the CPU, if it is another


def rules_of(family: str) -> Mapping[str, Rule]:
    rules: Mapping[str, Rule] = importlib.import_module(f"smelt.meta.rules.{family}").RULES
    return rules


@cache
def _find(func: Any) -> _Known:
    functional = _functional_of(func)
    if functional is not None:
        return _Known(functional=functional)
    if func.namespace != "aten":
        return _Known()
    off_host = next(filter(None, (rules_of(family).get(func.__name__) for family in OFF_HOST)), None)
    for family in (*EVERYWHERE, *ON_CPU):
        rule = rules_of(family).get(func.__name__)
        if rule is not None:
            return _Known(rule, on_cpu=family in ON_CPU and not _holds_everywhere(func), off_host=off_host)
    rule = facts_of(func.__name__).shape
    return _Known(rule, on_cpu=rule is not None and not _holds_everywhere(func), off_host=off_host)


def has_rule(func: Any) -> bool:
    """Whether a rule describes some calls of an operator."""
    known = _find(func)
    return known.rule is not None or known.functional is not None


def _holds_everywhere(func: Any) -> bool:
    """Whether results are described by one function for every device: what PyTorch calls a structured operator."""
    if func.__name__ in accelerators.SHARED:
        return True
    try:
        return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeExplicitAutogradNonFunctional")
    except RuntimeError:  # one that the dispatcher does not have, as `size`
        return False


def answer(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], device: torch.device) -> Any:
    """A spec without a device, a tuple of them, or `NotImplemented` where no rule answers."""
    known = _find(func)
    if known.functional is not None:
        return _written(known.functional, args, kwargs, device)
    if known.off_host is not None and not on_host(device):
        return known.off_host(*args, **kwargs)
    if known.rule is None or (known.on_cpu and not on_host(device)):
        return NotImplemented
    return known.rule(*args, **kwargs)


def _written(functional: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], device: torch.device) -> Any:
    """`x.add_(y)` returns `x`, if `x + y` has the shape of `x` and a dtype that may be stored in it."""
    value = args[0]
    spec = answer(functional, args, kwargs, device)
    if not isinstance(spec, UnplacedSpec) or spec.shape != tuple(value.shape):
        return NotImplemented
    if not torch.can_cast(spec.dtype, value.dtype):
        raise RuntimeError(f"result type {spec.dtype} can't be cast to the desired output type {value.dtype}")
    return UnplacedSpec(spec.shape, value.stride(), value.dtype, value.storage_offset())


_SAME_BY_ANOTHER_NAME = {
    "bernoulli_.float": "bernoulli.p",
    "pow_.Scalar": "pow.Tensor_Scalar",
    "pow_.Tensor": "pow.Tensor_Tensor",
}


def _functional_of(func: Any) -> Any:
    """`aten.add_.Tensor` → `aten.add.Tensor`, where that one has an element-wise rule; None for everything else."""
    packet, _, overload = func.__name__.partition(".")
    if not packet.endswith("_") or packet.endswith("__") or func.namespace != "aten":
        return None
    if func.__name__ in _SAME_BY_ANOTHER_NAME:
        packet, _, overload = _SAME_BY_ANOTHER_NAME[func.__name__].partition(".")
        return getattr(getattr(torch.ops.aten, packet), overload)
    if f"{packet[:-1]}.{overload}" not in pointwise.RULES:
        return None
    return getattr(getattr(torch.ops.aten, packet[:-1], None), overload, None)
