"""Which object is meant: guards ask for this very one only where the same one is found again.

a is b, once other objects were found there   →   a relation of the two, not a guard on each
table[a], the fourth object found there       →   a break: Python looks it up
"""

import types
from typing import Any

import torch

from smelt.capture.guards.dynamic_sizes import History
from smelt.capture.model.breaks import Unsupported
from smelt.capture.model.static import is_a
from smelt.capture.model.values import Object

_MAX_REPLACED = 3  # objects, one after the other at one place: beyond that each call makes its own
_LONG_LIVED = (type, types.FunctionType, torch.nn.Module)


def same_object(externals: Any, left: Object, right: Object) -> bool:
    """`left is right`, relied on."""
    answer: bool = left.value is right.value
    history = externals.sizes.history
    is_replaced = _times_replaced(history, left) or _times_replaced(history, right)
    if is_replaced and left.source is not None and right.source is not None:
        externals.guard_alias(left.source, right.source, answer)
    else:
        externals.guard_identity(left)
        externals.guard_identity(right)
    return answer


def refuse_replaced(history: History, value: Object) -> None:
    """Before a guard asks for this very object: break where each call has made one of its own."""
    if _times_replaced(history, value) >= _MAX_REPLACED and not is_a(value.value, _LONG_LIVED):
        assert value.source is not None
        raise Unsupported("B014", f"{value.source.text}, another object at each call")


def _times_replaced(history: History, value: Object) -> int:
    if value.source is None or value.identity_guarded:
        return 0
    return history.replaced(value.source.place, value.value)
