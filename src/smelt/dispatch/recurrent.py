"""Cells of recurrent layers, which PyTorch asks a device for as one operator: here they are made of element-wise ones.

`call(operator, *args)` records an operator. What a forward keeps for its backward, PyTorch's workspace, is the gates.
"""

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten

Call = Callable[..., Any]
Tensor = torch.Tensor


def _gates(call: Call, gates: Tensor, hidden: Tensor, gates_bias: Tensor | None, hidden_bias: Tensor | None) -> Any:
    """Both parts with their biases."""
    first = gates if gates_bias is None else call(aten.add.Tensor, gates, gates_bias)
    second = hidden if hidden_bias is None else call(aten.add.Tensor, hidden, hidden_bias)
    return first, second


def lstm_cell(
    call: Call, gates: Tensor, hidden: Tensor, cell: Tensor, gates_bias: Any = None, hidden_bias: Any = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The new hidden state, the new cell, and the gates."""
    first, second = _gates(call, gates, hidden, gates_bias, hidden_bias)
    parts = call(aten.split.Tensor, call(aten.add.Tensor, first, second), gates.shape[1] // 4, 1)
    enter, forget, out = (call(aten.sigmoid.default, parts[place]) for place in (0, 1, 3))
    new = call(aten.tanh.default, parts[2])
    new_cell = call(aten.add.Tensor, call(aten.mul.Tensor, forget, cell), call(aten.mul.Tensor, enter, new))
    state = call(aten.mul.Tensor, out, call(aten.tanh.default, new_cell))
    return state, new_cell, call(aten.cat.default, [enter, forget, new, out], 1)


def lstm_cell_backward(
    call: Call, grad_state: Any, grad_cell: Any, before: Tensor, after: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Any, ...]:
    """Gradients of the gates, of the cell before, and of the biases."""
    if grad_state is None and grad_cell is None:
        return None, None, None
    enter, forget, new, out = call(aten.split.Tensor, workspace, workspace.shape[1] // 4, 1)
    squashed = call(aten.tanh.default, after)

    def times(*values: Tensor) -> Tensor:
        product = values[0]
        for value in values[1:]:
            product = call(aten.mul.Tensor, product, value)
        return product

    gate_out, grad = None, grad_cell
    if grad_state is not None:
        gate_out = call(aten.sigmoid_backward.default, times(grad_state, squashed), out)
        through = call(aten.tanh_backward.default, times(grad_state, out), squashed)
        grad = through if grad is None else call(aten.add.Tensor, grad, through)
    gates = [
        call(aten.sigmoid_backward.default, times(grad, new), enter),
        call(aten.sigmoid_backward.default, times(grad, before), forget),
        call(aten.tanh_backward.default, times(grad, enter), new),
        call(aten.zeros_like.default, out) if gate_out is None else gate_out,
    ]
    all_gates = call(aten.cat.default, gates, 1)
    bias = call(aten.sum.dim_IntList, all_gates, [0], False) if has_bias else None
    return all_gates, times(grad, forget), bias


def gru_cell(
    call: Call, gates: Tensor, hidden: Tensor, state: Tensor, gates_bias: Any = None, hidden_bias: Any = None
) -> tuple[Tensor, Tensor]:
    """The new state, and what the backward needs: reset, update, new, the state before, the hidden part of new."""
    first, second = _gates(call, gates, hidden, gates_bias, hidden_bias)
    width = gates.shape[1] // 3
    ours, theirs = (call(aten.split.Tensor, each, width, 1) for each in (first, second))
    reset = call(aten.sigmoid.default, call(aten.add.Tensor, ours[0], theirs[0]))
    update = call(aten.sigmoid.default, call(aten.add.Tensor, ours[1], theirs[1]))
    new = call(aten.tanh.default, call(aten.add.Tensor, ours[2], call(aten.mul.Tensor, reset, theirs[2])))
    apart = call(aten.sub.Tensor, state, new)
    new_state = call(aten.add.Tensor, call(aten.mul.Tensor, apart, update), new)
    return new_state, call(aten.cat.default, [reset, update, new, state, theirs[2]], 1)


def gru_cell_backward(call: Call, grad: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Any, ...]:
    """Gradients of the given gates, of the hidden gates, of the state before, and of the biases."""
    reset, update, new, state, hidden = call(aten.split.Tensor, workspace, workspace.shape[1] // 5, 1)

    def times(one: Tensor, other: Tensor) -> Any:
        return call(aten.mul.Tensor, one, other)

    grad_new = call(aten.tanh_backward.default, times(grad, call(aten.rsub.Scalar, update, 1)), new)
    grad_update = call(aten.sigmoid_backward.default, times(grad, call(aten.sub.Tensor, state, new)), update)
    grad_reset = call(aten.sigmoid_backward.default, times(grad_new, hidden), reset)
    grad_gates = call(aten.cat.default, [grad_reset, grad_update, grad_new], 1)
    grad_hidden = call(aten.cat.default, [grad_reset, grad_update, times(grad_new, reset)], 1)
    biases = [call(aten.sum.dim_IntList, each, [0], False) if has_bias else None for each in (grad_gates, grad_hidden)]
    return grad_gates, grad_hidden, times(grad, update), *biases
