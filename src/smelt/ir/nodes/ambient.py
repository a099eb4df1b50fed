"""Process state that operators depend on besides their arguments: grad mode, autocast, attention's kernels, devices.

A torch-level graph changes it by nodes, so that whoever runs or traces the graph sees what the program saw:

    with torch.autocast("cpu", dtype=torch.bfloat16):     set_autocast("cpu", True, torch.bfloat16, True)
        y = a @ b                                         matmul = matmul(a, b)
                                                          forget_casts(); set_autocast("cpu", False, …)

A graph leaves this state as it found it; what the program left different is done once the graph has run.
"""

import contextlib
import operator
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx.node import has_side_effect
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from smelt.base.fast_dataclass import dataclass

AUTOCAST_DEVICES = ("cpu", "cuda")

Casts = tuple[tuple[str, bool, torch.dtype], ...]
"""Per device of `AUTOCAST_DEVICES`: whether autocast is on, and the type it casts to."""

_ATTENTION = tuple(
    name
    for name in ("flash", "mem_efficient", "math", "cudnn", "overrideable")
    if hasattr(torch._C, f"_get_{name}_sdp_enabled") and hasattr(torch._C, f"_set_sdp_use_{name}")
)
ATTENTION_GETTERS: tuple[Any, ...] = tuple(getattr(torch._C, f"_get_{name}_sdp_enabled") for name in _ATTENTION)
ATTENTION_SETTERS: tuple[Any, ...] = tuple(getattr(torch._C, f"_set_sdp_use_{name}") for name in _ATTENTION)

AttentionKernels = tuple[tuple[bool, ...], tuple[int, ...]]
"""Which kernels `scaled_dot_product_attention` may choose from, by `ATTENTION_GETTERS`, and in which order it asks."""


_outside = threading.local()  # `kernels`: those of the program, while a graph of this thread has set others


@has_side_effect
def set_attention(enabled: tuple[bool, ...], order: tuple[int, ...]) -> None:
    """The attention that follows chooses among these kernels, until `leave_attention`."""
    if getattr(_outside, "kernels", None) is None:
        _outside.kernels = attention_kernels()
    _choose(enabled, order)


@has_side_effect
def leave_attention() -> None:
    """The kernels that the program had chosen, if a graph has set others: no graph writes them otherwise, as they are
    those of all threads."""
    kernels = getattr(_outside, "kernels", None)
    if kernels is not None:
        _choose(*kernels)
        _outside.kernels = None


def setting_attention(kernels: AttentionKernels | None) -> tuple[Any, tuple[Any, ...]]:
    """The node that makes attention choose among these: its function and its arguments."""
    return (leave_attention, ()) if kernels is None else (set_attention, kernels)


def _choose(enabled: tuple[bool, ...], order: tuple[int, ...]) -> None:
    for choose, on in zip(ATTENTION_SETTERS, enabled, strict=True):
        choose(on)
    if order:
        torch._C._set_sdp_priority_order(list(order))


def attention_kernels() -> AttentionKernels:
    """Which kernels attention chooses among now."""
    order = torch._C._get_sdp_priority_order() if hasattr(torch._C, "_get_sdp_priority_order") else ()
    return tuple(get() for get in ATTENTION_GETTERS), tuple(order)


@has_side_effect
def set_autocast(device: str, enabled: bool, dtype: torch.dtype, cached: bool) -> None:
    """The operators that follow run under this setting of autocast; `cached`: a weight is cast once for all uses."""
    torch.set_autocast_enabled(device, enabled)
    torch.set_autocast_dtype(device, dtype)
    torch.set_autocast_cache_enabled(cached)


@has_side_effect
def forget_casts() -> None:
    """The outermost autocast block was left: weights are cast anew in the next one."""
    torch.clear_autocast_cache()


def autocast_settings() -> tuple[Casts, bool]:
    """What autocast does to operators now."""
    casts = tuple(
        (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in AUTOCAST_DEVICES
    )
    return casts, torch.is_autocast_cache_enabled()


def autocast_nesting() -> int:
    """How many autocast blocks this thread is in."""
    # One call of C: nothing can come between the two.
    _, inside = map(operator.call, (torch.autocast_increment_nesting, torch.autocast_decrement_nesting))
    return int(inside)


def default_devices() -> tuple[torch.device, ...] | None:
    """The default devices that were set, outermost first; None if other torch function modes are active as well."""
    modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    if not all(type(mode) is DeviceContext for mode in modes):
        return None
    return tuple(mode.device for mode in modes)


@contextlib.contextmanager
def without_default_devices() -> Iterator[None]:
    """Factories inside make their tensors on the CPU, or where they say themselves."""
    count = torch._C._len_torch_function_stack()
    modes = [torch._C._pop_torch_function_stack() for _ in range(count)]
    try:
        yield
    finally:
        for mode in reversed(modes):
            torch._C._push_on_torch_function_stack(mode)


@dataclass(frozen=True, slots=True)
class Ambient:
    """That state at one moment."""

    grad: bool
    inference: bool
    casts: Casts
    cached: bool
    nesting: int
    devices: tuple[torch.device, ...]
    attention: AttentionKernels | None = None
    """What captured code has set; None while it is as the program has it."""

    @classmethod
    def now(cls) -> "Ambient":
        grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        return cls(grad, inference, *autocast_settings(), autocast_nesting(), default_devices() or ())

    @property
    def records(self) -> bool:
        """Whether autograd records operators: in inference mode it does not, whatever the grad mode is."""
        return self.grad and not self.inference

    def impose(self) -> None:
        """Give operators this grad mode, autocast and choice of kernels: what graphs change while they run."""
        torch._C._set_grad_enabled(self.grad)
        if self.attention is None:
            leave_attention()
        else:
            set_attention(*self.attention)
        for device, enabled, dtype in self.casts:
            set_autocast(device, enabled, dtype, self.cached)

    def switch_from(self, before: "Ambient") -> None:
        """Make the process that was in the state `before`, and may be on its way here, be in this one.

        Inference mode is for its owner to change.
        """
        self.impose()
        if self.nesting != before.nesting:
            self._set_nesting()
        if len(self.devices) != len(before.devices):
            self._set_devices()

    def _set_nesting(self) -> None:
        for _ in range(self.nesting - autocast_nesting()):
            torch.autocast_increment_nesting()
        for _ in range(autocast_nesting() - self.nesting):
            torch.autocast_decrement_nesting()

    def _set_devices(self) -> None:
        there = default_devices() or ()
        for device in reversed(there[len(self.devices) :]):
            device.__exit__(None, None, None)
        for device in self.devices[len(there) :]:
            device.__enter__()


@contextlib.contextmanager
def attention_restored() -> Iterator[None]:
    """Attention chooses among the same kernels after the block, which may be inside of one that a graph is in."""
    kernels = attention_kernels() if getattr(_outside, "kernels", None) is not None else None
    try:
        yield
    finally:
        function, args = setting_attention(kernels)
        function(*args)


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Whatever graphs change inside is put back, however the block is left."""
    before = Ambient.now()
    with attention_restored():
        try:
            yield
        finally:
            before.impose()
            if before.nesting == 0:
                forget_casts()


@contextlib.contextmanager
def without_autocast() -> Iterator[None]:
    """Operators inside are not cast, unless the block switches autocast on again."""
    casts, cached = autocast_settings()
    try:
        for device, _, dtype in casts:
            set_autocast(device, False, dtype, cached)
        yield
    finally:
        for cast in casts:
            set_autocast(*cast, cached)
