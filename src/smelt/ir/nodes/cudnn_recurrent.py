"""cuDNN's recurrent layers as two operators: `torch.lstm` and its kin on CUDA, and their derivative.

    torch.lstm(x, (h, c), weights, …)   →   cudnn_recurrent(x, [h, c], weights, LSTM, …)
                                            → output, h, c, and for the backward: reserve, flat weights, dropout state

PyTorch's own operator, `aten._cudnn_rnn`, is given two things that only PyTorch's C++ code has: the memory in which all
weights are laid out one after the other, and the state that cuDNN's dropout is drawn from. So the layer is called as a
program calls it, and what `aten._cudnn_rnn` is given inside is kept for the backward. Once it is known where cuDNN
wants each weight, and where nothing is drawn, `aten._cudnn_rnn` is called itself: a mode that looks on costs as much as
a small layer. The size of the reserve is known
to cuDNN alone: graphs have a `WORKSPACE` there, as for the other two.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from smelt.ir.nodes import LIBRARY, define
from smelt.ir.tensorspec import WORKSPACE

aten = torch.ops.aten
Tensors = Sequence[torch.Tensor]

RNN_RELU, RNN_TANH, LSTM, GRU = range(4)
"""The kinds of layers, as cuDNN counts them."""


class Layers(NamedTuple):
    """What is known of a stack of recurrent layers besides its tensors."""

    mode: int
    has_biases: bool
    depth: int
    dropout: float
    train: bool
    bidirectional: bool
    batch_first: bool
    flatten: bool  # whether weights are copied into one piece of memory first, as autocast does

    def call(self, input: torch.Tensor, hx: Tensors, weights: Tensors) -> Any:
        """PyTorch's function for it."""
        function: Any = (torch.rnn_relu, torch.rnn_tanh, torch.lstm, torch.gru)[self.mode]
        return function(input, list(hx) if self.mode == LSTM else hx[0], list(weights), *self[1:7])


_LAYERS = "int mode, bool has_biases, int depth, float dropout, bool train, bool bidirectional, bool batch_first, "
_LAYERS += "bool flatten"


class _PassingBy(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps what `aten._cudnn_rnn` is given and what it returns."""

    args: Sequence[Any] = ()
    results: Tensors = ()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Otherwise PyTorch wraps the handler below in a decorator that imports its compiler, seconds of it."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        if func is aten._cudnn_rnn.default:
            self.args, self.results = args, results
        return results


def run(layers: Layers, input: torch.Tensor, hx: Tensors, weights: Tensors) -> tuple[torch.Tensor, ...]:
    """The layers' results by cuDNN, and what their backward needs."""
    with torch.no_grad():
        flat = None if layers.flatten else _flat.find(layers, hx, weights)
        if layers.flatten:
            weights, flat = _flattened(layers, hx, weights)
        if flat is None or (layers.train and layers.dropout):
            return _run_watched(layers, input, hx, weights)
        cell = hx[1] if layers.mode == LSTM else None
        results = aten._cudnn_rnn.default(
            input, list(weights), _weights_per_layer(layers, hx), flat, hx[0], cell, layers.mode, *_sizes(hx),
            layers.depth, layers.batch_first, layers.dropout, layers.train, layers.bidirectional, [], None,
        )  # fmt: skip
    return (*results, input.new_empty(0, dtype=torch.uint8))


def _run_watched(layers: Layers, input: torch.Tensor, hx: Tensors, weights: Tensors) -> tuple[torch.Tensor, ...]:
    """The same by PyTorch's function, which finds the flat weights and the dropout state; where the weights are in the
    flat ones is remembered."""
    with _PassingBy() as seen:  # type: ignore[no-untyped-call]
        layers.call(input, hx, weights)
    if not seen.results:
        raise RuntimeError("cuDNN was turned off after a recurrent layer was compiled for it")
    flat, state = seen.args[3], seen.args[-1]
    if flat is not None:
        _flat.learn(layers, hx, weights, flat)
    return (*seen.results, input.new_empty(0, dtype=torch.uint8) if state is None else state)


class _FlatWeights:
    """Where weights are in the memory that holds all of them: by what the layers are, as cuDNN lays them out."""

    def __init__(self) -> None:
        self._known: dict[Any, tuple[list[int], int]] = {}  # bytes behind the first, and elements of all

    def learn(self, layers: Layers, hx: Tensors, weights: Tensors, flat: torch.Tensor) -> None:
        if flat.data_ptr() == weights[0].data_ptr():
            self._known[self._key(layers, hx, weights)] = _offsets(weights), flat.numel()

    def find(self, layers: Layers, hx: Tensors, weights: Tensors) -> torch.Tensor | None:
        """The memory that these weights are in, if they are where cuDNN wants them; None if that is not known."""
        first = weights[0]
        offsets, size = self._known.get(self._key(layers, hx, weights), ([], 0))
        if not size or _offsets(weights) != offsets or not all(weight.is_contiguous() for weight in weights):
            return None
        if first.storage_offset() or first.untyped_storage().nbytes() < size * first.element_size():
            return None
        return first.as_strided((size,), (1,))

    def _key(self, layers: Layers, hx: Tensors, weights: Tensors) -> Any:
        first = weights[0]
        sizes = first.shape[1], *_sizes(hx)
        return layers.mode, layers.has_biases, layers.depth, layers.bidirectional, sizes, first.dtype, first.device


_flat = _FlatWeights()


def _offsets(weights: Tensors) -> list[int]:
    first = weights[0].data_ptr()
    return [weight.data_ptr() - first for weight in weights]


def run_backward(
    layers: Layers,
    grads: Sequence[torch.Tensor | None],
    input: torch.Tensor,
    hx: Tensors,
    weights: Tensors,
    output: torch.Tensor,
    workspaces: Tensors,
    wanted: Sequence[bool],
) -> Sequence[torch.Tensor | None]:
    """The gradients of the input, of the states and of the weights. Raises as PyTorch does outside of training."""
    reserve, flat, state = workspaces
    if torch._C._autograd._get_current_graph_task_keep_graph():
        reserve = reserve.clone()  # cuDNN writes to it, and this may not be the last backward
    hidden, projected = _sizes(hx)
    cell = hx[1] if layers.mode == LSTM else None
    grads = [*grads[:2], None if cell is None else grads[2]]
    mask = [wanted[0], wanted[1], cell is not None and wanted[2], any(wanted[1 + len(hx) :])]
    grad_input, *grad_states, grad_weights = aten._cudnn_rnn_backward.default(
        input, list(weights), _weights_per_layer(layers, hx), flat, hx[0], cell, output, *grads, layers.mode, hidden,
        projected, layers.depth, layers.batch_first, layers.dropout, layers.train, layers.bidirectional, [],
        state if state.numel() else None, reserve, mask,
    )  # fmt: skip
    return [grad_input, *grad_states[: len(hx)], *(grad_weights or [None] * len(weights))]


def _sizes(hx: Tensors) -> tuple[Any, Any]:
    """How wide the layers are, and what their output is projected to: 0 for not at all."""
    shown, hidden = hx[0].shape[-1], hx[-1].shape[-1]
    return hidden, 0 if shown == hidden else shown


def _weights_per_layer(layers: Layers, hx: Tensors) -> int:
    return (4 if layers.has_biases else 2) + (1 if _sizes(hx)[1] else 0)


def _flattened(layers: Layers, hx: Tensors, weights: Tensors) -> tuple[Tensors, torch.Tensor]:
    """Copies of weights in one piece of memory, laid out as cuDNN wants them, and that memory."""
    copies = [weight.detach() for weight in weights]  # they are made to name that memory
    sizes = (_weights_per_layer(layers, hx), weights[0].shape[1], layers.mode, *_sizes(hx), layers.depth)
    flat = torch._cudnn_rnn_flatten_weight(copies, *sizes, layers.batch_first, layers.bidirectional)
    return copies, flat


# --- the operators --------------------------------------------------------------------------------------


def _forward(input: torch.Tensor, hx: Tensors, weights: Tensors, *layers: Any) -> tuple[torch.Tensor, ...]:
    return run(Layers(*layers), input, hx, weights)


def _forward_specs(input: torch.Tensor, hx: Tensors, weights: Tensors, *settings: Any) -> tuple[torch.Tensor, ...]:
    layers = Layers(*settings)
    ways = 2 if layers.bidirectional else 1
    steps, batch = _steps_first(input, layers).shape[:2]
    output = input.new_empty((steps, batch, hx[0].shape[-1] * ways))
    states = [hx[0].new_empty((layers.depth * ways, batch, state.shape[-1])) for state in hx]
    states += [hx[0].new_empty(0)] * (2 - len(states))
    workspaces = [input.new_empty(WORKSPACE, dtype=kind) for kind in (torch.uint8, input.dtype, torch.uint8)]
    return (_steps_first(output, layers), *states, *workspaces)


def _backward(grads: Any, input: Any, hx: Any, weights: Any, output: Any, workspaces: Any, wanted: Any,
              *settings: Any) -> list[torch.Tensor]:  # fmt: skip
    layers = Layers(*settings)
    gradients = run_backward(layers, grads, input, hx, weights, output, workspaces, wanted)
    kept = [gradient for gradient, want in zip(gradients, wanted, strict=True) if want]
    return [
        _steps_first(_steps_first(gradient, layers).contiguous(), layers) if place == 0 else gradient.contiguous()
        for place, gradient in enumerate(kept, start=0 if wanted[0] else 1)
        if gradient is not None
    ]


def _backward_specs(grads: Any, input: Any, hx: Any, weights: Any, output: Any, workspaces: Any, wanted: Any,
                    *settings: Any) -> list[torch.Tensor]:  # fmt: skip
    layers = Layers(*settings)
    first = _steps_first(input.new_empty(_steps_first(input, layers).shape), layers)
    gradients = [first, *(each.new_empty(each.shape) for each in (*hx, *weights))]
    return [each for each, want in zip(gradients, wanted, strict=True) if want]


def _steps_first(value: torch.Tensor, layers: Layers) -> torch.Tensor:
    """With steps before the batch, as cuDNN computes; and back."""
    return value.transpose(0, 1) if layers.batch_first else value


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    input, hx, weights, *settings = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[3:])
    ctx.save_for_backward(input, *hx, *weights, output[0], *output[3:])
    ctx.counts, ctx.settings = (len(hx), len(weights)), settings


def _derive(ctx: Any, *grads: Any) -> tuple[Any, ...]:
    input, *saved = ctx.saved_tensors
    states, count = ctx.counts
    hx, weights, output = saved[:states], saved[states : states + count], saved[-4]
    needs_input, needs_states, needs_weights, *_ = ctx.needs_input_grad
    wanted = [needs_input, *needs_states, *needs_weights]
    remaining = iter(_BACKWARD(grads[:3], input, hx, weights, output, saved[-3:], wanted, *ctx.settings))
    gradients = [next(remaining) if want else None for want in wanted]
    return (gradients[0], gradients[1 : 1 + states], gradients[1 + states :], *([None] * len(ctx.settings)))


CUDNN_RECURRENT = define(
    f"cudnn_recurrent(Tensor input, Tensor[] hx, Tensor[] weights, {_LAYERS}) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _forward, _forward_specs, torch.Tag.nondeterministic_seeded,
)  # fmt: skip
_BACKWARD = define(
    "cudnn_recurrent_backward(Tensor?[] grads, Tensor input, Tensor[] hx, Tensor[] weights, Tensor output, "
    f"Tensor[] workspaces, bool[] wanted, {_LAYERS}) -> Tensor[]",
    _backward, _backward_specs,
)  # fmt: skip
torch.library.register_autograd("smelt::cudnn_recurrent", _derive, setup_context=_keep, lib=LIBRARY)

FUNCTIONS = {CUDNN_RECURRENT: _forward, _BACKWARD: _backward}
"""What computes each: where nothing is recorded, PyTorch's dispatcher, which is given lists, only adds to it."""
