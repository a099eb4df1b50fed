"""All steps of one direction of a recurrent layer as two operators: `recurrent_steps` and its derivative.

    torch.lstm(x, (h, c), weights, …)   →   recurrent_steps(linear(x, w_ih), w_hh, b_ih + b_hh, h, c, LSTM, reverse)
                                            → output, last cell, and for the backward: reserve

The product of the input with its weights is computed for all steps before the operator. The order of gates is
PyTorch's. On a CPU each operator is one kernel (`fuse/lowering/recurrence.py`); elsewhere it is decomposed into what
computes it here, step by step. The backward gives the gradients of all gates; those of the weight are one product of
them with the states before each step, which the reserve has at its end.
"""

from typing import Any

import torch

from smelt.ir.nodes import LIBRARY, define
from smelt.ir.nodes.recurrent_modes import GATES, GRU, LSTM, RNN_RELU, RNN_TANH

Tensor = torch.Tensor

KEPT = {RNN_RELU: 1, RNN_TANH: 1, LSTM: 6, GRU: 5}
"""How many vectors of a step are in the reserve: of an LSTM the gates and the old cell; of a GRU the gates and what the
state brings to the new state; of all the old state, last."""


def _order(steps: int, reverse: bool) -> range:
    return range(steps - 1, -1, -1) if reverse else range(steps)


def _forward(
    gates: Tensor, weight: Tensor, bias: Tensor | None, h: Tensor, c: Tensor | None, mode: int, reverse: bool
) -> tuple[Tensor, Tensor, Tensor]:
    steps = gates.shape[0]
    outputs, reserve = [h] * steps, [h] * steps
    for step in _order(steps, reverse):
        kept: tuple[Tensor, ...] = (h,)
        of_input, of_state = gates[step], h @ weight.t()
        of_state = of_state if bias is None else of_state + bias
        if mode == LSTM:
            assert c is not None
            i, f, g, o = (of_input + of_state).chunk(4, 1)
            i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
            kept = (i, f, g, o, c, h)
            c = f * c + i * g
            h = o * c.tanh()
        elif mode == GRU:
            (r, z, n), (of_r, of_z, of_n) = of_input.chunk(3, 1), of_state.chunk(3, 1)
            r, z = (r + of_r).sigmoid(), (z + of_z).sigmoid()
            n = (n + r * of_n).tanh()
            kept = (r, z, n, of_n, h)
            h = (h - n) * z + n
        else:
            total = of_input + of_state
            h = total.relu() if mode == RNN_RELU else total.tanh()
        outputs[step], reserve[step] = h, torch.cat(kept, 1)
    return torch.stack(outputs), h.new_zeros(0) if c is None else c.clone(), torch.stack(reserve)


def _forward_specs(
    gates: Tensor, weight: Tensor, bias: Tensor | None, h: Tensor, c: Tensor | None, mode: int, reverse: bool
) -> tuple[Tensor, Tensor, Tensor]:
    (steps, rows), width = gates.shape[:2], h.shape[1]
    cell = h.new_empty((0,)) if c is None else h.new_empty((rows, width))
    return h.new_empty((steps, rows, width)), cell, h.new_empty((steps, rows, KEPT[mode] * width))


def _backward(
    grad: Tensor, grad_c: Tensor | None, weight: Tensor, output: Tensor, reserve: Tensor, mode: int, reverse: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of what the input brings to the gates and of what the state brings, of all steps; and of the first
    state as far as it is not multiplied with the weight: of an LSTM the cell's."""
    steps = grad.shape[0]
    of_gates, of_state = [grad[0]] * steps, [grad[0]] * steps
    rest = torch.zeros_like(grad[0]) if grad_c is None else grad_c.clone()
    further: Tensor | None = None
    for step in reversed(_order(steps, reverse)):
        kept = reserve[step].chunk(KEPT[mode], 1)
        dh = grad[step] if further is None else grad[step] + further
        if mode == LSTM:
            i, f, g, o, c, _ = kept
            shown = (f * c + i * g).tanh()
            rest = rest + dh * o * (1 - shown * shown)
            parts = (
                rest * g * (i * (1 - i)),
                rest * c * (f * (1 - f)),
                rest * i * (1 - g * g),
                dh * shown * (o * (1 - o)),
            )
            of_gates[step] = of_state[step] = torch.cat(parts, 1)
            rest = rest * f
        elif mode == GRU:
            r, z, n, of_n, h = kept
            dh = dh + rest
            dn, dz = dh * (1 - z) * (1 - n * n), dh * (h - n) * (z * (1 - z))
            dr = dn * of_n * (r * (1 - r))
            of_gates[step], of_state[step] = torch.cat((dr, dz, dn), 1), torch.cat((dr, dz, dn * r), 1)
            rest = dh * z
        else:
            y = output[step]
            of_gates[step] = of_state[step] = dh * (y > 0).to(y.dtype) if mode == RNN_RELU else dh * (1 - y * y)
        further = of_state[step] @ weight
    return torch.stack(of_gates), torch.stack(of_state) if mode == GRU else grad.new_zeros(0), rest


def _backward_specs(
    grad: Tensor, grad_c: Tensor | None, weight: Tensor, output: Tensor, reserve: Tensor, mode: int, reverse: bool
) -> tuple[Tensor, Tensor, Tensor]:
    steps, rows, width = grad.shape
    gates = grad.new_empty((steps, rows, GATES[mode] * width))
    return gates, torch.empty_like(gates) if mode == GRU else grad.new_empty((0,)), grad.new_empty((rows, width))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, weight, _, _, _, ctx.mode, ctx.reverse = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[2])
    ctx.save_for_backward(weight, output[0], output[2])


def _derive(ctx: Any, grad: Tensor | None, grad_c: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    weight, output, reserve = ctx.saved_tensors
    grad = torch.zeros_like(output) if grad is None else grad
    of_gates, of_state, rest = BACKWARD(grad, grad_c, weight, output, reserve, ctx.mode, ctx.reverse)
    of_state = of_state if ctx.mode == GRU else of_gates
    needs_gates, needs_weight, needs_bias, needs_h, *_rest = ctx.needs_input_grad
    rows, before = of_state.flatten(0, 1), reserve[:, :, -output.shape[2] :].flatten(0, 1)
    of_h = of_state[-1 if ctx.reverse else 0] @ weight if needs_h else None
    if of_h is not None and ctx.mode == GRU:
        of_h = of_h + rest
    return (
        of_gates if needs_gates else None,
        rows.t() @ before if needs_weight else None,
        rows.sum(0) if needs_bias else None,
        of_h,
        rest if ctx.mode == LSTM else None,
        None,
        None,
    )


STEPS = define(
    "recurrent_steps(Tensor gates, Tensor weight, Tensor? bias, Tensor h, Tensor? c, int mode, bool reverse) "
    "-> (Tensor, Tensor, Tensor)",
    _forward, _forward_specs,
)  # fmt: skip
BACKWARD = define(
    "recurrent_steps_backward(Tensor grad, Tensor? grad_c, Tensor weight, Tensor output, Tensor reserve, int mode, "
    "bool reverse) -> (Tensor, Tensor, Tensor)",
    _backward, _backward_specs,
)  # fmt: skip
torch.library.register_autograd("smelt::recurrent_steps", _derive, setup_context=_keep, lib=LIBRARY)

FUNCTIONS = {STEPS: _forward, BACKWARD: _backward}
