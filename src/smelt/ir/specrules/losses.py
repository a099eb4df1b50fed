"""Specs of losses. Reduced ones yield a scalar; others, and gradients, are answered for row-major inputs of one shape.

aten.mse_loss(f32[4, 8], f32[4, 8], 1)                      → f32[]
aten.mse_loss_backward(f32[], f32[4, 8], f32[4, 8], 1)      → f32[4, 8]
"""

from typing import Any

from smelt.ir.specrules.promotion import FLOATS
from smelt.ir.specrules.reduction import row_major


def _alike(first: Any, *others: Any) -> bool:
    """Row-major tensors of one float dtype and one shape; None is no tensor."""
    if first.dtype not in FLOATS or not first.is_contiguous():
        return False
    return all(
        one is None or (one.dtype is first.dtype and one.shape == first.shape and one.is_contiguous()) for one in others
    )


def _reduced(value: Any, reduction: int) -> Any:
    return row_major(tuple(value.shape) if reduction == 0 else (), value.dtype)


def _loss(value: Any, target: Any, reduction: int = 1, *options: Any) -> Any:
    return _reduced(value, reduction) if _alike(value, target) else NotImplemented


def _loss_backward(grad: Any, value: Any, target: Any, reduction: int, *options: Any) -> Any:
    wanted = tuple(value.shape) if reduction == 0 else ()
    if (
        not _alike(value, target)
        or grad.dtype is not value.dtype
        or tuple(grad.shape) != wanted
        or not grad.is_contiguous()
    ):
        return NotImplemented
    return row_major(tuple(value.shape), value.dtype)


def _cross_entropy(value: Any, target: Any, weight: Any = None, reduction: int = 1) -> Any:
    return _reduced(value, reduction) if _alike(value, target, weight) else NotImplemented


def _cross_entropy_backward(grad: Any, value: Any, target: Any, weight: Any = None, reduction: int = 1) -> Any:
    if weight is not None and not _alike(value, weight):
        return NotImplemented
    return _loss_backward(grad, value, target, reduction)


def _cross_entropy_with_logits(
    value: Any, target: Any, weight: Any = None, pos_weight: Any = None, reduction: int = 1
) -> Any:
    return _reduced(value, reduction) if _alike(value, target, weight, pos_weight) else NotImplemented


def _log_sigmoid(value: Any) -> Any:
    if not _alike(value):
        return NotImplemented
    spec = row_major(tuple(value.shape), value.dtype)
    return spec, spec


def _log_sigmoid_backward(grad: Any, value: Any, buffer: Any) -> Any:
    return row_major(tuple(value.shape), value.dtype) if _alike(grad, value) else NotImplemented


RULES: dict[str, Any] = {
    "mse_loss.default": _loss,
    "smooth_l1_loss.default": _loss,
    "huber_loss.default": _loss,
    "mse_loss_backward.default": _loss_backward,
    "smooth_l1_loss_backward.default": _loss_backward,
    "huber_loss_backward.default": _loss_backward,
    "binary_cross_entropy.default": _cross_entropy,
    "binary_cross_entropy_backward.default": _cross_entropy_backward,
    "binary_cross_entropy_with_logits.default": _cross_entropy_with_logits,
    "log_sigmoid_forward.default": _log_sigmoid,
    "log_sigmoid_backward.default": _log_sigmoid_backward,
}
