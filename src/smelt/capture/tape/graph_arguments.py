"""Values as arguments of graph nodes: plain Python all the way down, with nodes or fake tensors for tensors.

Sequence(list, [Tensor(x), Constant(2)])      →      [x, 2]
"""

from typing import Any

from smelt.capture.model.breaks import Unsupported
from smelt.capture.model.values import (
    Constant,
    DeferredScalar,
    Instance,
    LazyItem,
    Mapping,
    Number,
    Object,
    Sequence,
    Slice,
    Tensor,
)
from smelt.ir.generators import Own


def graph_argument(value: Any, of_tensor: Any) -> Any:
    """A value as a graph argument: plain Python all the way down, tensors and symbols as `of_tensor` says."""
    if isinstance(value, Tensor) or (isinstance(value, Number) and value.symbolic is not None):
        return of_tensor(value)
    if isinstance(value, Constant):
        return value.value
    if isinstance(value, Sequence):
        if any(isinstance(item, LazyItem) for item in value.items):
            raise Unsupported("B017", "a container from outside as an operator's argument")
        items = [graph_argument(item, of_tensor) for item in value.items]
        return items if value.kind is list else tuple(items)
    if isinstance(value, Slice):
        return slice(*(graph_argument(part, of_tensor) for part in (value.start, value.stop, value.step)))
    if isinstance(value, Mapping):
        return {key: graph_argument(item, of_tensor) for key, item in value.items.items()}
    if isinstance(value, Object) and isinstance(value.value, type) and value.identity_guarded:
        return value.value
    if isinstance(value, Object) and isinstance(value.value, Own):
        return value.value
    if isinstance(value, DeferredScalar):
        raise Unsupported("B004", "Tensor.item")
    if isinstance(value, Instance) and value.contents is not None:
        # Of a class of lists, of numbers: PyTorch looks at nothing else.
        return graph_argument(value.contents, of_tensor)
    raise Unsupported("B017", f"{type(value).__name__.lower()} as an operator's argument")
