"""Recurrent layers on the host: a product for what the input brings to all steps, then an operator for the steps.

    torch.gru(x, h, weights, …)   →   for each direction: recurrent_steps(linear(x, w_ih, b_ih), w_hh, b_hh, …)

How many steps there are may vary. What PyTorch rounds in between, packed sequences and projections stay PyTorch's.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from smelt.device.host_library import on_host
from smelt.ir.nodes.recurrent_modes import GATES, GRU, LSTM
from smelt.symbolic.symnode import is_symbolic

if TYPE_CHECKING:
    import torch
else:
    from smelt.base.torch_originals import pristine as torch

_DTYPES = (torch.float32, torch.float64)
_MOST_WIDTH, _MOST_STATE = 128, 4096  # of an LSTM, and in all rows


def _steps() -> Any:
    """Loaded where one is met: defining operators takes ten milliseconds."""
    from smelt.ir.nodes.recurrent_steps import STEPS

    return STEPS


def _layers(mode: int) -> Callable[..., Any]:
    """Layers in one or both directions; each layer reads the output of the previous layer."""

    def spelled(
        value: Any,
        hx: Any,
        params: Any,
        has_biases: Any = True,
        layers: int = 1,
        dropout: float = 0.0,
        train: bool = False,
        both: bool = False,
        batch_first: bool = False,
        *rest: Any,
    ) -> Any:
        ways, each = 2 if both else 1, 4 if has_biases else 2
        states = hx if isinstance(hx, tuple | list) else [hx]
        if rest or not isinstance(params, tuple | list) or len(params) != layers * ways * each:
            return NotImplemented  # packed, or with projections
        if not _are_taken(mode, value, states, params, (layers * ways, batch_first)):
            return NotImplemented
        if mode == LSTM and _is_faster_by_library(states[0], (value, *params)):
            return NotImplemented
        flow, ended = value.transpose(0, 1).contiguous() if batch_first else value.contiguous(), []
        for layer in range(layers):
            outputs_of_layer = []
            for way in range(ways):
                place = layer * ways + way
                h, c = states[0][place], states[1][place] if mode == LSTM else None
                gates, bias = _of_input(mode, flow, params[place * each : (place + 1) * each])
                w_hh = params[place * each + 1]
                output, c, _ = _steps()(gates, w_hh, bias, h, c, mode, way == 1)
                outputs_of_layer.append(output)
                ended.append((output[0 if way else -1], c)[: len(states)])
            flow = torch.cat(outputs_of_layer, -1) if both else outputs_of_layer[0]
            if dropout and train and layer < layers - 1:
                flow = torch.dropout(flow, dropout, True)
        output = flow.transpose(0, 1) if batch_first else flow
        if len(ended) == 1:  # a copy of the last output; nobody else has the last cell
            ((h, *c),) = ended
            return (output, h.unsqueeze(0).clone(), *(each.unsqueeze(0) for each in c))
        return (output, *(torch.stack(final) for final in zip(*ended, strict=True)))

    return spelled


def _are_taken(mode: int, value: Any, states: Any, params: Any, depth_and_order: tuple[int, bool]) -> bool:
    """Whether the tensors are those of such layers, of precise numbers, with elements; else PyTorch says what is
    wrong."""
    depth, batch_first = depth_and_order
    if value.dim() != 3 or len(states) != (2 if mode == LSTM else 1) or not on_host(value.device):
        return False
    tensors = (value, *states, *params)
    if any(each.dtype is not value.dtype or not on_host(each.device) for each in tensors):
        return False
    if value.dtype not in _DTYPES or any(each.dim() != 3 for each in states):
        return False
    rows, width = value.shape[0 if batch_first else 1], states[0].shape[2]
    if any(size == 0 for size in (*value.shape, width)):
        return False
    if any(tuple(each.shape) != (depth, rows, width) for each in states):
        return False
    tall, each = GATES[mode] * width, len(params) // depth
    return all(
        weight.dim() == (2 if place % each < 2 else 1)
        and weight.shape[0] == tall
        and (place % each != 1 or weight.shape[1] == width)
        for place, weight in enumerate(params)
    )


def _is_faster_by_library(state: Any, operands: Sequence[Any]) -> bool:
    """Whether to leave an LSTM without gradients to PyTorch, whose library has one.

    Measured on a Cascade Lake Xeon, the library's time by the kernel's: width 128 with up to 32 rows 1.01 to 1.8, 64
    with 64 rows 1.1; 256 and 512, or more rows, 0.82 to 1.02, and a single row of those with two threads 0.6. With
    gradients 0.93 to 1.7. A graph for sizes that vary has the kernel alone.
    """
    rows, width = state.shape[1:]
    if is_symbolic(rows) or is_symbolic(operands[0].shape[0]) or is_symbolic(operands[0].shape[1]):
        return False
    if torch.is_grad_enabled() and any(each.requires_grad for each in operands):
        return False
    return bool(width > _MOST_WIDTH or rows * width > _MOST_STATE)


def _of_input(mode: int, flow: Any, weights: Sequence[Any]) -> tuple[Any, Any]:
    """What the input brings to the gates of all steps, and the biases that are added to what the state brings. The
    kernel adds them on its way; only a GRU has one that is added to the input's part."""
    w_ih, _, *biases = weights
    rows, bias = flow.flatten(0, 1), None
    if biases:
        bias = biases[1] if mode == GRU else biases[0] + biases[1]
    has_own = bool(biases) and mode == GRU
    gates = torch.addmm(biases[0], rows, w_ih.t()) if has_own else torch.mm(rows, w_ih.t())
    return gates.view(*flow.shape[:2], w_ih.shape[0]), bias


ON_HOST: dict[Any, Callable[..., Any]] = {
    function: _layers(mode) for mode, function in enumerate((torch.rnn_relu, torch.rnn_tanh, torch.lstm, torch.gru))
}
