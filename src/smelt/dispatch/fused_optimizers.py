"""The fused updates of `torch.optim` (`fused=True`), made of element-wise operators: they are compiled with the step.

    _fused_adamw_([p], [g], [m], [v], [], [step], lr=…)   →   p, m, v = the formulas of AdamW, written to the three

Narrow dtypes are computed in float32 and rounded once, as PyTorch's kernels do. Under a `GradScaler` gradients are
divided by its scale, and nothing else is written where some are infinite.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

Tensors = Sequence[torch.Tensor]
_NARROW = (torch.float16, torch.bfloat16)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in _NARROW else tensor


def _write(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]], found_inf: torch.Tensor | None) -> None:
    for tensor, new in pairs:
        tensor.copy_(new if found_inf is None else torch.where(found_inf == 1, _wide(tensor), new))


def _gradient(grad: torch.Tensor, maximize: bool, scale: torch.Tensor | None, found_inf: torch.Tensor | None) -> Any:
    """What the update takes for the gradient. Its tensor is unscaled too."""
    wide = _wide(grad)
    if scale is not None:
        wide = wide / scale
        _write([(grad, wide)], found_inf)
    return -wide if maximize else wide


def _correction(beta: float, step: torch.Tensor) -> Any:
    """`1 - beta ** step`, of which float32 would lose four digits by the difference."""
    return -torch.expm1(step * math.log(beta)) if beta > 0 else 1.0


def _adam(
    params: Tensors, grads: Tensors, averages: Tensors, squares: Tensors, maxima: Tensors, steps: Tensors, *, lr: Any,
    beta1: float, beta2: float, weight_decay: float, eps: float, amsgrad: bool, maximize: bool, grad_scale: Any = None,
    found_inf: Any = None, decoupled: bool = False,
) -> None:  # fmt: skip
    for place, counted in enumerate(steps):
        grad = _gradient(grads[place], maximize, grad_scale, found_inf)
        param = _wide(params[place])
        step = counted.to(param.dtype)
        if weight_decay != 0 and decoupled:
            param = param - lr * weight_decay * param
        elif weight_decay != 0:
            grad = grad + param * weight_decay
        average = torch.lerp(_wide(averages[place]), grad, 1 - beta1)
        square = _wide(squares[place]) * beta2 + grad * grad * (1 - beta2)
        largest = torch.maximum(_wide(maxima[place]), square) if amsgrad else square
        bound = largest.sqrt() / _correction(beta2, step) ** 0.5 + eps
        param = param - lr / _correction(beta1, step) * average / bound
        written = [(params[place], param), (averages[place], average), (squares[place], square)]
        _write([*written, (maxima[place], largest)] if amsgrad else written, found_inf)


def _adamw(*lists: Tensors, **options: Any) -> None:
    _adam(*lists, **options, decoupled=True)


def _adagrad(
    params: Tensors, grads: Tensors, sums: Tensors, steps: Tensors, *, lr: Any, lr_decay: float, weight_decay: float,
    eps: float, maximize: bool, grad_scale: Any = None, found_inf: Any = None,
) -> None:  # fmt: skip
    for place, counted in enumerate(steps):
        grad = _gradient(grads[place], maximize, grad_scale, found_inf)
        param = _wide(params[place])
        step = counted.to(param.dtype)
        if weight_decay != 0:
            grad = grad + param * weight_decay
        total = _wide(sums[place]) + grad * grad
        param = param - lr / (1 + (step - 1) * lr_decay) * grad / (total.sqrt() + eps)
        _write([(params[place], param), (sums[place], total)], found_inf)


def _sgd(
    params: Tensors, grads: Tensors, buffers: Tensors, *, weight_decay: float, momentum: float, lr: Any,
    dampening: float, nesterov: bool, maximize: bool, is_first_step: bool, grad_scale: Any = None,
    found_inf: Any = None,
) -> None:  # fmt: skip
    for place, tensor in enumerate(params):
        grad = _gradient(grads[place], maximize, grad_scale, found_inf)
        param = _wide(tensor)
        if weight_decay != 0:
            grad = grad + param * weight_decay
        if momentum != 0:
            buffer = grad if is_first_step else _wide(buffers[place]) * momentum + grad * (1 - dampening)
            _write([(buffers[place], buffer)], found_inf)
            grad = grad + buffer * momentum if nesterov else buffer
        _write([(tensor, param - lr * grad)], found_inf)


_UPDATES: dict[str, Callable[..., None]] = {
    "_fused_adam_": _adam,
    "_fused_adamw_": _adamw,
    "_fused_adagrad_": _adagrad,
    "_fused_sgd_": _sgd,
}

IN_PLACE: dict[Any, Callable[..., None]] = {
    getattr(getattr(torch.ops.aten, name), overload): update
    for name, update in _UPDATES.items()
    for overload in getattr(torch.ops.aten, name).overloads()
}
"""By PyTorch's operator."""
