"""Operators that PyTorch calls on PrivateUse1 devices but not on the CPU, in terms of operators of the CPU.

    convolution_overrideable(x, w, …)   →   convolution(x, w, …)
    native_dropout(x, p, True)          →   x · bernoulli(1 - p) / (1 - p), drawn as on the CPU
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from smelt.dispatch import recurrent

aten = torch.ops.aten

Answer = Callable[..., Any]
Compute = Callable[[torch._ops.OpOverload, tuple[Any, ...], Mapping[str, Any]], Any]


def device_operators(compute: Compute, call: Compute) -> dict[torch._ops.OpOverload, Answer]:
    """A function for each operator. `compute` computes an operator, `call` asks the owner."""

    def one(operator: torch._ops.OpOverload, *args: Any) -> Any:
        return compute(operator, args, {})

    return {
        aten.convolution_overrideable.default: partial(one, aten.convolution.default),
        aten.convolution_backward_overrideable.default: partial(_convolution_backward, one),
        aten.native_dropout.default: partial(_dropout, compute, call),
        aten._thnn_fused_lstm_cell.default: partial(recurrent.lstm_cell, one),
        aten._thnn_fused_lstm_cell_backward_impl.default: partial(recurrent.lstm_cell_backward, one),
        aten._thnn_fused_gru_cell.default: partial(recurrent.gru_cell, one),
        aten._thnn_fused_gru_cell_backward.default: partial(recurrent.gru_cell_backward, one),
        # Their results share memory, though their schemas are silent about it.
        aten.unsafe_split.Tensor: partial(one, aten.split.Tensor),
        aten.unsafe_split_with_sizes.default: partial(one, aten.split_with_sizes.default),
        aten._unsafe_view.default: partial(one, aten.view.default),
        aten.lift_fresh.default: lambda tensor: tensor,
        aten.lift.default: lambda tensor: tensor,
    }


def _convolution_backward(
    one: Answer, grad: Any, tensor: Any, weight: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int, mask: Any,
) -> Any:  # fmt: skip
    bias = [weight.shape[1] * groups if transposed else weight.shape[0]]
    args = (grad, tensor, weight, bias, stride, padding, dilation, transposed, output_padding, groups, mask)
    return one(aten.convolution_backward.default, *args)


def _dropout(
    compute: Compute, call: Compute, tensor: torch.Tensor, p: float, train: bool | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """As PyTorch computes it on the CPU, which draws the mask in the dtype of the input."""
    if train is False:
        ones = compute(aten.ones_like.default, (tensor,), {"dtype": torch.bool})
        return compute(aten.clone.default, (tensor,), {}), ones
    noise = torch.empty_like(tensor.detach())
    call(aten.bernoulli_.float, (noise, 1 - p), {})
    mask = compute(aten._to_copy.default, (noise,), {"dtype": torch.bool})
    scaled = compute(aten.div.Scalar, (noise, 1 - p), {}) if p < 1 else noise
    return compute(aten.mul.Tensor, (tensor, scaled), {}), mask
