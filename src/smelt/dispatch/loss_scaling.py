"""What `torch.amp.GradScaler` asks a device for, made of element-wise operators: nothing is copied to the host.

    unscale_([g, h], found, scale)     →   g *= scale; h *= scale; found = 1 if anything in them is not finite
    update_scale_(scale, steps, found, growth, backoff, interval)     →   the next scale
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch


def unscale(grads: Sequence[torch.Tensor], found_inf: torch.Tensor, scale: torch.Tensor) -> None:
    """`_amp_foreach_non_finite_check_and_unscale_`."""
    for grad in grads:
        found_inf.copy_(torch.maximum(found_inf, grad.isfinite().all().logical_not().to(found_inf.dtype)))
        wide = grad.to(torch.promote_types(grad.dtype, scale.dtype))  # a scale may be none of a narrow dtype's numbers
        grad.copy_(wide * scale)


def update_scale(
    scale: torch.Tensor, steps: torch.Tensor, found_inf: torch.Tensor, growth: float, backoff: float, interval: int
) -> torch.Tensor:
    """`_amp_update_scale_`: smaller after something infinite, larger after so many steps without."""
    is_bad = found_inf > 0
    taken = steps + 1
    is_due = (taken == interval) & ~is_bad
    grown = scale * growth
    larger = torch.where(is_due & grown.isfinite(), grown, scale)
    scale.copy_(torch.where(is_bad, scale * backoff, larger))
    steps.copy_(torch.where(is_bad | is_due, torch.zeros_like(steps), taken))
    return scale


IN_PLACE: dict[Any, Callable[..., Any]] = {
    torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default: unscale,
    torch.ops.aten._amp_update_scale_.default: update_scale,
}
"""By PyTorch's operator."""
