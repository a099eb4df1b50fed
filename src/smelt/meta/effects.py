"""What a call does besides returning its result: draw random numbers, raise, write memory its schema keeps quiet about.

why_not_share(bernoulli(x))  → "draws random numbers"        why_not_share(sin(x)) → None
why_not_drop(gather(x, 0, i)) → "raises for some values"     why_not_drop(sin(x)) → None
"""

import operator
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import fx

from smelt.device.host_library import on_host
from smelt.ir.tensorspec import TensorSpec, spec_of
from smelt.meta.facts import facts_of

aten = torch.ops.aten

# Operators that write arguments although their schema does not say so: running statistics, in training.
_QUIET_WRITERS: dict[object, int] = {
    aten.native_batch_norm.default: 5,
    aten.cudnn_batch_norm.default: 5,
    aten.miopen_batch_norm.default: 5,
}


RANDOM = "draws random numbers"
QUIET_WRITE = "writes running statistics"
CHECK = "raises if what it is given is not right"
VALUES = "raises for some values"

# Operators that raise depending on the values in a tensor, by name: an index out of range, a target that is no class.
_RAISING = frozenset(
    (
        "index",
        "index_select",
        "index_add",
        "index_copy",
        "index_fill",
        "index_put",
        "_unsafe_index_put",
        "index_reduce",
        "gather",
        "scatter",
        "scatter_add",
        "scatter_reduce",
        "take",
        "put",
        "embedding",
        "_embedding_bag",
        "_embedding_bag_forward_only",
        "masked_scatter",
        "bincount",
        "repeat_interleave",
        "histc",
        "fake_quantize_per_channel_affine_cachemask",
        "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
    )
)
_DIVISIONS = frozenset(("div", "floor_divide", "remainder", "fmod"))  # integers by zero

# Operators without a kernel for integers elsewhere than on the CPU, of which PyTorch's descriptions say nothing.
_OF_FLOATS = frozenset(
    {
        *("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "convolution"),
        *("max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d"),
        *("_adaptive_avg_pool3d", "adaptive_max_pool2d", "adaptive_max_pool3d", "im2col", "col2im"),
        *(f"{kind}_pad{dims}d" for kind in ("reflection", "replication") for dims in (1, 2, 3)),
    }
)


def why_not_drop(node: fx.Node) -> str | None:
    """Why a call whose result nobody uses must stay; None if it may go."""
    reason = why_not_share(node)
    return VALUES if reason is None and raises(node.target, node.args) else reason


def why_not_share(node: fx.Node) -> str | None:
    """Why two equal calls are not one; None if they are."""
    return None if node.target is operator.getitem else effect_of(node.target, node.args, node.kwargs)


def raises(target: object, args: Sequence[Any]) -> bool:
    """Whether an operator raises for some values of the tensors it is given, which may be nodes; or only for that; or
    for their dtype, where there is no kernel for it."""
    if not isinstance(target, torch._ops.OpOverload):
        return False
    name = _name_or_check(target)
    if name in _RAISING or name is CHECK or facts_of(target.__name__).raises:
        return True
    if name in _OF_FLOATS:
        return any(map(_is_integer_elsewhere, args))
    return name in _DIVISIONS and len(args) > 1 and _is_zero_possible(args[1])


def _is_integer_elsewhere(operand: object) -> bool:
    """Whether an operand is of integers or bools on a device that is not the host."""
    spec = spec_of(operand) if isinstance(operand, fx.Node) else operand
    if not isinstance(spec, TensorSpec | torch.Tensor) or on_host(spec.device):
        return False
    return not (spec.dtype.is_floating_point or spec.dtype.is_complex)


def _is_known(target: torch._ops.OpOverload) -> bool:
    """Whether an operator does what its schema and its tags say: PyTorch's own, and ours that are element-wise."""
    if target.namespace in ("aten", "prims"):
        return True
    return target.namespace == "smelt" and torch.Tag.pointwise in target.tags


@cache
def _name_or_check(target: torch._ops.OpOverload) -> str:
    schema = target._schema
    checks = (not schema.returns and not schema.is_mutable) or not _is_known(target)
    return CHECK if checks else schema.name.removeprefix("aten::")


def _is_zero_possible(divisor: object) -> bool:
    """Whether a divisor may be the integer 0."""
    spec = spec_of(divisor) if isinstance(divisor, fx.Node) else divisor
    if isinstance(spec, TensorSpec | torch.Tensor):
        return not (spec.dtype.is_floating_point or spec.dtype.is_complex)
    return False


def effect_of(target: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """The same of a call that is not in a graph yet; its arguments may be nodes or values."""
    if not isinstance(target, torch._ops.OpOverload):
        return "is not an ATen operator"
    always, depends = _effect(target)
    if not depends:
        return always
    if quietly_written(target, args):
        return QUIET_WRITE
    return RANDOM if draws_random(target, args, kwargs) else always


@cache
def _effect(target: torch._ops.OpOverload) -> tuple[str | None, bool]:
    """The effect of an operator, and whether it may have another that depends on what it is given."""
    if not _is_known(target):
        return "is a custom operator, which may do anything", is_random(target)
    if target._schema.is_mutable:
        return "writes an argument", False
    if not target._schema.returns:
        return CHECK, False
    return None, is_random(target) or target in _QUIET_WRITERS


# Namespaces of operators that several processes run together. `_dtensor` has the exchange behind `redistribute`.
_COLLECTIVES = frozenset(
    ("_c10d_functional", "_c10d_functional_autograd", "c10d", "c10d_functional", "symm_mem", "_dtensor")
)


def is_collective(target: object) -> bool:
    """Whether an operator starts something that several processes do together, or waits for it. It cannot be undone,
    and must run exactly as often as the program asks for it."""
    return isinstance(target, torch._ops.OpOverload) and target.namespace in _COLLECTIVES


def waits(target: object) -> bool:
    """Whether an operator only waits for a collective that was started: what it returns is what that returned."""
    return is_collective(target) and getattr(target, "_opname", "") == "wait_tensor"


def quietly_written(target: object, args: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments that an operator writes although its schema does not say so, nor autograd count it."""
    training = _QUIET_WRITERS.get(target)
    return () if training is None or args[training] is False or args[3] is None else (args[3], args[4])


def draws(node: fx.Node) -> bool:
    """Whether a call draws random numbers."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or not _effect(target)[1]:
        return False
    return why_not_share(node) == RANDOM


def checks_in_backward(node: fx.Node) -> bool:
    """Whether the derivative of a call raises for some gradients, depending on their values: eigenvectors and singular
    vectors are known but for a factor, and a loss must not depend on it. Real ones are known but for their sign."""
    if node.target is aten.linalg_eig.default:
        return True
    if node.target not in (aten._linalg_eigh.default, aten._linalg_svd.default):
        return False
    (value,) = node.all_input_nodes
    spec = spec_of(value)
    return isinstance(spec, TensorSpec) and spec.dtype.is_complex


def uses_default_generator(node: fx.Node) -> bool:
    """Whether the random numbers of a call are those that `torch.manual_seed` fixes for its device."""
    return not any(isinstance(value, torch.Generator) for value in (*node.args, *node.kwargs.values()))


def devices_of(node: fx.Node) -> set[torch.device]:
    """The devices that a call's results are on."""
    specs = spec_of(node)
    return {spec.device for spec in (specs if isinstance(specs, tuple) else (specs,)) if isinstance(spec, TensorSpec)}


@cache  # reading an operator's tags is slow
def is_random(target: torch._ops.OpOverload) -> bool:
    """Whether an operator may draw random numbers."""
    return torch.Tag.nondeterministic_seeded in target.tags


def draws_random(target: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of an operator draws random numbers. Attention and recurrent layers are marked random for their
    dropout: with a probability of zero, or not in training, they draw none."""
    if not is_random(target):
        return False
    for position, name, default in _turned_off_by(target):
        if (args[position] if position < len(args) else kwargs.get(name, default)) == 0:
            return False
    return True


@cache
def _turned_off_by(target: torch._ops.OpOverload) -> list[tuple[int, str, Any]]:
    """The arguments that keep a random operator from drawing if they are zero or false, with their defaults."""
    return [
        (position, argument.name, argument.default_value)
        for position, argument in enumerate(target._schema.arguments)
        if argument.name in ("dropout_p", "dropout", "train", "training")
    ]


def is_view(target: object) -> bool:
    """Whether an operator's result is its first argument's memory, seen otherwise."""
    return isinstance(target, torch._ops.OpOverload) and _shares_memory(target)


@cache
def _shares_memory(target: torch._ops.OpOverload) -> bool:
    returned = target._schema.returns
    alias = returned[0].alias_info if returned else None
    return alias is not None and not alias.is_write


@cache  # reading an operator's tags is slow
def is_pointwise_op(target: object) -> bool:
    """Whether an operator computes each element of its result from those at the same place."""
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags


@cache
def is_pointwise(function: object) -> bool:
    """Whether a function of torch's computes each element of its result from those at the same place."""
    packet = getattr(aten, getattr(function, "__name__", ""), None)
    overloads = [] if packet is None else [getattr(packet, name) for name in packet.overloads()]
    return any(torch.Tag.pointwise in overload.tags for overload in overloads)
