"""What PyTorch itself defines, recognized by whose code it is: names prove nothing, `functools.wraps` copies them.

own_name(torch.relu)                      →  "torch.relu"
own_name(functools.wraps(F.relu)(mine))   →  ""               though it says it is torch.nn.functional.relu
method("add")                             →  the method of C, whatever the program put into `torch.Tensor`
"""

import os
import types
from typing import Any

import torch
from torch.overrides import _get_current_function_mode

TORCH = os.path.dirname(torch.__file__) + os.sep
BASE = torch._C.TensorBase  # a class of C, which nobody can change; `torch.Tensor` is one of Python

METHODS_OF_C = (types.MethodDescriptorType, types.WrapperDescriptorType)
_OF_C = (
    types.BuiltinFunctionType,
    *METHODS_OF_C,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.ClassMethodDescriptorType,
)
_FUNCTIONS: Any = torch._C._VariableFunctions
_ABSENT = object()


def _inner_codes(function: Any) -> list[types.CodeType]:
    return [each for each in function.__code__.co_consts if isinstance(each, types.CodeType)]


# Functions of PyTorch's that make others of its own, which bear the names of what they were made of.
_FACTORIES = frozenset(
    code
    for module, name in (
        ("_jit_internal", "boolean_dispatch"),
        ("_tensor", "_handle_torch_function_and_wrap_type_error_to_not_implemented"),
    )
    for factory in (getattr(getattr(torch, module, None), name, None),)
    if isinstance(factory, types.FunctionType)
    for code in _inner_codes(factory)
)


def own_name(function: Any) -> str:
    """`torch.nn.functional.relu`, `torch.relu`: the name of a function of PyTorch's own; "" for anything else."""
    kind = type(function)
    if kind is types.FunctionType:
        return f"{function.__module__}.{function.__name__}" if _is_own_function(function) else ""
    if kind is types.BuiltinFunctionType:
        return f"{function.__module__}.{function.__name__}" if _is_own_builtin(function) else ""
    return ""


def _is_own_function(function: types.FunctionType) -> bool:
    code = function.__code__
    if not code.co_filename.startswith(TORCH):
        return False
    if code.co_name == function.__name__:
        return True
    # Of a decorator, which anyone may use: what it was given is in its closure.
    wrapped = [held for held in map(_content, function.__closure__ or ()) if callable(held) and held is not function]
    return not wrapped or (code in _FACTORIES and all(map(_is_own_callable, wrapped)))


def _is_own_callable(held: Any) -> bool:
    return _is_own_function(held) if isinstance(held, types.FunctionType) else type(held) in _OF_C


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _is_own_builtin(function: Any) -> bool:
    owner = function.__self__
    if owner is None:
        return getattr(_FUNCTIONS, function.__name__, None) is function
    if type(owner) is types.ModuleType:
        return owner.__name__.partition(".")[0] == "torch"
    made_by_binding = type(owner).__module__ == "pybind11_builtins"
    return made_by_binding and str(function.__module__).partition(".")[0] == "torch"


def is_found(operator: Any) -> bool:
    """Whether the name of an operator, or of a packet of them, leads to it: PyTorch itself finds it so."""
    path = [str(getattr(operator, "_qualified_op_name", None) or operator._schema.name).replace("::", ".")]
    if isinstance(operator, torch._ops.OpOverload):
        path.append(operator._overloadname)
    value: Any = torch.ops
    for name in ".".join(path).split("."):
        value = getattr(value, name, None)
    return value is operator


def is_own(attribute: Any) -> bool:
    """Whether what a class of tensors holds under a name, found without running descriptors, is PyTorch's own."""
    if isinstance(attribute, types.FunctionType):
        return _is_own_function(attribute)
    if type(attribute) is property:
        return all(each is None or is_own(each) for each in (attribute.fget, attribute.fset, attribute.fdel))
    if type(attribute) in (classmethod, staticmethod):
        return is_own(attribute.__func__)
    return type(attribute) in _OF_C or not (callable(attribute) or hasattr(type(attribute), "__get__"))


def held_by(kind: type, name: str) -> Any:
    """What a class or its bases hold under a name; None if nothing. No descriptor is run."""
    for base in kind.__mro__:
        attribute = base.__dict__.get(name, _ABSENT)
        if attribute is not _ABSENT:
            return attribute
    return None


# What smelt itself asks tensors for, whatever it does with them: where the program has replaced any of it, nothing is
# compiled. Methods that compute are not here: smelt calls those of `BASE`.
ASKED_OF_TENSORS = (
    "__class__", "__getattribute__", "_backward_hooks", "_base", "_is_view", "_is_zerotensor", "_use_count", "_version",
    "as_strided", "data", "data_ptr", "device", "dim", "dtype", "element_size", "grad", "grad_fn", "has_names",
    "is_conj", "is_contiguous", "is_inference", "is_leaf", "is_neg", "is_nested", "is_quantized", "is_set_to", "layout",
    "ndim", "numel", "output_nr", "permute", "register_hook", "requires_grad", "requires_grad_", "retain_grad",
    "retains_grad", "set_", "shape", "size", "storage_offset", "stride", "untyped_storage",
)  # fmt: skip
ASKED_OF_TORCH = (
    "get_autocast_dtype", "get_default_dtype", "is_anomaly_enabled", "is_autocast_cache_enabled", "is_autocast_enabled",
    "is_grad_enabled", "is_inference_mode_enabled", "no_grad", "set_anomaly_enabled", "set_autocast_cache_enabled",
    "set_autocast_dtype", "set_autocast_enabled", "set_grad_enabled",
)  # fmt: skip


def replaced_underneath() -> str | None:
    """What of all that smelt itself asks of PyTorch the program has replaced; None if nothing."""
    for name in ASKED_OF_TENSORS:
        if not is_own(held_by(torch.Tensor, name)):
            return f"Tensor.{name}"
    for name in ASKED_OF_TORCH:
        function = torch.__dict__.get(name)
        if isinstance(function, types.FunctionType) and not _is_own_function(function):
            return f"torch.{name}"
    return None


def _unwrapped(function: Any) -> Any:
    """What a wrapper of the program's says it wraps, if that is PyTorch's own; else the function itself."""
    inner = function
    while isinstance(inner, types.FunctionType) and not _is_own_function(inner):
        inner = inner.__dict__.get("__wrapped__")
    return function if inner is None else inner


class _Originals(types.ModuleType):
    """A module of PyTorch's with the functions it came with, for smelt's own use; found when first asked for."""

    def __init__(self, module: types.ModuleType, *places: Any) -> None:
        super().__init__(module.__name__)
        self._module, self._places = module, places

    def __getattr__(self, name: str) -> Any:
        for place in self._places:
            value = place.get(name) if isinstance(place, dict) else getattr(place, name, None)
            if isinstance(value, types.FunctionType | types.BuiltinFunctionType):
                self.__dict__[name] = value = _unwrapped(value)
                return value
        self.__dict__[name] = value = getattr(self._module, name)
        return value


# As they are when smelt is imported: wrappers that say what they wrap are seen through.
functional: Any = _Originals(torch.nn.functional, dict(vars(torch.nn.functional)))
# Operators are those of a class of C, which nobody can change.
pristine: Any = _Originals(torch, dict(vars(torch.functional)), _FUNCTIONS)


_OF_TENSORS = dict(vars(torch.Tensor))
_PLACES: list[tuple[Any, Any]] = [
    (torch.Tensor, BASE),
    (torch.nn.functional, functional),
    (torch.functional, pristine),
]
_PLACES += [
    (module, _Originals(module, dict(vars(module))))
    for name in ("_nn", "_linalg", "_fft", "_special")
    if isinstance(module := getattr(torch._C, name, None), types.ModuleType)
]


def originals_of_tensors() -> dict[str, Any]:
    """What `torch.Tensor` held under the names that the program has put something else under."""
    originals = {}
    for name, held in vars(torch.Tensor).items():
        if not is_own(held):
            originals[name] = getattr(BASE, name, None) if name not in _OF_TENSORS else _unwrapped(_OF_TENSORS[name])
    return {name: original for name, original in originals.items() if original is not None and is_own(original)}


def meant(function: Any) -> Any:
    """The function that a torch function mode receives. Methods of C say what `torch.Tensor` has under their names,
    functions what their module has, which may be a wrapper of the program's: then the original itself."""
    if not isinstance(function, types.FunctionType) or _is_own_function(function):
        return function
    for place, originals in _PLACES:
        for name, held in vars(place).items():
            if held is function and hasattr(originals, name) and is_own(getattr(originals, name)):
                return getattr(originals, name)
    return function


def method(name: str) -> Any:
    """The method of tensors that a `call_method` node means; None if it is no method of C."""
    return getattr(BASE, name, None)


def call_method(target: Any, receiver: Any, *args: Any, **kwargs: Any) -> Any:
    """`receiver.target(…)`, which for a tensor is PyTorch's own method, whatever the program put in its place. A method
    of C may also be given itself."""
    name = target if isinstance(target, str) else target.__name__
    original = None
    if isinstance(receiver, torch.Tensor) and not is_own(held_by(type(receiver), name)):
        original = method(name)
    if original is None and isinstance(target, str):
        return getattr(receiver, name)(*args, **kwargs)
    if original is None:
        return target(receiver, *args, **kwargs)
    mode: Any = _get_current_function_mode()  # type: ignore[no-untyped-call]  # which would receive what `torch.Tensor` has under the method's name
    with torch._C.DisableTorchFunction():
        if mode is None:
            return original(receiver, *args, **kwargs)
        return mode.__torch_function__(original, (), (receiver, *args), kwargs)
