"""Writes that are no writes of one value at a time, which a graph without writes cannot stand for: left to PyTorch.

    x.as_strided((4, 3), (1, 1)).add_(1)    elements are shown, and added to, more than once
    y[1:].add_(y[:-1])                      what is read is written at the same time: PyTorch refuses, where it can tell

Functionalization computes a new value from old ones and puts it in the place of the old. That is what the program asked
for only if each element written is one of its own, and none of those read.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from smelt.autograd.joint.functional_trace import CannotTrace, storage_id
from smelt.symbolic.shapes import may_overlap, span

# Views that may show an element more than once though no step is zero.
_RESTRIDING = frozenset({"as_strided", "as_strided_"})
# What writes into a copy that has the steps of what was copied, and so shows elements as often.
_COPYING = frozenset({"select_scatter", "slice_scatter", "diagonal_scatter", "as_strided_scatter"})


class WriteWatch:
    """Looks at what each call is given, then at what it has written and made. Only stand-ins are looked at, not real
    tensors, which PyTorch itself writes."""

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        self._inputs = {storage_id(tensor): tensor for tensor in _tensors(inputs)}
        # Tensors that show elements of memory more than once, and views of those, by id.
        self._spread: dict[int, torch.Tensor] = {}

    def before(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> list[tuple[torch.Tensor, int]]:
        """What a call is given, each with how often it was written by now."""
        if _name_of(func) in _COPYING and any(map(self._is_spread, _tensors(args[:1]))):
            raise CannotTrace(f"{_name_of(func)} of a tensor that shows elements of its memory more than once")
        given = {id(each): each for each in (*_tensors(args), *_tensors(tuple(kwargs.values())))}
        return [(each, each._version) for each in given.values()]

    def after(self, func: Any, args: Sequence[Any], given: list[tuple[torch.Tensor, int]], made: Any) -> None:
        """Refuse what a call has written, if that was more than one value at a time."""
        name = _name_of(func)
        written = [tensor for tensor, version in given if tensor._version != version]
        if not written and name.endswith("_") and name.startswith("_foreach_"):
            written = list(_tensors(args[:1]))
            if len({id(each) for each in written}) != len(written):
                raise CannotTrace(f"{name} writes to a tensor more than once")
            torch.autograd.graph.increment_version(written)  # of lists of stand-ins nobody keeps count
        if any(map(self._is_spread, written)):
            raise CannotTrace(f"{name} writes to a tensor that shows elements of its memory more than once")
        if written and len(given) > 1:
            _check_apart(name, [tensor for tensor, _ in given], {storage_id(tensor) for tensor in written})
        spread = {storage_id(tensor) for tensor, _ in given if id(tensor) in self._spread}
        for tensor in _tensors((made,)):
            if storage_id(tensor) in spread or _shows_twice(name, tensor):
                self._spread[id(tensor)] = tensor

    def _is_spread(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor, or the input that it is a view of, shows elements more than once."""
        beneath = self._inputs.get(storage_id(tensor))
        return id(tensor) in self._spread or (beneath is not None and _overlaps_itself(beneath))


def _name_of(func: Any) -> str:
    return str(getattr(func, "__name__", func)).partition(".")[0]


def _shows_twice(name: str, made: torch.Tensor) -> bool:
    # What functionalization puts back through windows is zero between them, so these count whether they overlap or not.
    if name == "unfold" or any(step == 0 and size != 1 for size, step in zip(made.shape, made.stride(), strict=True)):
        return True
    return name in _RESTRIDING and _overlaps_itself(made)


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.layout is torch.strided and torch._is_functional_tensor(value) and not value.is_inference():
                yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    return may_overlap(tuple(tensor.shape), tensor.stride())


def _check_apart(name: str, given: Sequence[torch.Tensor], written: set[int]) -> None:
    """Refuse a call that writes memory which it is given a second time, unless elements are the same or others."""
    groups: dict[int, list[torch.Tensor]] = {}
    for tensor in given:
        groups.setdefault(storage_id(tensor), []).append(tensor)
    for storage, group in groups.items():
        if storage not in written or len(group) == 1:
            continue
        group = [each for each in group if 0 not in each.shape]
        reached: list[torch.Tensor] = []
        for tensor in sorted(group, key=lambda each: each.storage_offset()):
            reached = [each for each in reached if _end(each) > tensor.storage_offset()]
            if any(not (_is_same(each, tensor) or _is_apart(each, tensor)) for each in reached):
                raise CannotTrace(f"{name} writes to memory that it is given a second time, in part")
            reached.append(tensor)


def _end(tensor: torch.Tensor) -> Any:
    return tensor.storage_offset() + span(tuple(tensor.shape), tensor.stride())


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if (one.storage_offset(), one.dtype, one.dim()) != (other.storage_offset(), other.dtype, other.dim()):
        return False
    return tuple(one.shape) == tuple(other.shape) and one.stride() == other.stride()


def _is_apart(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors in one memory surely show no element both.

    Places are read like numbers, with the steps as the values of digits: two are the same if all digits are.
    """
    if one.dtype.itemsize != other.dtype.itemsize:
        return False
    first, second = _extents(one), _extents(other)
    start, begin = one.storage_offset(), other.storage_offset()
    for step in sorted({step for step, _ in (*first, *second)}, reverse=True):
        digit, other_digit = start // step, begin // step
        start, begin = start % step, begin % step
        if start + _reach(first, step) >= step or begin + _reach(second, step) >= step:
            return False  # lower digits carry over
        if digit + _times(first, step) <= other_digit or other_digit + _times(second, step) <= digit:
            return True
    return bool(start != begin)


def _extents(tensor: torch.Tensor) -> list[tuple[int, int]]:
    """Each step and how many elements it leads to."""
    return [(step, size) for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1]


def _reach(extents: Sequence[tuple[int, int]], below: int) -> int:
    return sum((size - 1) * step for step, size in extents if step < below)


def _times(extents: Sequence[tuple[int, int]], of: int) -> int:
    return next((size for step, size in extents if step == of), 1)
