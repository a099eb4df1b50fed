"""What recording needs of an operator's schema: which arguments are numbers, which results are arguments or views.

    add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)    result 0 is argument "self"
"""

from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from typing import Any

import torch

from smelt import _native
from smelt.base.fast_dataclass import dataclass
from smelt.meta.effects import draws_random, is_pointwise_op


class Kind(Enum):
    """How an argument enters a recording."""

    TENSOR = "tensor"  # a value, or a number in its place
    NUMBER = "number"  # an operand
    LITERAL = "literal"  # part of what the call is
    DEVICE = "device"  # ours; the real one when it runs


@dataclass(frozen=True, slots=True)
class Signature:
    """One overload, as far as its schema says it."""

    operator: torch._ops.OpOverload
    kinds: tuple[Kind, ...]
    by_name: Mapping[str, Kind]
    names: tuple[str, ...]
    results: tuple[tuple[str, str] | None, ...]  # per result: ("same" or "view", the argument), or None
    takes_device: bool
    returns_tensors: bool
    is_random: bool
    written: tuple[str, ...]
    is_view: bool

    def written_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Any]:
        """Each argument that a call writes, those of lists one by one."""
        for name, value in (*zip(self.names, args, strict=False), *kwargs.items()):
            if name in self.written:
                yield from value if isinstance(value, tuple | list) else (value,)

    def draws(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call draws random numbers: attention does where it drops some."""
        return draws_random(self.operator, args, kwargs)


# Operators beside the element-wise ones whose numbers are operands, by name. Elsewhere a number can decide what is
# computed (the order of a norm), a shape (`arange`), or whether the call is an error.
_WITH_OPERANDS = frozenset(
    {
        *("full", "full_like", "new_full", "fill", "fill_", "scalar_tensor", "masked_fill", "masked_fill_"),
        *("addmm", "addmm_", "addmv", "addmv_", "addbmm", "baddbmm", "addr", "constant_pad_nd"),
        *("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_"),
    }
)
# Marked random for its dropout, which it refuses.
_NEVER_RANDOM = (torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,)
_WITHOUT = frozenset({"pow", "pow_", "_foreach_pow", "_foreach_pow_", "_foreach_norm", "float_power", "celu", "celu_"})


def _has_operands(operator: torch._ops.OpOverload) -> bool:
    name = operator._schema.name.partition("::")[2]
    if operator.namespace != "aten" or name in _WITHOUT:
        return False
    return name in _WITH_OPERANDS or name.startswith("_foreach_") or is_pointwise_op(operator)


@cache
def signature(operator: torch._ops.OpOverload) -> Signature:
    schema = operator._schema
    operands = _has_operands(operator)
    kinds = tuple(_kind(argument, operands) for argument in schema.arguments)
    names = tuple(argument.name for argument in schema.arguments)
    aliases: dict[str, str] = {}
    for argument in schema.arguments:
        for alias in argument.alias_info.before_set if argument.alias_info is not None else ():
            aliases[alias] = argument.name
    results: list[tuple[str, str] | None] = []
    for returned in schema.returns:
        info = returned.alias_info
        # A list of views has an alias without a name: it is the one argument that has any.
        names_of = () if info is None else info.before_set or aliases
        source = next((aliases[each] for each in names_of if each in aliases), None)
        results.append(None if source is None or info is None else ("same" if info.is_write else "view", source))
    return Signature(
        operator,
        kinds,
        dict(zip(names, kinds, strict=True)),
        names,
        tuple(results),
        "device" in names,
        all(str(returned.type) in ("Tensor", "List[Tensor]", "Optional[Tensor]") for returned in schema.returns),
        torch.Tag.nondeterministic_seeded in operator.tags and operator not in _NEVER_RANDOM,
        tuple(each.name for each in schema.arguments if each.alias_info is not None and each.alias_info.is_write),
        any(result is not None and result[0] == "view" for result in results),
    )


_CHANCE = "dropout_p"  # of attention, which draws nothing if it is zero

_CODES = {Kind.TENSOR: 0, Kind.NUMBER: 1, Kind.LITERAL: 2, Kind.DEVICE: 3}  # as csrc/lazy/lazy.h has them


@cache
def recorded_operator(operator: torch._ops.OpOverload) -> _native.RecordedOperator:
    """One overload for the part of recording that is in C."""
    known = signature(operator)
    kinds = bytes(_CODES[kind] for kind in known.kinds)
    return _native.RecordedOperator(
        known=known, names=known.names, kinds=kinds, writes=bool(known.written), is_view=known.is_view,
        zero=_CHANCE if known.is_random and _CHANCE in known.names else None,
    )  # fmt: skip


_NUMBERS = frozenset({"number", "Optional[number]", "List[number]", "float", "Optional[float]"})


def _kind(argument: Any, operands: bool) -> Kind:
    text = str(argument.type)
    if "Tensor" in text:
        return Kind.TENSOR
    if argument.name == "device":
        return Kind.DEVICE
    return Kind.NUMBER if operands and text in _NUMBERS else Kind.LITERAL
