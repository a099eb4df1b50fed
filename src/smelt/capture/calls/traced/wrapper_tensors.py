"""Tensors of a class with `__torch_dispatch__` that the captured code makes itself: the class's code is followed.

    q = Scaled(values, scale)        _make_wrapper_subclass  →  Wrapper(Scaled), whose attributes are the program's
    F.linear(x, q)                   PyTorch is asked with stand-ins, and for each operator that reaches the class
                                     its `__torch_dispatch__` is followed: what that calls are nodes of the graph

A stand-in has the sizes, strides, dtype and device that the program gave, and no data. PyTorch's own code decides, as
in eager, which operators a function consists of. A class is called below autograd, which records the outer call:
where it would, the call is left to Python.
"""

import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from smelt.base.torch_internals import internal
from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.model.breaks import Unsupported
from smelt.capture.model.bytecode import BINARY_METHODS
from smelt.capture.model.policy import is_library
from smelt.capture.model.reachable_values import reachable
from smelt.capture.model.static import ABSENT, is_a, static_lookup
from smelt.capture.model.values import (
    OPERATORS,
    STRING_METHODS,
    Constant,
    Mapping,
    Object,
    Sequence,
    Tensor,
    Value,
    Wrapper,
    describe,
)
from smelt.capture.polyfills.by_name import ClassesUnasked

_LAID_OUT = frozenset(
    {"size", "strides", "storage_offset", "memory_format", "dtype", "layout", "device", "pin_memory", "requires_grad"}
)
_REFUSED = Unsupported("B006", "a wrapper with policies of its own")
_METADATA = frozenset(
    {"shape", "dtype", "device", "layout", "ndim", "requires_grad", "is_leaf", "itemsize", "grad_fn", "grad"}
    | {"is_cuda", "is_cpu", "is_meta", "is_sparse", "is_quantized", "is_nested", "is_mkldnn", "is_mps", "is_xpu"}
)
_TRANSPOSED = ("T", "mT", "H", "mH")
_MEASURES = frozenset(
    {"size", "stride", "dim", "numel", "nelement", "ndimension", "storage_offset", "element_size", "is_contiguous"}
    | {"is_floating_point", "is_complex", "is_signed", "get_device", "is_inference"}
)


_OPERATORS = (OPERATORS - STRING_METHODS) | {"__matmul__", "__rmatmul__"}
_OPERATORS |= {f"__i{name}__" for name in BINARY_METHODS.values()}


class StandIn(torch.Tensor):
    """In calls of PyTorch: what its metadata says of a value of the captured code."""

    value: Value
    answers: "_Answers | None"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        stand_in = next(each for each in _stand_ins((*args, *(kwargs or {}).values())) if each.answers is not None)
        assert stand_in.answers is not None
        return stand_in.answers.answer(func, args, kwargs or {})


def make_wrapper(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`torch.Tensor._make_wrapper_subclass(kind, size, …)`."""
    if not args or not isinstance(args[0], Object) or not is_a(args[0].value, type) or not kwargs.keys() <= _LAID_OUT:
        raise _REFUSED
    if interp.externals.explores:
        raise Unsupported("B006", "a wrapper in an exported function")
    kind = interp.externals.guard_identity(args[0])
    _dispatch_of(interp, kind)
    _functions_of(interp, kind)
    if interp.tree.class_attribute(kind, "__del__") is not ABSENT:
        raise Unsupported("B006", kind.__qualname__)
    sizes = [interp.plain(value) for value in args[1:]]
    named = {name: interp.plain(value) for name, value in kwargs.items()}
    interp.tree.why_not_persist = "wrappers of tensors"
    outer = torch.Tensor._make_wrapper_subclass(StandIn, *sizes, **named)
    if outer.requires_grad or outer.layout is not torch.strided:
        raise Unsupported("B006", kind.__qualname__)
    return _wrapper(kind, outer)


def _wrapper(kind: type, outer: Any) -> Wrapper:
    wrapper = Wrapper(kind, outer=outer)
    outer.value, outer.answers = wrapper, None
    return wrapper


def _dispatch_of(interp: Interpreter, kind: type) -> types.FunctionType:
    """The class's `__torch_dispatch__`; a class that is asked for functions, too, is left to Python."""
    member = interp.tree.class_attribute(kind, "__torch_dispatch__")
    if interp.tree.of_class(kind, _has_own_operators):
        raise Unsupported("B006", f"{kind.__qualname__}, which has operators of its own,")
    if not isinstance(member, classmethod) or not isinstance(member.__func__, types.FunctionType):
        raise Unsupported("B006", kind.__qualname__)
    return member.__func__


def _functions_of(interp: Interpreter, kind: type) -> types.FunctionType | None:
    """The class's `__torch_function__`; None if it is not asked."""
    member = interp.tree.class_attribute(kind, "__torch_function__")
    function = getattr(member, "__func__", member)
    if function is internal("_C._disabled_torch_function_impl"):
        return None
    is_own = isinstance(member, classmethod) and isinstance(function, types.FunctionType)
    if not is_own or is_library(function.__code__):
        raise Unsupported("B006", kind.__qualname__)
    if interp.asks_classes is None:
        interp.rely_on_asked_classes(kind)
    return None if interp.asks_classes is False else function


def _asked(interp: Interpreter, kind: type, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """What the class's `__torch_function__` makes of a call; None if it is not asked."""
    own, before = _functions_of(interp, kind), interp.asks_classes
    if own is None:
        return None
    fixed = interp.externals.fixed
    leading: list[Value] = [fixed(kind), fixed(function), Sequence(tuple, [fixed(kind)]), Sequence(tuple, list(args))]
    interp.asks_classes = True
    try:
        answer = interp.now(interp.call(fixed(own), [*leading, Mapping(dict(kwargs))]))
    finally:
        interp.asks_classes = before
    if isinstance(answer, Constant) and answer.value is NotImplemented:
        raise Unsupported("B006", f"{kind.__qualname__}, which declines {function},")
    return answer


def _without_functions(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`torch._C.DisableTorchFunctionSubclass()`, inside of a `__torch_function__` that is followed: where such a call
    breaks, Python runs all of it, and never a block that was entered here."""
    if interp.asks_classes is None:
        raise Unsupported("B002", "torch._C.DisableTorchFunctionSubclass")
    return interp.call(interp.externals.fixed(ClassesUnasked), args, kwargs)


def ask_classes_from_now(interp: Interpreter, enabled: bool) -> Value:
    before, interp.asks_classes = interp.asks_classes, enabled
    return Constant(before)


def attribute_by_getter(interp: Interpreter, getter: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`torch.Tensor.shape.__get__(tensor)`, as a `__torch_function__` is asked for it."""
    read: Any = getter.__self__
    (value, *_) = args
    if getter.__name__ != "__get__" or not isinstance(value, Wrapper) or not is_a(read, types.GetSetDescriptorType):
        raise Unsupported("B002", f"{getter.__qualname__}")
    return attribute_of_wrapper(interp, value, read.__name__)


def _has_own_operators(kind: type) -> bool:
    return any(static_lookup(kind, name) is not static_lookup(torch.Tensor, name) for name in _OPERATORS)


def attribute_of_wrapper(interp: Interpreter, value: Wrapper, name: str) -> Value:
    """An attribute that PyTorch has for tensors."""
    _dispatch_of(interp, value.kind)
    own = _asked(interp, value.kind, getattr(torch.Tensor, name).__get__, [value], {})
    if own is not None:
        return own
    if name in _TRANSPOSED:
        return interp.tensor_call("call_function", getattr, [value, Constant(name)])
    if name not in _METADATA:
        raise Unsupported("B006", f"{value.kind.__qualname__}.{name}")
    return interp.wrap_plain(getattr(value.outer, name))


def wrapper_call(
    interp: Interpreter, function: Callable[..., Any], args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """A call of PyTorch with such tensors among its arguments."""
    kind, *others = {each.kind for each in reachable((*args, *kwargs.values())).values() if isinstance(each, Wrapper)}
    if others:
        raise Unsupported("B006", "a call with wrappers of several classes")
    own = _asked(interp, kind, function, args, kwargs)
    if own is not None:
        return own
    if getattr(function, "__name__", "") in _MEASURES and isinstance(args[0], Wrapper) and len(args) < 3:
        _dispatch_of(interp, args[0].kind)
        return interp.wrap_plain(function(args[0].outer, *map(interp.plain, args[1:])))
    answers = _Answers(interp)
    with answers.asked():
        stand_ins = [answers.stand_in(value) for value in args]
        named = {name: answers.stand_in(value) for name, value in kwargs.items()}
        if interp.tape.ambient.records and any(each.requires_grad for each in answers.plain):
            raise Unsupported("B006", "a wrapper, in a call that autograd records,")
        try:
            result = function(*stand_ins, **named)
        except Exception as error:
            if answers.stopped is not None:
                raise answers.stopped from None
            raise Unsupported("B011", f"{function}: {type(error).__name__}: {error}") from error
    return answers.value(result)


class _Answers:
    """The stand-ins of one call, and what answers the operators that PyTorch makes of it."""

    def __init__(self, interp: Interpreter) -> None:
        self._interp = interp
        self._wrappers: list[Any] = []
        self.plain: list[Any] = []  # stand-ins of the graph's tensors
        self._keys = (torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set())
        self.stopped: BaseException | None = None  # what ended the class's code, which PyTorch may word otherwise

    @contextmanager
    def asked(self) -> Iterator[None]:
        try:
            yield
        finally:
            for each in self._wrappers:
                each.answers = None

    def stand_in(self, value: Any) -> Any:
        value = self._interp.externals.force(value)
        if isinstance(value, Wrapper):
            value.outer.answers = self
            self._wrappers.append(value.outer)
            return value.outer
        if isinstance(value, Tensor):
            return self._of_tensor(value)
        if isinstance(value, Sequence) and value.kind in (tuple, list, torch.Size):
            return (list if value.kind is list else tuple)(map(self.stand_in, value.items))
        return self._interp.plain(value)

    def _of_tensor(self, value: Tensor) -> Any:
        known = next((each for each in self.plain if each.value is value), None)
        if known is not None:
            return known
        fake: Any = value.fake
        if type(value) is not Tensor:
            raise Unsupported("B006", f"a wrapper beside {describe(value)}")
        shape, strides = [int(size) for size in fake.shape], [int(stride) for stride in fake.stride()]  # specialized
        others = {"dtype": fake.dtype, "device": fake.device, "requires_grad": fake.requires_grad}
        offset = int(fake.storage_offset())
        stand_in: Any = torch.Tensor._make_wrapper_subclass(
            StandIn, shape, strides=strides, storage_offset=offset, **others
        )
        stand_in.value, stand_in.answers = value, self
        self.plain.append(stand_in)
        return stand_in

    def answer(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What an operator yields, as PyTorch asks for it."""
        interp, before = self._interp, self._interp.tape.ambient
        try:
            # The code of the class runs as that around the call, and not as PyTorch's kernels do; autograd is above it.
            with torch._C._ForceDispatchKeyGuard(*self._keys):
                interp.tape.set_ambient(replace(before, grad=False))
                try:
                    return self.stand_in(self._followed(func, args, kwargs))
                finally:
                    interp.tape.set_ambient(replace(interp.tape.ambient, grad=before.grad))
        except BaseException as stop:
            self.stopped = self.stopped or stop
            raise

    def _followed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Value:
        interp = self._interp
        values = [self.value(each) for each in args]
        named = {name: self.value(each) for name, each in kwargs.items()}
        kinds = {each.value.kind for each in _stand_ins((*args, *kwargs.values())) if isinstance(each.value, Wrapper)}
        if not kinds:
            return interp.tensor_call("call_function", func, values, named)
        if len(kinds) > 1:
            raise Unsupported("B006", "a call with wrappers of several classes")
        (kind,) = kinds
        fixed = interp.externals.fixed
        asked: list[Value] = [fixed(kind), fixed(func), Sequence(tuple, [fixed(kind)]), Sequence(tuple, values)]
        answer = interp.now(interp.call(fixed(_dispatch_of(interp, kind)), [*asked, Mapping(named)]))
        if isinstance(answer, Constant) and answer.value is NotImplemented:
            raise Unsupported("B006", f"{kind.__qualname__}, which declines {func},")
        return answer

    def value(self, real: Any) -> Value:
        if isinstance(real, StandIn):
            return real.value
        if type(real) in (tuple, list):
            return Sequence(type(real), [self.value(each) for each in real])
        return self._interp.wrap_plain(real)


def _stand_ins(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, StandIn):
            yield value
        elif isinstance(value, tuple | list):
            yield from _stand_ins(value)


WRAPPER_CALLS = {
    torch.Tensor._make_wrapper_subclass: make_wrapper,
    internal("_C.DisableTorchFunctionSubclass"): _without_functions,
}
