"""A call on `DTensor`s inside a torch-level graph, whose tensors are the local ones below them.

    y = x @ w        call = DistributedCall(matmul, …)(x_local, w_local); y_local = call[0]

Whoever runs the graph calls the node's target. It makes `DTensor`s of what it is given, as `from_local` does, and hands
out the local tensors of what comes of them: PyTorch chooses the placements, redistributes, and differentiates. On
ghosts a recorder sees operators on local tensors and collectives, and nothing else.
"""

from dataclasses import field
from typing import Any

import torch

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

    def whole(self, local: Any) -> Any:
        """The `DTensor` of a local tensor, known to autograd."""
        size = {"shape": torch.Size(self.shape), "stride": self.stride}
        return self.kind.from_local(local, self.mesh, self.placements, run_check=False, **size)


@dataclass(frozen=True, slots=True)
class Given:
    """The place of an operand among those that a call is given."""

    place: int


def local_of(whole: Any) -> Any:
    """The local tensor of a `DTensor`, known to autograd; a collective that makes it has ended."""
    return _waited(whole.to_local())


def _waited(tensor: Any) -> Any:
    return tensor.wait() if hasattr(type(tensor), "trigger_wait") else tensor


@dataclass(eq=False)
class DistributedCall:
    """`call(*operands)` returns tensors in a tuple. `args` and `kwargs` are those of `function`, with `Given` for
    operands; `layouts` are of operands that are `DTensor`s. `result` is what the function returned when it was last
    called on these operands, with a layout for each `DTensor`, and `Given` for other tensors."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    layouts: tuple[Layout | None, ...]
    result: Any = field(default=None, init=False)
    writes: bool = field(default=False, init=False)  # whether it changed one of them

    @property
    def __name__(self) -> str:
        return str(getattr(self.function, "__name__", "call"))

    def __call__(self, *operands: Any) -> tuple[Any, ...]:
        # PyTorch's own Python is none of the program's: it is not looked at.
        found: tuple[Any, ...] = _native.suspended(self._run, operands)
        return found

    def _run(self, operands: tuple[Any, ...]) -> tuple[Any, ...]:
        given = [
            operand if layout is None else layout.whole(operand)
            for operand, layout in zip(operands, self.layouts, strict=True)
        ]
        args, kwargs = _filled(self.args, given), _filled(self.kwargs, given)
        made: list[Any] = []
        before = [each._version for each in given if isinstance(each, torch.Tensor)]
        self.result = _localized(self.function(*args, **kwargs), made)
        self.writes = before != [each._version for each in given if isinstance(each, torch.Tensor)]
        return tuple(made)


def _filled(value: Any, given: list[Any]) -> Any:
    if isinstance(value, Given):
        return given[value.place]
    if type(value) in (tuple, list):
        return type(value)(_filled(item, given) for item in value)
    if type(value) is slice:
        return slice(*(_filled(item, given) for item in (value.start, value.stop, value.step)))
    if type(value) is dict:
        return {key: _filled(item, given) for key, item in value.items()}
    return value


def _localized(value: Any, made: list[Any]) -> Any:
    if hasattr(value, "_local_tensor"):
        made.append(local_of(value))
        return Layout.of(value)
    if isinstance(value, torch.Tensor):
        made.append(_waited(value))
        return Given(len(made) - 1)
    if isinstance(value, tuple | list):
        items = [_localized(item, made) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    return value
