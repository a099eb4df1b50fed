"""Calls on `DTensor`s in a trace: their operators run on functional tensors, as all others do.

    linear(x_local, w_local)       forward   mm = mm(x, w); all_reduce = …; wait_tensor = …
                                   backward  what PyTorch derives of the call on `DTensor`s, placements included

A `DTensor` is no functional tensor, but its local tensor is one. Functionalization lets an operator on `DTensor`s pass,
and is off below it. `LocalFunctionalization` turns it on again before the `DTensor` runs operators on local tensors.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode

from smelt.autograd.joint.functional_tensors import functional, synced
from smelt.ir.nodes.distributed import DistributedCall
from smelt.meta.fake_tensor import OURS, FakeTensor, by_others, is_composite

_FUNCTIONALIZE = torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)


class LocalFunctionalization(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Under this mode, functional tensors below a `DTensor` are functionalized. `inside`: a `DTensor` runs an operator.

    Functionalization takes an operator on `DTensor`s and functional tensors for its own. So what a `DTensor` returns
    beside others of its kind, the weight of a loss, is a fake tensor, which its backward is given."""

    def __init__(self, inside: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._inside = inside

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Otherwise PyTorch wraps the handler below in a decorator that imports its compiler, seconds of it."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named, answer = kwargs or {}, by_others(func, types, args, kwargs)
        if answer is NotImplemented and not self._inside:
            with LocalFunctionalization(inside=True):
                return _without_functional(func(*args, **named))
        if answer is not OURS:
            return answer
        if not any(map(_has_functional, (*args, *named.values()))):
            return func(*args, **named)
        included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
        with torch._C._ForceDispatchKeyGuard(included, excluded - _FUNCTIONALIZE):
            return func.decompose(*args, **named) if is_composite(func) else func(*args, **named)


def _has_functional(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return any(map(_has_functional, value))
    return isinstance(value, torch.Tensor) and torch._is_functional_tensor(value)


def _without_functional(value: Any) -> Any:
    """The same with fake tensors for functional ones, which are results that are no `DTensor`s."""
    if isinstance(value, tuple | list):
        return type(value)(map(_without_functional, value))
    return synced(value) if _has_functional(value) else value


def below_dtensors(graph: fx.Graph | None) -> AbstractContextManager[object]:
    """The context in which a graph with calls on `DTensor`s is traced, forward and backward."""
    has_calls = graph is not None and any(isinstance(node.target, DistributedCall) for node in graph.nodes)
    return LocalFunctionalization() if has_calls else nullcontext()


def traced_call(call: DistributedCall, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a call returns of functional tensors. What a factory returns is a fake tensor."""
    return tuple(functional(each) if isinstance(each, FakeTensor) else each for each in call(*operands))
