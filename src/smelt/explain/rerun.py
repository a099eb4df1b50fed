"""A program run a second time with one thing changed: in float64 with the same random draws, or with other rounding.

    with Recorded() as draws: program(x)                  every random number that it drew is in draws.drawn
    with replayed(draws.drawn): program(x.double())       the same numbers in the same order, in its own dtypes
    with Nudged(): program(x)                             how far results move is how far rounding moves them

A seed does not replay draws: a generator yields other numbers for float64 than for float32.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from smelt.meta.effects import draws_random, is_view

aten = torch.ops.aten

Draw = tuple[torch._ops.OpOverload, tuple[torch.Tensor, ...]]  # the operator, and the tensors that hold its numbers


class CannotReplayError(RuntimeError):
    """The second run does not draw as the first one did."""


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Otherwise PyTorch wraps the handlers below in a decorator that imports its compiler, seconds of it."""
        return False


class Recorded(_Mode):  # type: ignore[no-untyped-call]
    """Keeps what operators draw while it is entered, in order."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.drawn: list[Draw] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if draws_random(func, args, kwargs or {}):
            kept = tuple(tensor.detach().clone() for tensor in _numbers_of(func, result))
            self.drawn.append((func, kept))
        return result


class _Replayed(_Mode):  # type: ignore[no-untyped-call]
    def __init__(self, drawn: Sequence[Draw]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.left = list(reversed(drawn))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = {} if kwargs is None else kwargs
        result = func(*args, **keywords)
        if not draws_random(func, args, keywords):
            return result
        if not self.left:
            raise CannotReplayError(f"{func} draws once more than before")
        operator, numbers = self.left.pop()
        if operator is not func:
            raise CannotReplayError(f"{func} draws where {operator} did before")
        for tensor, number in zip(_numbers_of(func, result), numbers, strict=True):
            if tensor.shape != number.shape:
                raise CannotReplayError(f"{func} draws {list(tensor.shape)} where it drew {list(number.shape)} before")
            tensor.copy_(number)
        if func in _APPLIED:
            result[0].copy_(_APPLIED[func](result, args))
        return result


@contextmanager
def replayed(drawn: Sequence[Draw]) -> Iterator[None]:
    """Operators inside draw what `Recorded` saw drawn. Raises `CannotReplayError` if they draw anything else."""
    mode = _Replayed(drawn)
    with mode:
        yield
    if mode.left:
        raise CannotReplayError(f"{mode.left[-1][0]} drew once more before")


def _native_dropout(result: tuple[torch.Tensor, ...], args: tuple[Any, ...]) -> torch.Tensor:
    tensor: torch.Tensor = args[0]
    return tensor * result[1] * (0.0 if args[1] == 1 else 1 / (1 - args[1]))


# Operators that also use what they draw: how the first result follows from the rest.
_APPLIED: dict[Any, Callable[[Any, Any], torch.Tensor]] = {aten.native_dropout.default: _native_dropout}

# Operators that use what they draw and do not return it.
_HIDDEN = ("attention", "rrelu", "lstm", "gru", "rnn", "_fused_dropout")


def _numbers_of(func: Any, result: Any) -> tuple[torch.Tensor, ...]:
    """The tensors that hold what a call drew, and nothing else."""
    if any(word in func._schema.name for word in _HIDDEN):
        raise CannotReplayError(f"{func} does not return what it draws")
    if func in _APPLIED:
        return tuple(result[1:])
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)


class Nudged(_Mode):  # type: ignore[no-untyped-call]
    """Changes every element of what each operator computes by one unit in the last place, up or down."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator = torch.Generator().manual_seed(0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not is_view(func) and not draws_random(func, args, kwargs or {}):
            for tensor in result if isinstance(result, tuple | list) else (result,):
                if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                    self._nudge(tensor)
        return result

    def _nudge(self, tensor: torch.Tensor) -> None:
        if torch._debug_has_internal_overlap(tensor) != 1:  # one that is expanded cannot be written
            signs = torch.randint(0, 2, tensor.shape, generator=self._generator).to(tensor.device, tensor.dtype) * 2 - 1
            tensor.mul_(1 + signs * torch.finfo(tensor.dtype).eps)
