"""Recurrent layers and classes as operators that have kernels, where no library may be called.

    lstm(x, (h, c), weights, …)   →  for each step: gates = linear(x) + linear(h), c = f·c + i·g, h = o·tanh(c)
    recurrent_steps(gates, …)     →  the same, where no kernel runs step by step
    one_hot(x, 10)                →  zeros with a one scattered to each class

They are functions of `torch`: autograd derives what they are made of.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.ops.decompose.table import Table
from smelt.ops.decompose.without_library import TABLE

Tensor = torch.Tensor
linear = torch.nn.functional.linear


def _one_direction(
    x: Tensor, h: Tensor, c: Tensor, weights: Sequence[Tensor], has_biases: bool, reverse: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """What one layer makes of all steps, and its last state. `weights`: of the input, of the state, their biases, and
    of what the state is projected by, if it is."""
    of_input, of_state, *rest = weights
    biases = rest[:2] if has_biases else [None, None]
    projection = rest[-1] if len(rest) % 2 else None
    input_gates = linear(x, of_input, biases[0])
    outputs = []
    for step in reversed(range(x.shape[0])) if reverse else range(x.shape[0]):
        gates = input_gates[step] + linear(h, of_state, biases[1])
        i, f, g, o = gates.chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        if projection is not None:
            h = linear(h, projection)
        outputs.append(h)
    return torch.stack(outputs[::-1] if reverse else outputs), h, c


def lstm(*args: Any) -> Any:
    """Of one tensor; packed sequences, whose steps are of different lengths, stay as they are."""
    if not isinstance(args[1], Sequence) or isinstance(args[1], Tensor) or not isinstance(args[0].shape[0], int):
        return torch.lstm(*args)
    x, state, weights, has_biases, layers, dropout, train, bidirectional, batch_first = args
    if x.dim() != 3 or not all(isinstance(size, int) for size in x.shape[: 2 if batch_first else 1]):
        return torch.lstm(*args)
    x = x.transpose(0, 1) if batch_first else x
    directions = 2 if bidirectional else 1
    each = len(weights) // (layers * directions)
    last_h, last_c = [], []
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            place = layer * directions + direction
            own = weights[place * each : (place + 1) * each]
            output, h, c = _one_direction(x, state[0][place], state[1][place], own, has_biases, bool(direction))
            outputs.append(output)
            last_h.append(h)
            last_c.append(c)
        x = outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)
        if dropout and train and layer < layers - 1:
            x = torch.dropout(x, dropout, True)
    return x.transpose(0, 1) if batch_first else x, torch.stack(last_h), torch.stack(last_c)


def step_by_step() -> Table:
    """All steps of a layer, and their gradients. Defining operators takes ten milliseconds."""
    from smelt.ir.nodes.recurrent_steps import FUNCTIONS

    return {op: _of_known_length(function) for op, function in FUNCTIONS.items()}


def _of_known_length(function: Callable[..., Any]) -> Callable[..., Any]:
    def decomposed(x: Tensor, *args: Any) -> Any:
        return function(x, *args) if isinstance(x.shape[0], int) else NotImplemented

    return decomposed


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """A class that is none raises, as an index out of range does. How many there are has to be said."""
    if num_classes < 1:
        return torch.nn.functional.one_hot(tensor, num_classes)
    zeros = torch.zeros([*tensor.shape, num_classes], dtype=torch.int64, device=tensor.device)
    return zeros.scatter(-1, tensor.unsqueeze(-1), 1)


TABLE[torch.lstm] = lstm
TABLE[torch.nn.functional.one_hot] = one_hot
