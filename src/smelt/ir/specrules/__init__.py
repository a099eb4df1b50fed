"""Fast answers to "what will this operator yield?": shape, strides and dtype, without asking PyTorch's meta kernels.

    describe(aten.add.Tensor, (f32[4, 8], f32[8]), {}) → f32[4, 8]

Many of PyTorch's own answers are Python, cost up to milliseconds and import sympy at first use. A rule here costs some
ten microseconds and says `NotImplemented` whenever it is not sure; then PyTorch is asked. Every rule is held against real
execution in `tests/ir/test_specrules.py`. Rules describe results on the CPU; `RULES` of element-wise operators,
reductions and copies hold on every device, those of `library` only there.
"""

from collections.abc import Mapping
from typing import Any

import torch

from smelt.ir.specrules import creation, library, pointwise, reduction, views

RULES: dict[Any, Any] = {**pointwise.RULES, **reduction.RULES, **creation.RULES, **views.RULES}
CPU_RULES: dict[Any, Any] = {**RULES, **library.RULES}


def describe(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], device: torch.device) -> Any:
    """A spec (its device not filled in), a tuple of specs, or `NotImplemented` where no rule answers."""
    rule = (CPU_RULES if device.type == "cpu" else RULES).get(func)
    return NotImplemented if rule is None else rule(*args, **kwargs)
