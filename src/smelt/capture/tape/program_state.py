"""The state that the program is in, for what it calls while it is captured: none of capture's modes.

with as_the_program_has_it(tape.ambient): answer = cached_function()
"""

import contextlib
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from smelt.capture.model.breaks import Unsupported
from smelt.capture.model.policy import is_library
from smelt.capture.model.values import Constant
from smelt.ir.nodes.ambient import Ambient

_OPERATORS = (torch._ops._Ops, torch._ops._OpNamespace)


@contextlib.contextmanager
def as_the_program_has_it(ambient: Ambient) -> Iterator[None]:
    """The state that the program is in, and none of capture's: what is called inside is the program's to keep."""
    device = ambient.devices[-1] if ambient.devices else contextlib.nullcontext()
    with _disable_current_modes(), torch._C._EnableTorchFunction(), torch._C._InferenceMode(ambient.inference), device:
        torch._C._set_grad_enabled(ambient.grad)
        yield


def setting_of_backend(tree: Any, setting: Any, name: str) -> Constant | None:
    """What a setting like `torch.backends.mkldnn.enabled` is, for which PyTorch asks a C function; the guards of `tree`
    ask it again at each call. None if it is something else. To set one breaks the graph."""
    if type(setting) is not torch.backends.ContextProp or not isinstance(setting.getter, types.BuiltinFunctionType):
        return None
    if tree.hides_backend_settings:
        raise Unsupported("B002", f"torch.backends.…{name}, inside of torch.backends.cudnn.flags,")
    answer = setting.getter()
    if type(answer) not in (bool, int, str):
        return None
    tree.process(f"torch.backends: {name}", setting.getter, answer)
    tree.why_not_persist = "a setting of torch.backends"
    return Constant(answer)


def names_operators(module: Any) -> bool:
    """Whether it is `torch.ops` or one of its parts, which look up operators, and nothing that a program may change."""
    return type(module) in _OPERATORS


def let_library_make(ambient: Ambient, module: types.ModuleType, name: str) -> None:
    """Let a module of a library that loads its parts on demand (`torch.onnx`, `torch.ops`) do so now, as the program
    would."""
    hook: Callable[[str], Any] | None = module.__dict__.get("__getattr__")
    if names_operators(module):
        hook = functools.partial(getattr, module)
    elif not isinstance(hook, types.FunctionType) or not is_library(hook.__code__) or "__path__" not in module.__dict__:
        return
    with contextlib.suppress(Exception), as_the_program_has_it(ambient):
        hook(name)
