"""A backward inside a torch-level graph: `loss.backward()` and `torch.autograd.grad` as nodes of it.

    loss.backward()      backward = accumulable((loss,), (None,), (weight, bias), False)
                         weight.grad = backward[0]; bias.grad = backward[1]

Whoever runs the graph calls the node's target, and PyTorch's engine runs on whatever tensors there are: real ones, or
those of a recorder, which then has forward and backward in one graph and knows of each node which backward it is of.
"""

import itertools
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import fx

from smelt import _native
from smelt.base import locks
from smelt.base.torch_originals import BASE
from smelt.symbolic.shapes import is_dense

if TYPE_CHECKING:
    import torch
else:
    from smelt.base.torch_originals import pristine as torch

Tensors = Sequence[torch.Tensor]

_BACKWARD = "smelt_backward"
_numbers = itertools.count()


class _Now(threading.local):
    backward: int | None = None


_now = _Now()
_borrowing = locks.lock()  # leaves of the program, whose hooks and gradients are put aside for a while


def this_thread() -> Mapping[str, Any]:
    """What runs on this thread, for others to look at: the engine has a thread for each GPU, and records there what
    this one waits for."""
    return vars(_now)


def running_backward(thread: Mapping[str, Any]) -> int | None:
    """The number of the backward inside a graph that runs on this thread, or else on the one that it may work for."""
    return thread.get("backward") if _now.backward is None else _now.backward


def backward_of(node: fx.Node) -> int | None:
    """The number of the backward inside the graph that a node was recorded in; they grow in the order of the graph."""
    number: int | None = node.meta.get(_BACKWARD)
    return number


def set_backward(node: fx.Node, number: int) -> None:
    node.meta[_BACKWARD] = number


def gradients(
    outputs: Tensors, tangents: Sequence[torch.Tensor | None], inputs: Tensors, retain: bool, create: bool
) -> tuple[torch.Tensor | None, ...]:
    """`torch.autograd.grad`; None where nothing arrives. Its own checks would import sympy, half a second and more."""
    return _run_engine(outputs, tangents, inputs, retain, create=create)


def unhooked(
    outputs: Tensors, tangents: Sequence[torch.Tensor | None], inputs: Tensors, retain: bool
) -> tuple[torch.Tensor | None, ...]:
    """Gradients of leaves before their hooks are called, which the program that the graph is part of does itself."""
    with _native.Held(_borrowing):
        hooks = [each._backward_hooks for each in inputs if each._backward_hooks]
        before = [dict(each) for each in hooks]

        def compute() -> tuple[torch.Tensor | None, ...]:
            for each in hooks:
                each.clear()
            return gradients(outputs, tangents, inputs, retain, False)

        def put_back() -> None:
            for each, functions in zip(hooks, before, strict=True):
                each.update(functions)

        computed: tuple[torch.Tensor | None, ...] = _native.undoing(put_back, compute)
        return computed


def accumulable(
    outputs: Tensors, tangents: Sequence[torch.Tensor | None], inputs: Tensors, retain: bool
) -> tuple[torch.Tensor | None, ...]:
    """Gradients as they come to be in `.grad` of leaves that have none yet."""
    if all(each.is_leaf for each in inputs):
        return _accumulated(outputs, tangents, inputs, retain)
    computed = gradients(outputs, tangents, inputs, retain, False)
    with torch.no_grad():  # what stands for a leaf that is written is none
        return _all_kept(computed, inputs)


def accumulable_create_graph(
    outputs: Tensors, tangents: Sequence[torch.Tensor | None], inputs: Tensors, retain: bool
) -> tuple[torch.Tensor | None, ...]:
    """The same with `create_graph=True`: gradients have a history themselves."""
    computed = gradients(outputs, tangents, inputs, retain, True)
    with torch.enable_grad():
        return _all_kept(computed, inputs)


def _all_kept(computed: Sequence[torch.Tensor | None], leaves: Tensors) -> tuple[torch.Tensor | None, ...]:
    both = zip(computed, leaves, strict=True)
    return tuple(None if gradient is None else _kept(gradient, leaf) for gradient, leaf in both)


BACKWARDS: frozenset[Any] = frozenset({gradients, unhooked, accumulable, accumulable_create_graph})
"""The functions that take gradients inside a graph."""


def _accumulated(
    outputs: Tensors, tangents: Sequence[torch.Tensor | None], leaves: Tensors, retain: bool
) -> tuple[torch.Tensor | None, ...]:
    """As the engine itself does it: it knows which gradients nobody else has, and whose memory others share."""
    with _native.Held(_borrowing):
        before = [leaf.grad for leaf in leaves]

        def compute() -> tuple[torch.Tensor | None, ...]:
            for leaf in leaves:
                leaf.grad = None
            _run_engine(outputs, tangents, leaves, retain, accumulate=True)
            return tuple(leaf.grad for leaf in leaves)

        def put_back() -> None:
            for leaf, gradient in zip(leaves, before, strict=True):
                leaf.grad = gradient

        computed: tuple[torch.Tensor | None, ...] = _native.undoing(put_back, compute)
        return computed


def _run_engine(
    outputs: Tensors,
    tangents: Sequence[torch.Tensor | None],
    inputs: Tensors,
    retain: bool,
    *,
    create: bool = False,
    accumulate: bool = False,
) -> tuple[torch.Tensor | None, ...]:
    arriving = tuple(
        torch.ones_like(output, memory_format=torch.preserve_format) if tangent is None else tangent
        for output, tangent in zip(outputs, tangents, strict=True)
    )
    before, _now.backward = _now.backward, next(_numbers)
    try:
        results: tuple[torch.Tensor | None, ...] = torch.autograd.graph._engine_run_backward(
            tuple(outputs), arriving, retain, create, tuple(inputs), allow_unreachable=True, accumulate_grad=accumulate
        )
    finally:
        _now.backward = before
    return results


def _kept(gradient: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    """As the engine keeps a gradient: in the leaf's layout, or row-major where that has gaps or overlaps."""
    if not is_dense(leaf.shape, leaf.stride()):
        return BASE.clone(gradient, memory_format=torch.contiguous_format)
    if gradient.stride() == leaf.stride():
        return BASE.clone(gradient, memory_format=torch.preserve_format)
    copy = torch.empty_strided(leaf.shape, leaf.stride(), dtype=gradient.dtype, device=gradient.device)
    return BASE.copy_(copy, gradient)
