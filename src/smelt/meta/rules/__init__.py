"""Fast answers to "what will this operator return?": shape, strides and dtype, without asking PyTorch's meta kernels.

    describe(aten.add.Tensor, (f32[4, 8], f32[8]), {}) → f32[4, 8]

Many of PyTorch's own answers are Python, cost up to milliseconds and import sympy at first use. A rule here costs some
ten microseconds and says `NotImplemented` whenever it is not sure; then PyTorch is asked. Every rule is held against
real execution in `tests/meta/test_rules.py`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

_answer: Callable[..., Any] | None = None


def describe(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], device: torch.device) -> Any:
    """A spec without a device, a tuple of them, or `NotImplemented` where no rule answers on `device`.

    Raises what PyTorch would where its own meta kernels let a wrong call pass.
    """
    global _answer
    if _answer is None:  # looking up some 300 operators takes longer than `import smelt` may
        from smelt.meta.rules.lookup import answer

        _answer = answer
    return _answer(func, args, kwargs, device)
