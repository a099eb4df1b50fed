"""Specs of operators on devices beside the CPU, where PyTorch describes them wrongly or not at all.

    aten._native_batch_norm_legit_functional(bf16[4, 8, 9, 9], …)   → statistics of the batch in float32, running ones
                                                                      in their own dtype; PyTorch says float32 of both
    aten.multi_margin_loss_backward(f32[], f32[4, 5], …)            → f32[4, 5]
"""

from typing import Any

import torch

from smelt.ir.tensorspec import UnplacedSpec
from smelt.meta.rules.corrections import gradient_of_second
from smelt.meta.rules.reduction import row_major
from smelt.meta.rules.strides import like_stride

_WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


def _batch_norm(
    value: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool, *rest: Any
) -> Any:
    if not training or value.dim() < 2 or running_mean is None or running_var is None or 0 in value.shape:
        return NotImplemented
    shape, channels = tuple(value.shape), (value.shape[1],)
    given = [each for each in (weight, bias, running_mean, running_var) if each is not None]
    if any(tuple(each.shape) != channels for each in given) or running_mean.dtype is not running_var.dtype:
        return NotImplemented
    normed = UnplacedSpec(shape, like_stride(shape, value.stride()), value.dtype)
    of_batch = row_major(channels, _WIDE.get(value.dtype, value.dtype))
    running = row_major(channels, running_mean.dtype)
    return normed, of_batch, of_batch, running, running


RULES: dict[str, Any] = {
    "_native_batch_norm_legit_functional.default": _batch_norm,
    "multi_margin_loss_backward.default": gradient_of_second,
    "multilabel_margin_loss_backward.default": gradient_of_second,
    "fractional_max_pool3d_backward.default": gradient_of_second,
}
