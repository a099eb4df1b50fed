"""Elements of values that have no operator rule: chosen, looked up, checked, copied, divided, scaled.

    chosen(e, 0, 2, (1,), x)   →   where(position(0) == 1, x, 0)         x is the second half of a tensor of zeros
"""

from typing import Any

import torch

from smelt.ops.record import EmitRule, Emitter, Fetch, OperandMemory, Scalar
from smelt.symbolic.shapes import Size


def chosen(e: Emitter, dim: int, count: int, numbers: tuple[int, ...], *elements: Scalar) -> Scalar:
    """The element of the part that contains this point; if there is none, the last element, or zero."""
    here = e.position(dim)
    casted = [e.cast(element, e.result) for element in elements]
    chosen_element = casted.pop() if len(casted) in (count, len(numbers) + 1) else e.const(0, e.result)
    for number, element in reversed(list(zip(numbers, casted, strict=False))):
        chosen_element = e.op("where", e.op("eq", here, e.const(number, torch.int64)), element, chosen_element)
    return chosen_element


def looked_up(e: Emitter, free: tuple[tuple[tuple[Size, Size], ...], ...], emit: EmitRule, *elements: Any) -> Scalar:
    """The result of a lookup's own code on elements read at its places: `free` has strides and extents of each source,
    and `elements` the sources, then the indices."""

    def fetch_from(source: OperandMemory, dims: tuple[tuple[Size, Size], ...]) -> Fetch:
        def fetch(*places: Scalar) -> Scalar:
            return e.gather(source, [(place, *dim) for place, dim in zip(places, dims, strict=True)])

        return fetch

    fetches = [fetch_from(source, dims) for source, dims in zip(elements, free, strict=False)]
    return emit(e, *fetches, *elements[len(free) :])


def is_inside(e: Emitter, index: Scalar, low: Size, high: Size, besides: int | None) -> Scalar:
    place = e.cast(index, torch.int64)
    inside = e.op("and", e.op("ge", place, e.const(low, torch.int64)), e.op("lt", place, e.const(high, torch.int64)))
    return inside if besides is None else e.op("or", inside, e.op("eq", place, e.const(besides, torch.int64)))


def is_inside_too(e: Emitter, index: Scalar, low: Size, high: Size, besides: int | None, others: Scalar) -> Scalar:
    """Combine with earlier range checks."""
    return e.op("and", is_inside(e, index, low, high, besides), others)


def zero(e: Emitter) -> Scalar:
    return e.const(0, e.result)


def itself(e: Emitter, x: Scalar) -> Scalar:
    return e.cast(x, e.result)


def divided(e: Emitter, x: Scalar, count: Size) -> Scalar:
    return e.op("div", x, e.const(count, x.dtype))


def scaled_sum(e: Emitter, alpha: float, beta: float, x: Scalar, *added: Scalar) -> Scalar:
    """`alpha · x + beta · added`, without multiplications by one."""
    total = e.cast(x, e.result)
    if alpha != 1:
        total = e.op("mul", total, e.const(alpha, e.result))
    for each in added:
        term = e.cast(each, e.result)
        total = e.op("add", total, term if beta == 1 else e.op("mul", term, e.const(beta, e.result)))
    return total
