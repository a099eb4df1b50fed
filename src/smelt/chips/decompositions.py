"""Operators without a kernel, as calls of others that have some: those of results that data size, or PyTorch's.

    mvlgamma(x, p)        →   arange, add, lgamma, sum: each a kernel          (PyTorch's, `torch._decomp`)
    tril_(x), sort.out    →   tril(x), sort(x), and a copy of what they return

A decomposition runs on the chip's own tensors. One that asks for its own operator again has said nothing: the host
computes that.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch._decomp import decomposition_table

from smelt.base.errors import SmeltError
from smelt.chips.sized_by_data import RULES
from smelt.meta.devices import tensors_in

aten = torch.ops.aten

Decomposition = Callable[..., Any]


class Circular(Exception):
    """A decomposition has come back to the operator that it is for."""


class Refused(Exception):
    """A decomposition does not do this call, or it is wrong: the host computes it, or says what is wrong."""


IN_DOUBLE = (aten.grid_sampler_2d.default, aten.upsample_bicubic2d.default, aten.upsample_bicubic2d.vec)
"""Whose weights lose too much in float32: computed in float64 where a chip has it."""


def decomposition_of(
    operator: torch._ops.OpOverload, args: Any, dtypes: Iterable[torch.dtype], is_described: bool
) -> Decomposition | None:
    """A function that computes an operator on these arguments, with results of these dtypes, by others; None where the
    host computes it. PyTorch's decompositions are checked against a description of the results, and need one."""
    if _is_complex(args, dtypes):
        return None
    if operator in RULES:
        ours = RULES[operator]
        known = decomposition_table.get(operator) if is_described else None
        return ours if known is None else _either(ours, known)
    if operator._schema.is_mutable:
        functional = _functional(operator)
        return None if functional is None else _writing(*functional)
    return decomposition_table.get(operator) if is_described else None


def _is_complex(args: Any, dtypes: Iterable[torch.dtype]) -> bool:
    """Whether an argument or a result is complex: no kernel computes with complex numbers, so the host does."""
    return any(dtype.is_complex for dtype in dtypes) or any(each.is_complex() for each in tensors_in(args))


def _either(ours: Decomposition, known: Decomposition) -> Decomposition:
    """A rule of ours, some of which are for a few arguments alone, such as masks; else PyTorch's."""

    def compute(*args: Any, **kwargs: Any) -> Any:
        try:
            return ours(*args, **kwargs)
        except NotImplementedError:
            return known(*args, **kwargs)

    return compute


def _writing(pure: Decomposition, named: tuple[str, ...]) -> Decomposition:
    """An operator that writes, by the one that returns what is written: into what has these names, or the first."""

    def write(*args: Any, **kwargs: Any) -> Any:
        outs = [kwargs[name] for name in named] if named else [args[0]]
        results = pure(*args, **{name: value for name, value in kwargs.items() if name not in named})
        pairs = list(zip(outs, results if isinstance(results, tuple | list) else [results], strict=True))
        for out, value in pairs:  # all of them before anything is written
            if not torch.can_cast(value.dtype, out.dtype):
                raise RuntimeError(f"{value.dtype} is not written into {out.dtype}")
            if out.shape != value.shape and not named:
                raise RuntimeError("what is written has another shape")
        for out, value in pairs:
            if out.shape != value.shape:
                out.resize_(value.shape)
            out.copy_(value)
        return outs[0] if len(outs) == 1 else tuple(outs)

    return write


@cache
def _functional(operator: torch._ops.OpOverload) -> tuple[torch._ops.OpOverload, tuple[str, ...]] | None:
    """The operator that returns what this one writes, and by which names this one is given where."""
    arguments = operator._schema.arguments
    named = tuple([each.name for each in arguments if each.is_out])
    name = operator._schema.name.removeprefix("aten::")
    if not named and (name.endswith("__") or not name.endswith("_")):
        return None
    packet = getattr(aten, name if named else name[:-1], None)
    wanted = [(each.name, str(each.type)) for each in arguments if not each.is_out]
    for overload in packet.overloads() if packet is not None else ():
        candidate: torch._ops.OpOverload = getattr(packet, overload)
        same = [(each.name, str(each.type)) for each in candidate._schema.arguments] == wanted
        if same and not candidate._schema.is_mutable:
            return candidate, named
    return None


_running = threading.local()


@contextmanager
def _entered(operator: torch._ops.OpOverload) -> Iterator[None]:
    stack: list[torch._ops.OpOverload] = _running.__dict__.setdefault("operators", [])
    if operator in stack:
        raise Circular(str(operator))
    stack.append(operator)
    try:
        yield
    finally:
        stack.pop()


def decomposed(
    operator: torch._ops.OpOverload, rule: Decomposition, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, ...]:
    """The results of an operator, computed by its decomposition. Errors of ours are for the host to say."""
    with _entered(operator), torch.no_grad():
        try:
            results = rule(*args, **kwargs)
        except (SmeltError, Circular, torch.OutOfMemoryError):
            raise
        except Exception as error:
            if operator not in RULES and isinstance(error, NotImplementedError):
                raise
            raise Refused(f"{type(error).__name__}: {error}") from error
    if results is NotImplemented:
        raise Circular(str(operator))
    return tuple(results) if isinstance(results, tuple | list) else (results,)
