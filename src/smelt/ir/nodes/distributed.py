"""A call on `DTensor`s inside a torch-level graph, whose tensors are the local ones below them.

    y = x @ w        call = DistributedCall(matmul, …)(x_local, w_local); y_local = call[0]

Whoever runs the graph calls the node's target. It makes `DTensor`s of what it is given, as `from_local` does, and hands
out the local tensors of what comes of them: PyTorch chooses the placements, redistributes, and differentiates. On
fake tensors a recorder sees operators on local tensors and collectives, and nothing else.
"""

from dataclasses import field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from smelt import _native
from smelt.base.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    """How local tensors make up a `DTensor`: where each part is, and what the whole looks like."""

    kind: Any  # `DTensor`, which is imported only by those who use it
    mesh: Any
    placements: tuple[Any, ...]
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @staticmethod
    def of(whole: Any) -> "Layout":
        spec = whole._spec
        return Layout(type(whole), spec.mesh, tuple(spec.placements), tuple(spec.shape), tuple(spec.stride))

    @property
    def masks(self) -> int:
        """How many of its placements have a mask, which is a tensor of its own."""
        return sum(hasattr(placement, "mask_buffer") for placement in self.placements)

    def whole(self, local: Any, *masks: Any) -> Any:
        """The `DTensor` of a local tensor, known to autograd."""
        size, remaining = {"shape": torch.Size(self.shape), "stride": self.stride}, iter(masks)
        placements = [_masked(each, remaining) if hasattr(each, "mask_buffer") else each for each in self.placements]
        with torch.enable_grad():  # without, it would be a leaf, and not lead to the local tensor
            return self.kind.from_local(local, self.mesh, placements, run_check=False, **size)

    def take_masks(self) -> list[Any]:
        """The masks of a `DTensor`, taken out of its placements: PyTorch finds those again in a cache of its own."""
        buffers = [placement.mask_buffer for placement in self.placements if hasattr(placement, "mask_buffer")]
        masks = [buffer.data for buffer in buffers]
        for buffer in buffers:
            while buffer.refcount:
                buffer.release_mask()
        return masks


def _masked(placement: Any, masks: Any) -> Any:
    """A placement like this one, with the next of some masks."""
    buffer = type(placement.mask_buffer)()
    buffer.materialize_mask(next(masks))
    return type(placement)(placement.reduce_op, buffer, placement.offset_shape, placement.offset_dim)


@dataclass(frozen=True, slots=True)
class Given:
    """The place of an operand among those that a call is given."""

    place: int


@dataclass(frozen=True, slots=True)
class SameAs:
    """In what a call returns: the very `DTensor` that it was given at this place."""

    place: int


def local_of(whole: Any) -> Any:
    """The local tensor of a `DTensor`, known to autograd; a collective that makes it has ended."""
    return _waited(whole.to_local())


def is_wait(target: Any) -> bool:
    """Whether a node of a torch-level graph waits for a collective."""
    return getattr(target, "__module__", "") == "torch._ops._c10d_functional" and "wait_tensor" in str(target)


def wait_below_autograd(tensor: torch.Tensor) -> torch.Tensor:
    """Wait for a collective as eager does when its result is read: the tensor is the same, and autograd sees no view
    of it, which a second wait for other results of the collective would count as written."""
    with torch._C._AutoDispatchBelowAutograd():
        torch.ops._c10d_functional.wait_tensor(tensor)
    return tensor


def _waited(tensor: Any) -> Any:
    return tensor.wait() if hasattr(type(tensor), "trigger_wait") else tensor


@dataclass(eq=False)
class DistributedCall:
    """`call(*operands)` returns tensors in a tuple. `args` and `kwargs` are those of `function`, with `Given` for
    operands; `layouts` are of operands that are `DTensor`s, behind which come the masks of their placements. `result`
    is what the function returned when it was last called on these operands, with a layout for each `DTensor`, and
    `Given` for other tensors.

    The first call finds out which operands the function `writes`, whether it `changes_layout` of one, which no later
    call can do, and whether it `shares` their memory with what it returns. Later ones give it copies of what it
    writes, and return their local tensors last: they write nothing."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    layouts: tuple[Layout | None, ...]
    result: Any = field(default=None, init=False)
    writes: tuple[int, ...] | None = field(default=None, init=False)  # their places
    shares: bool = field(default=False, init=False)
    changes_layout: bool = field(default=False, init=False)

    @property
    def __name__(self) -> str:
        return str(getattr(self.function, "__name__", "call"))

    def __call__(self, *operands: Any) -> tuple[Any, ...]:
        # PyTorch's own Python is none of the program's: it is not looked at.
        results: tuple[Any, ...] = _native.suspended(self._run, operands)
        return results

    def _run(self, operands: tuple[Any, ...]) -> tuple[Any, ...]:
        copied = self.writes or ()
        tensors = list(operands)
        for place, layout in enumerate(self.layouts):
            if layout is not None:
                part = operands[place] if torch.is_grad_enabled() else operands[place].detach()
                masks = operands[place + 1 : place + 1 + layout.masks]
                tensors[place] = layout.whole(part.clone() if place in copied else part, *masks)
        if self.writes is not None:
            self._replicate_plain(tensors)
        args, kwargs = _filled(self.args, tensors), _filled(self.kwargs, tensors)
        locals_made: list[Any] = []
        if self.writes is None:
            with _Watch() as watch:
                result = self.function(*args, **kwargs)
            self.writes, self.shares = watch.places(tensors), not watch.is_new(result, tensors)
            written = [(self.layouts[place], tensors[place]) for place in self.writes]
            self.changes_layout = any(layout and layout != Layout.of(tensor) for layout, tensor in written)
        else:
            result = self.function(*args, **kwargs)
        self.result = _localized(result, tensors, locals_made)
        return (*locals_made, *[local_of(tensors[place]) for place in copied])


    def _replicate_plain(self, tensors: list[Any]) -> None:
        """Replace plain tensors beside `DTensor`s, scalars and targets of a loss, by replicated ones. PyTorch does so
        as well, but below functionalization, which would take the whole call for one on plain tensors."""
        first = next((layout for layout in self.layouts if layout is not None), None)
        for place, layout in enumerate(self.layouts if first is not None else ()):
            plain = layout is None and isinstance(tensors[place], torch.Tensor)
            if first is not None and plain and not tensors[place].requires_grad:
                tensors[place] = first.kind.from_local(tensors[place], first.mesh, run_check=False)


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tells which tensors are written inside a block, and which have memory of their own. The versions of `DTensor`s do
    not tell: `_foreach` operators count none, and no operator on a `DTensor` counts for its local tensor."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._written: list[Any] = []
        self._new: list[Any] = []  # local tensors: a factory returns an alias of a `DTensor` that somebody else has

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named, schema = kwargs or {}, function._schema
        for place, argument in enumerate(schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[place] if place < len(args) else named.get(argument.name)
                self._written += _tensors_in(value)
        result = function(*args, **named)
        if not any(each.alias_info is not None for each in schema.returns):
            self._new += [each._local_tensor for each in _tensors_in(result) if hasattr(each, "_local_tensor")]
        return result

    def places(self, tensors: list[Any]) -> tuple[int, ...]:
        """The places of those that were written, by themselves or by a view."""
        written = {id(whole) for each in self._written for whole in (each, each._base)}
        return tuple(place for place, tensor in enumerate(tensors) if id(tensor) in written)

    def is_new(self, result: Any, operands: list[Any]) -> bool:
        """Whether all tensors in `found` have memory of their own, but for those that were given."""
        new, known = set(map(id, self._new)), set(map(id, operands))
        return all(id(each) in known or id(getattr(each, "_local_tensor", None)) in new for each in _tensors_in(result))


def _tensors_in(value: Any) -> list[Any]:
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in _tensors_in(item)]
    return [value] if isinstance(value, torch.Tensor) else []


def _filled(value: Any, operands: list[Any]) -> Any:
    if isinstance(value, Given):
        return operands[value.place]
    if type(value) in (tuple, list):
        return type(value)(_filled(item, operands) for item in value)
    if type(value) is slice:
        return slice(*(_filled(item, operands) for item in (value.start, value.stop, value.step)))
    if type(value) is dict:
        return {key: _filled(item, operands) for key, item in value.items()}
    return value


def _localized(value: Any, operands: list[Any], local_tensors: list[Any]) -> Any:
    if hasattr(value, "_local_tensor"):
        for place, operand in enumerate(operands):
            if operand is value:
                return SameAs(place)
        layout = Layout.of(value)
        local_tensors += [local_of(value), *layout.take_masks()]
        return layout
    if isinstance(value, torch.Tensor):
        local_tensors.append(_waited(value))
        return Given(len(local_tensors) - 1)
    if isinstance(value, tuple | list):
        items = [_localized(item, operands, local_tensors) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    return value
