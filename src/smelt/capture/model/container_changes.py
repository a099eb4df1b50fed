"""How containers from outside differ from what they were when capture met them: their keys, their items."""

import functools
import math
from collections.abc import Sequence as SequenceABC
from typing import Any

import torch

from smelt.capture.model.source import predicate
from smelt.capture.model.values import Cell, Constant, LazyItem, Mapping, Set, Slots


def keys_check(mapping: Mapping, keys: tuple[Any, ...]) -> tuple[Any, ...]:
    """The guard that a dict has these keys, in this order."""
    tensors = any(isinstance(key, torch.Tensor) for key in keys)
    if mapping.kind is dict and not mapping.inside and not tensors:
        return ("keys", keys)
    if not keys and not mapping.inside:
        return ("length", 0)
    text = f"having the {len(keys)} keys it had" if tensors else f"having the keys {keys!r}"
    # The dict below an OrderedDict has an order of its own.
    return predicate(functools.partial(_has_keys, mapping.kind, keys), text)


def _has_keys(kind: Any, keys: tuple[Any, ...], real: Any) -> bool:
    return same_keys(tuple(kind.__iter__(real)), keys)


def same_keys(keys: SequenceABC[Any], others: SequenceABC[Any]) -> bool:
    """Whether keys are equal, of the same types and in the same order; tensors are by being the same, as a dict has
    it."""
    return len(keys) == len(others) and all(map(_same_key, keys, others))


def _same_key(key: Any, other: Any) -> bool:
    if key is other or type(key) is not type(other) or isinstance(key, torch.Tensor):
        return key is other
    if type(key) is tuple:
        return same_keys(key, other)
    return bool(key == other) and (type(key) is not float or math.copysign(1.0, key) == math.copysign(1.0, other))


def unchanged(before: Any, after: Any) -> bool:
    """Whether an item of a written container is still the one that was there."""
    return before is after or (isinstance(before, LazyItem) and before.source.value is after)


def is_changed(value: Any) -> bool:
    """Whether a container from outside is another than it came as."""
    if isinstance(value, Cell):
        return value.source is None or value.contents is not value.source.child(("cell",), "").value
    if isinstance(value, Set):
        return value.calls.before is not None
    if isinstance(value, Mapping):
        before, after = value.original or {}, value.items
        return not same_keys(list(before), list(after)) or not all(map(_as_real, before.values(), after.values()))
    first: tuple[Any, ...] = value.original
    return len(first) != len(value.raw_items) or not all(map(_as_real, first, value.raw_items))


def holds_gradient(value: Any) -> bool:
    """Whether a value is the `.grad` of a tensor."""
    return isinstance(value, Slots) and isinstance(value.holder.value, torch.Tensor) and not value.is_reassigned


def _as_real(before: Any, after: Any) -> bool:
    same = isinstance(before, LazyItem) and type(after) is Constant and before.value is after.value
    return same or unchanged(before, after)
