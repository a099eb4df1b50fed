"""Claims PyTorch's PrivateUse1 device: gives it a name and an owner that answers its operators.

    device = claim("lazy", owner)          torch.device("lazy") exists from now on, and `torch.lazy` is its module

A process has one such device, and it cannot be given back: a second name is refused.
"""

import warnings
from typing import Any

import torch
from torch.utils import backend_registration

from smelt import _native
from smelt.base.errors import SmeltError
from smelt.device.host_library import HOST
from smelt.dispatch.autocast import register_autocast
from smelt.dispatch.module import DeviceModule
from smelt.dispatch.operators import Owner, register

_claimed: dict[str, Any] = {}

UNNAMED = "privateuseone"
"""What PyTorch calls the device before it has a name."""

_NO_BACKWARD_ON_GPU = (
    "tensors on 'cuda' have no backward in this process: PyTorch takes the device {name!r} for its accelerator, and "
    "this build cannot be told otherwise. Train on 'cuda' in another process"
)


def why_not() -> str | None:
    """Why this PyTorch cannot have a device written in Python; None if it can."""
    acc = getattr(torch._C, "_acc", None)
    if acc is None or not hasattr(acc, "create_empty_tensor"):
        return f"PyTorch {torch.__version__} has no devices that are written in Python"
    if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
        return f"PyTorch {torch.__version__} cannot register a device that is written in Python"
    return None


def reserve() -> None:
    """Announce the device before the first backward. Autograd's engine starts one thread per device then, so a device
    that comes later has no backward. Forked children of a process with such threads cannot run a backward, so only a
    program that needs the device reserves it."""
    if why_not() is None and torch._C._get_privateuse1_backend_name() == UNNAMED:
        _held.append(_device_guard()())
        torch._C._acc.register_python_privateuseone_device_guard(_held[-1])


_held: list[Any] = []


def _device_guard() -> type[Any]:
    """The guard class that PyTorch asks for its device type several times per autograd node, also when a hook has
    raised. A function in Python would cost half a microsecond each time, and fail while an exception is set."""
    answer = _native.DeviceTypeAnswer(torch._C._autograd.DeviceType.PrivateUse1)
    guard: Any = torch._C._acc.DeviceGuard
    return type("DeviceGuard", (guard,), {"type_": answer})


def claim(name: str, owner: Owner, module: DeviceModule, like: str = HOST.type) -> torch.device:
    """Name the device, and let `owner` answer its operators; `module` becomes `torch.<name>`. Autocast casts there what
    it casts on devices of the kind `like`.

    PyTorch makes a named device the accelerator of the process. Its engine then has no streams for GPU tensors, which
    have no backward. If there is a GPU, the device therefore stops being the accelerator. An `UNNAMED` device never
    becomes it, and programs have no tensors there.
    """
    if name not in _claimed:
        _refuse(name)
        reserve()
        if name != UNNAMED:
            guard = _held[-1]
            backend_registration._setup_privateuseone_for_python_backend(name, module, device_guard=guard)
            if torch.cuda.is_available() and not _native.leave_accelerator():
                warnings.warn(_NO_BACKWARD_ON_GPU.format(name=name), stacklevel=2)
        _claimed[name] = (owner, register(owner), register_autocast(name, like))
    return torch.device(name, 0)  # without a number autograd's engine does not know it


def _refuse(name: str) -> None:
    reason = why_not()
    taken = torch._C._get_privateuse1_backend_name()
    if reason is None and (taken != UNNAMED or _claimed):
        what = f"it is {taken!r} already" if taken != UNNAMED else "blocks of lazy tensors on a GPU have it already"
        reason = f"this process has one device of that kind, and {what}"
    if reason is not None:
        raise SmeltError("SM070", f"the device {name!r} cannot be made: {reason}")
