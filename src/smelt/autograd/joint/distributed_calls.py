"""Calls on `DTensor`s in a trace: their operators run on functional tensors, as all others do.

    linear(x_local, w_local)       forward   mm = mm(x, w); all_reduce = …; wait_tensor = …
                                   backward  what PyTorch derives of the call on `DTensor`s, placements included

A `DTensor` is no functional tensor, but its local tensor is one. Functionalization lets an operator on `DTensor`s pass,
and is off below it. `LocalFunctionalization` turns it on again before the `DTensor` runs operators on local tensors.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode

from smelt.ir.nodes.distributed import DistributedCall
from smelt.meta.fake_tensor import OURS, FakeTensor, by_others

_FUNCTIONALIZE = torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)


class LocalFunctionalization(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Under this mode, functional tensors below a `DTensor` are functionalized."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Otherwise PyTorch wraps the handler below in a decorator that imports its compiler, seconds of it."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named, answer = kwargs or {}, by_others(func, types, args, kwargs)
        if answer is not OURS:
            return answer
        if not any(map(_has_functional, (*args, *named.values()))):
            return func(*args, **named)
        included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
        with torch._C._ForceDispatchKeyGuard(included, excluded - _FUNCTIONALIZE):
            return func(*args, **named)


def _has_functional(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return any(map(_has_functional, value))
    return isinstance(value, torch.Tensor) and torch._is_functional_tensor(value)


def below_dtensors(graph: fx.Graph | None) -> AbstractContextManager[object]:
    """The context in which a graph with calls on `DTensor`s is traced, forward and backward."""
    has_calls = graph is not None and any(isinstance(node.target, DistributedCall) for node in graph.nodes)
    return LocalFunctionalization() if has_calls else nullcontext()  # type: ignore[no-untyped-call]


def traced_call(
    call: DistributedCall, operands: tuple[Any, ...], functional: Callable[[FakeTensor], torch.Tensor]
) -> tuple[Any, ...]:
    """What a call returns of functional tensors. A factory returns a fake tensor, which is made `functional`."""
    return tuple(functional(each) if isinstance(each, FakeTensor) else each for each in call(*operands))
