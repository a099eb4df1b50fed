"""Specs of losses. Reduced ones return a scalar; others are answered for row-major inputs of one shape.

aten.mse_loss(f32[4, 8], f32[4, 8], 1)                          → f32[]
aten.mse_loss_backward(f32[], f32[4, 8]:(1, 4), f32[4, 8], 1)   → f32[4, 8]

Some are contiguous whatever they are given, of which PyTorch's meta kernels say that they keep the order of dimensions.
"""

from dataclasses import replace
from typing import Any

from smelt.ir.tensorspec import UnplacedSpec
from smelt.meta.rules.promotion import FLOATS
from smelt.meta.rules.reduction import row_major
from smelt.meta.rules.strides import like_stride


def _fit(first: Any, *others: Any) -> bool:
    """Tensors of one float dtype and one shape, whatever their layouts; None is no tensor."""
    return first.dtype in FLOATS and all(
        one is None or (one.dtype is first.dtype and one.shape == first.shape) for one in others
    )


def _alike(*tensors: Any) -> bool:
    """Row-major tensors of one float dtype and one shape; None is no tensor."""
    return _fit(*tensors) and all(one is None or one.is_contiguous() for one in tensors)


def _reduced(value: Any, reduction: int) -> Any:
    return row_major(tuple(value.shape) if reduction == 0 else (), value.dtype)


def _loss(value: Any, target: Any, reduction: int = 1, *options: Any) -> Any:
    return _reduced(value, reduction) if _alike(value, target) else NotImplemented


def _loss_backward(grad: Any, value: Any, target: Any, reduction: int, *options: Any) -> Any:
    """Contiguous, whatever the layouts of value and target."""
    wanted = tuple(value.shape) if reduction == 0 else ()
    if not _fit(value, target) or grad.dtype is not value.dtype or tuple(grad.shape) != wanted:
        return NotImplemented
    return row_major(tuple(value.shape), value.dtype)


def _cross_entropy(value: Any, target: Any, weight: Any = None, reduction: int = 1) -> Any:
    return _reduced(value, reduction) if _alike(value, target, weight) else NotImplemented


def _cross_entropy_backward(grad: Any, value: Any, target: Any, weight: Any = None, reduction: int = 1) -> Any:
    if not _alike(value, target, weight) or not grad.is_contiguous():
        return NotImplemented
    found = _loss_backward(grad, value, target, reduction)
    return found if found is NotImplemented else replace(found, stride=like_stride(found.shape, value.stride()))


def _cross_entropy_with_logits(
    value: Any, target: Any, weight: Any = None, pos_weight: Any = None, reduction: int = 1
) -> Any:
    return _reduced(value, reduction) if _alike(value, target, weight, pos_weight) else NotImplemented


def _log_sigmoid(value: Any) -> Any:
    """Contiguous, whatever the layout of the value."""
    if not _fit(value):
        return NotImplemented
    spec = row_major(tuple(value.shape), value.dtype)
    return spec, spec


def _log_sigmoid_backward(grad: Any, value: Any, buffer: Any) -> Any:
    if not _fit(grad, value):
        return NotImplemented
    shape = tuple(grad.shape)
    return UnplacedSpec(shape, like_stride(shape, grad.stride()), grad.dtype)


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
