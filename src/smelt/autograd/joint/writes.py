"""In-place writes that functionalization would get wrong: to overlapping elements, or to memory that is also read.

    x.as_strided((4, 3), (1, 1)).add_(1)    elements overlap, and are added to more than once
    y[1:].add_(y[:-1])                      reads what it writes: PyTorch raises, where it can tell

Functionalization computes a new value from old ones and replaces the old one. That equals eager only if no two written
elements share memory, and none is read as well. Such calls fall back to eager.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from smelt.autograd.joint.functional_tensors import storage_id
from smelt.autograd.joint.functional_trace import CannotTrace
from smelt.meta.devices import tensors_in
from smelt.symbolic.shapes import may_overlap, span

# Views that may repeat elements though no stride is zero.
_RESTRIDING = frozenset({"as_strided", "as_strided_"})
# What writes into a copy with the strides of the original, and so repeats elements as well.
_COPYING = frozenset({"select_scatter", "slice_scatter", "diagonal_scatter", "as_strided_scatter"})


class WriteWatch:
    """Checks the arguments of each call, then what it mutated and returned. Only functional tensors are checked."""

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        self._inputs = {storage_id(tensor): tensor for tensor in _tensors(inputs)}
        # Tensors with overlapping elements, and views of them, by id.
        self._overlapping: dict[int, torch.Tensor] = {}

    def before(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> list[tuple[torch.Tensor, tuple[int, int]]]:
        """The tensor arguments of a call, with how often they and their memory were written."""
        if _name_of(func) in _COPYING and any(map(self._is_overlapping, _tensors(args[:1]))):
            raise CannotTrace(f"{_name_of(func)} of a tensor with overlapping elements")
        tensors = {id(each): each for each in (*_tensors(args), *_tensors(tuple(kwargs.values())))}
        return [(each, _writes(each)) for each in tensors.values()]

    def after(
        self, func: Any, args: Sequence[Any], operands: list[tuple[torch.Tensor, tuple[int, int]]], result: Any
    ) -> None:
        """Raise if a call mutated overlapping elements, or memory that it was given twice."""
        name = _name_of(func)
        written = [tensor for tensor, (version, _) in operands if tensor._version != version]
        if not written and name.endswith("_") and name.startswith("_foreach_"):
            written = list(_tensors(args[:1]))
            if len({id(each) for each in written}) != len(written):
                raise CannotTrace(f"{name} modifies a tensor more than once")
            torch.autograd.graph.increment_version(written)  # functionalization does not count writes to lists
        if not written:  # nor do operators whose schemas do not tell, as those of running statistics
            written = [tensor for tensor, (_, count) in operands if _writes(tensor)[1] != count]
        if any(map(self._is_overlapping, written)):
            raise CannotTrace(f"{name} modifies a tensor with overlapping elements in-place")
        if written and len(operands) > 1 and not _is_put_back(func, args):
            _check_disjoint(name, [tensor for tensor, _ in operands], {storage_id(tensor) for tensor in written})
        spread = {storage_id(tensor) for tensor, _ in operands if id(tensor) in self._overlapping}
        for tensor in _tensors((result,)):
            if storage_id(tensor) in spread or _repeats_elements(name, tensor):
                self._overlapping[id(tensor)] = tensor

    def _is_overlapping(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor, or the input that it is a view of, has overlapping elements."""
        beneath = self._inputs.get(storage_id(tensor))
        return id(tensor) in self._overlapping or (beneath is not None and _overlaps_itself(beneath))


def _writes(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor._version, torch._functionalize_mutation_counter(tensor)


def _name_of(func: Any) -> str:
    return str(getattr(func, "__name__", func)).partition(".")[0]


def _repeats_elements(name: str, view: torch.Tensor) -> bool:
    # Functionalization scatters zeros between the windows of `unfold`, so it counts even without overlap.
    if name == "unfold" or any(step == 0 and size != 1 for size, step in zip(view.shape, view.stride(), strict=True)):
        return True
    return name in _RESTRIDING and _overlaps_itself(view)


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in tensors_in(values):
        if value.layout is torch.strided and torch._is_functional_tensor(value) and not value.is_inference():
            yield value


def _is_put_back(func: Any, args: Sequence[Any]) -> bool:
    """Whether an item is set to the view that it is, as the last part of `y[:, 1] += 2` does, or to another part."""
    if func is not torch.Tensor.__setitem__ or next(_tensors((args[1],)), None) is not None:
        return False
    base, index, value = args
    if storage_id(base) != storage_id(value):
        return False
    item = base[index]
    return _is_same(item, value) or _is_disjoint(item, value)


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    return may_overlap(tuple(tensor.shape), tensor.stride())


def _check_disjoint(name: str, operands: Sequence[torch.Tensor], written: set[int]) -> None:
    """Raise if a call mutates memory that it is given twice, unless the two are equal or disjoint."""
    groups: dict[int, list[torch.Tensor]] = {}
    for tensor in operands:
        groups.setdefault(storage_id(tensor), []).append(tensor)
    for storage, group in groups.items():
        if storage not in written or len(group) == 1:
            continue
        group = [each for each in group if 0 not in each.shape]
        reached: list[torch.Tensor] = []
        for tensor in sorted(group, key=lambda each: each.storage_offset()):
            reached = [each for each in reached if _end(each) > tensor.storage_offset()]
            if any(not (_is_same(each, tensor) or _is_disjoint(each, tensor)) for each in reached):
                raise CannotTrace(f"{name} modifies a tensor in-place that partially overlaps another argument")
            reached.append(tensor)


def _end(tensor: torch.Tensor) -> Any:
    return tensor.storage_offset() + span(tuple(tensor.shape), tensor.stride())


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if (one.storage_offset(), one.dtype, one.dim()) != (other.storage_offset(), other.dtype, other.dim()):
        return False
    return tuple(one.shape) == tuple(other.shape) and one.stride() == other.stride()


def _is_disjoint(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one storage surely share no element.

    Offsets are read as numbers in a mixed radix given by the strides: two are equal if all their digits are.
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
    """Each stride and its size."""
    return [(step, size) for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1]


def _reach(extents: Sequence[tuple[int, int]], below: int) -> int:
    return sum((size - 1) * step for step, size in extents if step < below)


def _times(extents: Sequence[tuple[int, int]], of: int) -> int:
    return next((size for step, size in extents if step == of), 1)
