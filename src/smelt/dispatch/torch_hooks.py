"""Makes PyTorch's compilers, fake tensors and `nn.DataParallel` work with our device, or refuse it clearly.

    torch.compile(model)(x)            x on sim: SM070, which names smelt.compile
    torch.export.export(model, (x,))   operators of ATen, on fake tensors of the device
    nn.DataParallel(model)(x)          the model itself, on the one device that there is
"""

import functools
import sys
from typing import Any

import torch
from torch import nn
from torch._dispatch.python import suspend_functionalization
from torch._subclasses.meta_utils import MetaConverter
from torch.utils._pytree import tree_map

from smelt.base.coexist import leave_alone
from smelt.base.errors import SmeltError
from smelt.dispatch.module import DeviceModule

_REFUSED_BY_NAME = "lazy"
"""Fake tensors refuse devices of this name: PyTorch once had tensors of its own there."""


def answer_torch(name: str, module: DeviceModule) -> None:
    """For the device of this name, whose module is `torch.<name>`."""
    _refuse_codegen(name, module)
    _run_on_one_device(name)
    _leave_untraced()
    if name == _REFUSED_BY_NAME:
        _allow_fake_tensors(name)


class NoCodegen:
    """Replaces the code generators that PyTorch's compiler looks up for a device, and refuses every request."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _refuse(self) -> SmeltError:
        hint = "smelt.compile compiles for a chip, and lazy tensors are compiled without a call; backend='eager' works"
        return SmeltError("SM070", f"torch.compile generates no code for the device {self._name!r}", hint=hint)

    @property
    def supports_caching(self) -> bool:  # the first that is asked
        raise self._refuse()

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise self._refuse()


def _refuse_codegen(name: str, module: Any) -> None:
    for generator in ("Scheduling", "PythonWrapperCodegen", "CppWrapperCodegen", "WrapperFxCodegen"):
        setattr(module, generator, NoCodegen(name))


def _run_on_one_device(name: str) -> None:
    """Have `nn.DataParallel` give the whole batch to the one device: PyTorch's own way needs a build with CUDA."""
    original: Any = nn.DataParallel.scatter

    @functools.wraps(original)
    def scatter(self: Any, inputs: Any, kwargs: Any, device_ids: Any) -> Any:
        device = self.src_device_obj
        if device.type != name:
            return original(self, inputs, kwargs, device_ids)
        if len(device_ids) > 1:
            raise SmeltError("SM070", f"{name!r} is one device, and not {len(device_ids)}")
        moved = tree_map(lambda each: each.to(device) if isinstance(each, torch.Tensor) else each, (inputs, kwargs))
        return (moved[0],), (moved[1] or {},)

    nn.DataParallel.scatter = scatter  # type: ignore[method-assign]


def _leave_untraced() -> None:
    """Have `torch.compile` not trace the code that answers operators, which its frame hook sees between two graphs."""
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith(("smelt.dispatch.", "smelt.lazy.", "smelt.chips.")):
            for value in vars(module).values():
                if getattr(value, "__module__", None) == module_name:
                    leave_alone(value)


def _allow_fake_tensors(name: str) -> None:
    """Make fake tensors of tensors on the device, as of those on any other."""
    original: Any = MetaConverter.__call__

    @functools.wraps(original)
    def convert(self: Any, t: Any, shape_env: Any = None, **options: Any) -> Any:
        if not isinstance(t, torch.Tensor) or t.device.type != name:
            return original(self, t, shape_env, **options)
        self.hit += 1
        source, callback = options.get("source"), options.get("callback") or self._identity_callable
        described = self.describer.describe_tensor(t, trace=source is not None and options.get("trace", True))
        with suspend_functionalization():
            fake = self.meta_tensor(described, shape_env, callback, source, options.get("symbolic_context"))
        if type(t) is nn.Parameter:
            fake._is_param = True
        if getattr(t, "_is_buffer", False):
            fake._is_buffer, fake.persistent = True, getattr(t, "persistent", True)
        return fake

    MetaConverter.__call__ = convert  # type: ignore[method-assign]
