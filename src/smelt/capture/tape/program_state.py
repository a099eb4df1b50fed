"""The state that the program is in, for what it calls while it is captured: none of capture's modes.

with as_the_program_has_it(tape.ambient): answer = cached_function()
"""

import contextlib
from collections.abc import Iterator

import torch
from torch.utils._python_dispatch import _disable_current_modes

from smelt.ir.nodes.ambient import Ambient


@contextlib.contextmanager
def as_the_program_has_it(ambient: Ambient) -> Iterator[None]:
    """The state that the program is in, and none of capture's: what is called inside is the program's to keep."""
    device = ambient.devices[-1] if ambient.devices else contextlib.nullcontext()
    with _disable_current_modes(), torch._C._EnableTorchFunction(), torch._C._InferenceMode(ambient.inference), device:
        torch._C._set_grad_enabled(ambient.grad)
        yield
