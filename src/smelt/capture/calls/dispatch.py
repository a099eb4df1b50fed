"""Calling values: what each kind of callable means.

Function, method, user class   →  a frame is pushed, `PUSHED` comes back
torch function                 →  a node of the graph
builtin on known values        →  computed now
anything else                  →  Unsupported
"""

import functools
import operator
import types
import weakref
from typing import Any

import torch

from smelt.base.coexist import is_allowed_in_graph
from smelt.base.torch_originals import BASE
from smelt.base.unseen import UNSEEN
from smelt.capture.calls import nn_module
from smelt.capture.calls.arity import WrongCall, refusal, refuse_arguments, wrong_call
from smelt.capture.calls.autograd_function import FUNCTION_CALLS, ONCE
from smelt.capture.calls.builtins import BUILTIN_CALLS, PURE, Builtin
from smelt.capture.calls.class_statements import replace_part
from smelt.capture.calls.classes import GETTERS, NEW_CALLS, call_class, make_object
from smelt.capture.calls.collectives import collect, is_collective
from smelt.capture.calls.containers import container_method
from smelt.capture.calls.copy import COPIES
from smelt.capture.calls.deque import deque_method
from smelt.capture.calls.grad_and_autocast import AMBIENT_CALLS, BLOCKS
from smelt.capture.calls.interpolate import resized
from smelt.capture.calls.lru_cache import WRAPPER, call_cached
from smelt.capture.calls.numbers import by_tensors, number_call, tensor_of
from smelt.capture.calls.process_groups import CONVERSIONS, QUESTIONS, ask, convert, place
from smelt.capture.calls.python_library import EXPRESSION_CALLS, expression_method
from smelt.capture.calls.regions.checkpoint import CHECKPOINTS
from smelt.capture.calls.regions.transforms import TRANSFORM_CALLS
from smelt.capture.calls.traced.marked_functions import call_traced
from smelt.capture.calls.traced.numpy_arrays import array_of, call_method, call_numpy
from smelt.capture.calls.traced.wrapper_tensors import WRAPPER_CALLS, ask_classes_from_now, attribute_by_getter
from smelt.capture.guards.name_lookups import rely_on_names
from smelt.capture.interpreter.attributes import attribute_now
from smelt.capture.interpreter.backward import BACKWARD_CALLS
from smelt.capture.interpreter.deferred_scalars import item_of_tensor, listed
from smelt.capture.interpreter.exceptions import method_of
from smelt.capture.interpreter.externals import BUILTIN_BASES
from smelt.capture.interpreter.interpreter import Frame, Interpreter
from smelt.capture.interpreter.iterators import generator_method
from smelt.capture.interpreter.leaf_state import store_requires_grad
from smelt.capture.interpreter.operators import contains, is_computed, subscript
from smelt.capture.interpreter.replaced_methods import rely_on_own_in
from smelt.capture.interpreter.special_methods import lacking, special
from smelt.capture.interpreter.symbolic_index import where_true
from smelt.capture.model.breaks import NotFollowed, Unsupported
from smelt.capture.model.bytecode import CodeInfo, decode
from smelt.capture.model.marks import (
    DISABLED,
    defer,
    entered_by,
    graph_break,
    is_compiling,
    nothing_deferred,
    unsupported,
)
from smelt.capture.model.policy import (
    ANSWERED_FALSE,
    ANSWERED_TRUE,
    EVALUATED,
    IDENTITIES,
    IGNORED,
    OF_THE_MACHINE,
    TENSOR_BREAKS,
    Treatment,
    acts_as_in_eager,
    hook_of_library,
    is_library,
    is_polyfill,
    is_torch_leaf,
    is_transform,
    known_name,
    treatment_of_code,
    wrapped_by_torch_compile,
)
from smelt.capture.model.reachable_values import reachable
from smelt.capture.model.static import ABSENT, is_a, static_lookup
from smelt.capture.model.values import (
    PLACEMENTS,
    Array,
    Cell,
    Constant,
    Deque,
    Descriptor,
    ExceptionValue,
    Function,
    Generator,
    Globals,
    Instance,
    LazyItem,
    Mapping,
    Method,
    Object,
    Partial,
    Proxy,
    Sequence,
    Set,
    Tensor,
    Value,
    WeakReference,
    Wrapper,
    contents_kind,
    describe,
    python_type,
)
from smelt.capture.polyfills.by_name import BY_NAME, WHOLE, ask_classes, hide_backend_settings, index_by_tensors
from smelt.capture.polyfills.library import KINDS, MAKERS, POLYFILLS, scripted
from smelt.capture.polyfills.optimizers import STEPPING, averaging_batch_norm
from smelt.capture.polyfills.transforms import MADE_OUTSIDE, TRANSFORMS
from smelt.capture.tape.program_state import as_the_program_has_it
from smelt.capture.tape.subtape import RegionTape
from smelt.meta.effects import is_pointwise

CONTEXT_CALLS = {**NEW_CALLS, **BLOCKS, **BACKWARD_CALLS, **FUNCTION_CALLS, **CHECKPOINTS, **nn_module.MODULE_CALLS}
CONTEXT_CALLS |= {**TRANSFORM_CALLS, **WRAPPER_CALLS}
OTHER_CALLS = {**COPIES, **EXPRESSION_CALLS}
_CURRENT_GPU = "torch.cuda.current_device"
_TRANSFORMED = "torch._C._are_functorch_transforms_active"  # compiled code runs under those it captured alone
_GENERATOR = 0x20
_DISPATCHING = functools.singledispatch(lambda first: first).__code__  # type: ignore[attr-defined]
_SCRIPTED = "_torchdynamo_inline"  # where TorchScript keeps the function that was scripted
_COROUTINE = 0x80 | 0x100 | 0x200


def call(interp: Interpreter, function: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Call `function`; the one entry for every kind of callable."""
    if isinstance(function, Method):
        return call(interp, function.function, [function.receiver, *args], kwargs)
    if isinstance(function, Function):
        return _enter_function(interp, function, args, kwargs)
    if isinstance(function, Partial):
        return call(interp, function.function, [*function.args, *args], {**function.keywords, **kwargs})
    if isinstance(function, Object):
        return _call_object(interp, function, args, kwargs)
    if isinstance(function, WeakReference) and not args and not kwargs:
        return _target_of(interp, function)
    if isinstance(function, Descriptor) and function.kind is staticmethod:
        return call(interp, function.parts[0], args, kwargs)
    if isinstance(function, Instance):
        method = special(interp, function, "__call__")
        if method is None:
            raise lacking(function, "__call__")
        return call(interp, method, args, kwargs)
    if isinstance(function, Constant | Sequence | Mapping | Set):
        raise lacking(function, "__call__")
    raise Unsupported("B002", describe(function))


def _call_object(interp: Interpreter, function: Object, args: list[Value], kwargs: dict[str, Value]) -> Value:
    real = function.value
    if real is graph_break:
        raise Unsupported("B001")
    if real is defer and isinstance(args[0], Object):
        interp.externals.deferred_calls.append((interp.externals.guard_identity(args[0]), args[1:]))
        return Constant(None)
    if real is nothing_deferred:
        return Constant(all(args[0] is not each for _, given in interp.externals.deferred_calls for each in given))
    if real is unsupported:
        raise Unsupported("B002", str(interp.plain(args[0])))
    entered = entered_by(real) if is_a(real, types.FunctionType) else None
    if entered is not None and interp.externals.follows(entered):
        interp.externals.guard_identity(function)
        if not entered.of_method:
            return call(interp, _bound(interp, entered.function), args, kwargs)
        model = entered.function(interp.externals.guard_identity(args[0])) if isinstance(args[0], Object) else args[0]
        if isinstance(args[0], Object) and model is not args[0].value:
            other = interp.externals.fixed(model)
            own = interp.tree.class_attribute(type(model), real.__name__)  # not the object's, which may call this one
            if is_a(own, types.FunctionType):
                return call(interp, interp.externals.fixed(own), [other, *args[1:]], kwargs)
            return call(interp, attribute_now(interp, other, real.__name__), args[1:], kwargs)
    if is_a(real, types.FunctionType) and DISABLED in real.__dict__:
        raise Unsupported("B010", real.__qualname__)
    if is_a(real, types.FunctionType) and not is_library(real.__code__) and is_allowed_in_graph(real):
        return call_traced(interp, function, args, kwargs)
    if is_a(real, types.FunctionType) and UNSEEN in real.__dict__:
        interp.externals.guard_identity(function)
        return Constant(None)
    listed = _is_listed(real)
    recurrent = nn_module.RECURRENT_CALLS.get(real) if listed and len(args) == 1 and not kwargs else None
    answered: Value | None = None if recurrent is None else recurrent(interp, args[0])
    if answered is not None:
        return answered
    name = known_name(real)
    if name in ANSWERED_TRUE or real is is_compiling:
        interp.externals.guard_identity(function)
        return Constant(not acts_as_in_eager(interp.frames[-1].info.code))
    if name in ANSWERED_FALSE or (name == _TRANSFORMED and not isinstance(interp.tape, RegionTape)):
        interp.externals.guard_identity(function)
        return Constant(False)
    if name in IDENTITIES and args and not kwargs:
        interp.externals.guard_identity(function)
        return args[-1]
    ambient = AMBIENT_CALLS.get(real) if listed else None
    if ambient is not None:
        interp.externals.guard_identity(function)
        given: Value = ambient(interp, [interp.plain(value) for value in (*args, *kwargs.values())])
        return given
    if name in IGNORED:
        interp.externals.guard_identity(function)
        return Constant(None)
    if name in EVALUATED:
        interp.externals.guard_identity(function)
        answer = _evaluate(interp, real, args, kwargs)
        if name in OF_THE_MACHINE:
            interp.tree.rely_on_machine(real, None if args or kwargs else answer)
        return answer
    if name in QUESTIONS:
        return ask(interp, function, args, kwargs)
    if is_a(real, types.FunctionType) and is_collective(real):
        return collect(interp, function, args, kwargs)
    if name in CONVERSIONS:
        return convert(interp, function, args, kwargs)
    if name == _CURRENT_GPU and torch.cuda.is_available() and not args and not kwargs:
        interp.externals.guard_identity(function)
        return interp.wrap_plain(interp.tape.current_device("cuda"))
    full_name = f"{real.__module__}.{real.__qualname__}" if name and is_a(real, types.FunctionType) else ""
    if full_name in WHOLE or full_name in BY_NAME:
        return _by_name(interp, function, full_name, args, kwargs)
    if real is index_by_tensors:
        interp.indexes_by_tensors = bool(interp.plain(args[0]))
        return Constant(None)
    if real is ask_classes:
        return ask_classes_from_now(interp, bool(interp.plain(args[0])))
    if real is hide_backend_settings:
        interp.tree.hides_backend_settings = bool(interp.plain(args[0]))
        return Constant(None)
    block: Builtin | None = CONTEXT_CALLS.get(real) if listed else None
    if block is not None:
        return block(interp, args, kwargs)
    polyfill = POLYFILLS.get(real) or TRANSFORMS.get(real) if listed else None
    if polyfill is not None:
        interp.externals.guard_identity(function)
        refuse_arguments(real, args, kwargs)
        try:
            return call(interp, interp.externals.fixed(polyfill), args, kwargs)
        except WrongCall:
            raise refusal(real, len(args), kwargs) from None
    arrays = call_numpy(interp, function, args, kwargs)
    if arrays is not None:
        return arrays
    handler: Builtin | None = BUILTIN_CALLS.get(real) or OTHER_CALLS.get(real) if listed else None
    if handler is not None:
        interp.externals.guard_identity(function)
        rely_on_own_in(interp, real, args)
        return handler(interp, args, kwargs)
    if is_torch_leaf(real):
        interp.externals.guard_identity(function)
        if is_a(real, types.FunctionType) and not rely_on_names(interp.tree, real):
            return _follow(interp, function, args, kwargs)
        _refuse_method(real)
        made = resized(interp, real, args, kwargs) or tensor_of(interp, real, args, kwargs)
        made = made or where_true(interp, real, args, kwargs)
        if made is not None:
            return made
        if real is torch.nn.functional.batch_norm and any(map(is_computed, (*args, *kwargs.values()))):
            return call(interp, interp.externals.fixed(averaging_batch_norm), args, kwargs)
        if is_a(real, types.FunctionType) and any(map(_calls_back, (*args, *kwargs.values()))):
            return _follow(interp, function, args, kwargs)
        return _call_torch(interp, real, args, kwargs)
    if is_a(real, types.FunctionType) and real.__code__ is _DISPATCHING and args:
        return _dispatch(interp, function, args, kwargs)
    if is_a(real, types.FunctionType) and real.__code__ is ONCE:
        interp.tape.once = True
        return call(interp, interp.externals.fixed(real.__wrapped__), args, kwargs)
    if is_a(real, types.FunctionType) and real.__code__ in STEPPING:
        inner = interp.externals.fixed(real.__wrapped__)
        return call(interp, interp.externals.fixed(STEPPING[real.__code__]), [inner, *args], kwargs)
    if is_a(real, types.FunctionType):
        return _inline(interp, function, args, kwargs)
    if is_a(real, types.MethodDescriptorType | types.WrapperDescriptorType | types.ClassMethodDescriptorType):
        return _call_descriptor(interp, function, args, kwargs)
    if is_a(real, type):
        make = place if real.__module__ == PLACEMENTS else call_class
        return make(interp, function, args, kwargs)
    if is_a(real, types.MethodWrapperType) and args and isinstance(args[0], Wrapper):
        return attribute_by_getter(interp, real, args, kwargs)
    if is_a(real, types.BuiltinFunctionType):
        return _call_builtin(interp, function, args, kwargs)
    return _call_instance(interp, function, args, kwargs)


def _by_name(
    interp: Interpreter, function: Object, name: str, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """A function of PyTorch's that is known by its name: what stands for it, or itself, followed to its end."""
    interp.externals.guard_identity(function)
    if name not in BY_NAME:
        answer = _follow(interp, function, args, kwargs)
    else:
        answer = call(interp, interp.externals.fixed(BY_NAME[name]), args, kwargs)
    if name not in WHOLE:
        return answer
    try:
        return interp.now(answer)
    finally:
        interp.indexes_by_tensors = False


def _bound(interp: Interpreter, function: Any) -> Value:
    if isinstance(function, types.MethodType):
        return Method(interp.externals.fixed(function.__func__), interp.externals.fixed(function.__self__))
    return interp.externals.fixed(function)


def _dispatch(interp: Interpreter, function: Object, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`functools.singledispatch`: its register is asked now and at every call, through weak references."""
    real, kind = function.value, python_type(args[0])
    if kind is None or function.source is None:
        raise Unsupported("B002", real.__qualname__)
    chosen = real.dispatch(kind)

    def chooses_it(asked: Any) -> bool:
        return asked.dispatch(kind) is chosen

    chooses_it.__qualname__ = f"calling {chosen.__qualname__} for a {kind.__qualname__}"
    function.source.check(("predicate", chooses_it))
    return call(interp, interp.externals.fixed(chosen), args, kwargs)


def _is_listed(real: Any) -> bool:
    """Whether tables of library functions may hold a callable; not one of the program's, which may stand in a library
    function's place since before smelt was imported."""
    if is_a(real, types.FunctionType):
        return is_library(real.__code__)
    # Otherwise hashing it would run the program's code.
    return isinstance(static_lookup(type(real), "__hash__"), types.WrapperDescriptorType)


def _evaluate(interp: Interpreter, real: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    plain = [interp.plain(value) for value in args]
    named = {name: interp.plain(value) for name, value in kwargs.items()}
    if real in (torch.finfo, torch.iinfo):
        source = interp.tree.fixed(real(*plain, **named), "finfo")
        return Object(real(*plain, **named), identity_guarded=True, source=source)
    with as_the_program_has_it(interp.tape.ambient):  # some are operators, which a mode would be asked about
        return interp.compute(real, *plain, **named)


def _refuse_method(real: Any) -> None:
    """Refuse what is a method of tensors, and does more than its results show."""
    if real.__module__ == "torch._tensor" and real.__name__ in TENSOR_BREAKS:
        raise Unsupported(TENSOR_BREAKS[real.__name__], f"Tensor.{real.__name__}")


def _call_torch(interp: Interpreter, real: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    for value in (*args, *kwargs.values()):
        if isinstance(value, Object) and is_a(value.value, torch.Tensor):
            return _by_subclass(interp, real, type(value.value), args, kwargs)
    stand_in = by_tensors(getattr(real, "__name__", ""), args, kwargs)
    if stand_in is not None:
        return call(interp, interp.externals.fixed(stand_in), args, kwargs)
    if "out" in kwargs and not isinstance(kwargs["out"], Constant):
        return _call_into(interp, real, args, kwargs)
    return interp.tensor_call("call_function", real, args, kwargs)


def _by_subclass(interp: Interpreter, real: Any, kind: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """What a class of tensors of the program's makes of a call of PyTorch: its `__torch_function__` is followed."""
    found = interp.tree.class_attribute(kind, "__torch_function__")
    others = [each for each in (*args, *kwargs.values()) if isinstance(each, Object) and is_a(each.value, torch.Tensor)]
    own = isinstance(found, classmethod) and isinstance(found.__func__, types.FunctionType)
    if not own or is_library(found.__func__.__code__) or any(type(each.value) is not kind for each in others):
        raise Unsupported("B006", kind.__qualname__)
    interp.rely_on_asked_classes(kind)
    fixed = interp.externals.fixed
    given: list[Value] = [fixed(kind), fixed(real), Sequence(tuple, [fixed(kind)]), Sequence(tuple, list(args))]
    return call(interp, fixed(found.__func__), [*given, Mapping(dict(kwargs))], {})


def _calls_back(value: Value) -> bool:
    """Whether a value is Python to be called: a torch function that is given it is no operator, but leads to some."""
    if isinstance(value, Object):
        return is_a(value.value, types.FunctionType | torch.nn.Module)
    return isinstance(value, Function | Method | Partial)


def _call_into(interp: Interpreter, real: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`f(…, out=tensor)` where the tensor is as large as the result and of its type: f(…), written into it."""
    out = kwargs["out"]
    if not isinstance(out, Tensor):
        raise Unsupported("B008", "out=")
    rest = {name: value for name, value in kwargs.items() if name != "out"}
    if interp.tape.is_given_twice(out, [*args, *rest.values()], is_pointwise(real)):
        raise Unsupported("B008", "out= in memory that is read as well,")  # PyTorch may refuse, or read what it wrote
    result = interp.tensor_call("call_function", real, args, rest)
    if not isinstance(result, Tensor) or out.ghost.requires_grad or result.ghost.requires_grad:
        raise Unsupported("B008", "out=")  # refused, or several results
    if (result.ghost.shape, result.ghost.dtype) != (out.ghost.shape, out.ghost.dtype):
        raise Unsupported("B008", "out=")  # resized, or rounded
    interp.tape.requires_no_overlap = True
    return interp.tensor_call("call_method", "copy_", [out, result])


def _call_builtin(interp: Interpreter, function: Object, args: list[Value], kwargs: dict[str, Value]) -> Value:
    real = function.value
    if real.__module__ == "math":
        args = [interp.number_of(interp, value) for value in args]
    if _is_listed(real) and PURE.get(real) is not None and all(map(interp.is_plain, (*args, *kwargs.values()))):
        interp.externals.guard_identity(function)
        in_symbols = number_call(interp, real, args, kwargs)
        if in_symbols is not None:
            return in_symbols
        named = {name: interp.plain(value) for name, value in kwargs.items()}
        return interp.compute(real, *[interp.plain(value) for value in args], **named)
    raise Unsupported("B002", f"{real.__module__ or ''}.{real.__name__}".removeprefix("builtins."))


def _call_descriptor(interp: Interpreter, function: Object, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A method of a C type, called with its receiver first."""
    real, receiver = function.value, args[0] if args else None
    if any(isinstance(each, Array) for each in (*args, *kwargs.values())) and not isinstance(receiver, Tensor):
        return call_method(interp, real, args, kwargs)
    if isinstance(receiver, Wrapper) and real.__objclass__ is BASE and real.__name__ not in TENSOR_BREAKS:
        return interp.tensor_call("call_method", real.__name__, args, kwargs)
    if isinstance(receiver, Tensor):
        if real.__name__ == "numpy" and real.__objclass__ is BASE and len(args) == 1 and not kwargs:
            return array_of(interp, receiver)
        if real.__objclass__ is not BASE and real.__name__ not in TENSOR_BREAKS:
            raise Unsupported("B002", f"{real.__qualname__} of a tensor")
        if real.__name__ == "requires_grad_":
            store_requires_grad(interp, receiver, args[1:], kwargs)
            return receiver
        if real.__name__ == "item" and len(args) == 1 and not kwargs:
            return item_of_tensor(interp, receiver)
        items = listed(interp, receiver) if real.__name__ == "tolist" and len(args) == 1 and not kwargs else None
        if real.__name__ == "nonzero":
            items = where_true(interp, torch.nonzero, args, kwargs)
        if items is not None:
            return items
        if real.__name__ == "resize_" and not kwargs and _is_of_size(interp, receiver, args[1:]):
            return receiver
        if real.__name__ in TENSOR_BREAKS:
            raise Unsupported(TENSOR_BREAKS[real.__name__], f"Tensor.{real.__name__}")
        if "out" in kwargs:
            raise Unsupported("B008", "out=")
        stand_in = by_tensors(real.__name__, args, kwargs)
        if stand_in is not None:
            return call(interp, interp.externals.fixed(stand_in), args, kwargs)
        return interp.tensor_call("call_method", real.__name__, args, kwargs)
    held = contents_kind(receiver.contents) if isinstance(receiver, Instance) else None
    if isinstance(receiver, Instance) and held is not None and real.__objclass__ in held.__mro__[:-1]:
        receiver = receiver.contents
    if isinstance(receiver, Object) and real.__objclass__ in BUILTIN_BASES and is_a(receiver.value, real.__objclass__):
        receiver = interp.externals.contents(receiver)
    if isinstance(receiver, Mapping) and receiver is not args[0] and real.__name__ == "__getitem__" and len(args) == 2:
        missing = interp.tree.class_attribute(_kind_of(args[0]), "__missing__")
        if isinstance(missing, types.FunctionType) and not contains(interp, receiver, args[1]):
            return call(interp, interp.externals.fixed(missing), args, kwargs)
    if real is type.__call__ and isinstance(receiver, Object) and is_a(receiver.value, type):
        return make_object(interp, interp.externals.guard_identity(receiver), args[1:], kwargs)
    if isinstance(receiver, Proxy) and real.__objclass__ is types.MappingProxyType:
        real, receiver = getattr(receiver.mapping.kind, real.__name__, real), receiver.mapping
    if isinstance(receiver, ExceptionValue):
        answer = method_of(interp, real, receiver, args[1:], kwargs)
        if answer is not None:
            return answer
    if isinstance(receiver, Descriptor) and real.__name__ in ("getter", "setter", "deleter") and len(args) == 2:
        return replace_part(interp, real.__name__, receiver, args[1:])
    if isinstance(receiver, Generator) and not kwargs:
        return generator_method(interp, real.__name__, receiver, args[1:])
    if isinstance(receiver, Deque) and not kwargs:
        answer = deque_method(interp, real.__name__, receiver, args[1:])
        if answer is not None:
            return answer
    answer = None if receiver is None else expression_method(interp, real, receiver, args[1:], kwargs)
    if answer is not None:
        return answer
    if receiver is not None:
        answer = container_method(interp, real, receiver, args[1:], kwargs)
        if answer is not None:
            return answer
    raise Unsupported("B002", getattr(real, "__qualname__", str(real)))


def _is_of_size(interp: Interpreter, tensor: Tensor, args: list[Value]) -> bool:
    """Whether a tensor has the sizes that it is to be given: then it stays as it is."""
    sizes = interp.externals.items(args[0]) if len(args) == 1 and isinstance(args[0], Sequence) else args
    known = [size.value for size in sizes if type(size) is Constant]
    return len(known) == len(sizes) and known == list(tensor.ghost.shape) and all(type(size) is int for size in known)


def _kind_of(value: Value) -> type:
    kind = python_type(value)
    assert kind is not None
    return kind


def _inline(interp: Interpreter, function: Object, args: list[Value], kwargs: dict[str, Value]) -> Value:
    real = function.value
    receiver = args[0] if args else None
    if real is torch.nn.Module._wrapped_call_impl and isinstance(receiver, Object | Instance):
        hook = hook_of_library(receiver.value) if isinstance(receiver, Object) else None
        if hook is not None:
            raise Unsupported("B002", f"{describe(receiver)} with its hook {hook}")
        forward = nn_module.forward_of(interp, receiver)
        if forward is not None:
            return call(interp, forward, args[1:], kwargs)
    if treatment_of_code(real.__code__) is not Treatment.INLINE:
        behind = wrapped_by_torch_compile(real)
        if behind is not None and function.source is not None:
            return call(interp, _in_closure(interp, function, behind), args, kwargs)
        if is_transform(real.__code__) and real.__code__.co_qualname in MADE_OUTSIDE and function.source is not None:
            return _call_transformed(interp, function, args, kwargs)
        raise Unsupported("B025" if is_transform(real.__code__) else "B002", f"{real.__module__}.{real.__qualname__}")
    return _follow(interp, function, args, kwargs)


def _call_transformed(interp: Interpreter, function: Object, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A function that a transform of `torch.func` made before: transformed once more, in the captured code."""
    make, names, defaults = MADE_OUTSIDE[function.value.__code__.co_qualname]
    for name, default in defaults.items():
        if name in function.value.__code__.co_freevars and interp.plain(_in_closure(interp, function, name)) != default:
            raise Unsupported("B025", f"{function.value.__qualname__} with {name}")
    given = [_in_closure(interp, function, name) for name in names]
    made = interp.now(call(interp, interp.externals.fixed(make), given, {}))
    return call(interp, made, args, kwargs)


def _in_closure(interp: Interpreter, function: Object, name: str) -> Value:
    """What a function from outside, of just this code, has in its closure by a name."""
    real, source = function.value, function.source
    assert source is not None
    source.attribute("__code__").check(("is", real.__code__))
    index = real.__code__.co_freevars.index(name)
    cell = _cell(interp, real.__closure__[index], source.child(("closure", index), name))
    contents = interp.externals.cell_contents(cell)
    assert contents is not None
    return contents


def _follow(interp: Interpreter, function: Object, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Enter a function from outside."""
    real = function.value
    source = function.source
    if source is None:
        raise Unsupported("B002", real.__qualname__)
    if not is_polyfill(real.__code__):
        source.attribute("__code__").check(("is", real.__code__))
    info = decode(real.__code__)
    defaults = keyword_defaults = None
    if real.__defaults__:
        defaults = interp.externals.value(real.__defaults__, source.attribute("__defaults__"))
    if real.__kwdefaults__:
        keyword_defaults = interp.externals.value(real.__kwdefaults__, source.attribute("__kwdefaults__"))
    closure = tuple(
        _cell(interp, cell, source.child(("closure", index), info.code.co_freevars[index]))
        for index, cell in enumerate(real.__closure__ or ())
    )
    slots = bind(interp, info, args, kwargs, defaults, keyword_defaults, function)
    return _enter(interp, info, function, interp.externals.globals_of(function), closure, slots)


def _cell(interp: Interpreter, real: types.CellType, source: Any) -> Cell:
    found = interp.externals.value(real, source)
    assert isinstance(found, Cell)
    return found


def _enter_function(interp: Interpreter, function: Function, args: list[Value], kwargs: dict[str, Value]) -> Value:
    slots = bind(interp, function.info, args, kwargs, function.defaults, function.keyword_defaults, function)
    return _enter(interp, function.info, function, function.globals, function.closure, slots)


def _enter(
    interp: Interpreter,
    info: CodeInfo,
    function: Value,
    names: Globals,
    closure: tuple[Cell, ...],
    slots: list[Value | None],
) -> Value:
    frame = Frame(info, function, names, closure, slots, [])
    too_many = len(interp.made_generators) >= interp.generators
    if info.code.co_flags & _COROUTINE or (too_many and (info.code.co_flags & _GENERATOR or info.code in MAKERS)):
        raise NotFollowed("B002", f"{info.code.co_qualname}, a generator or coroutine")
    if info.code.co_flags & _GENERATOR:
        frame.generator = Generator(frame, KINDS.get(info.code, types.GeneratorType))
        interp.made_generators.append(frame.generator)
        return frame.generator
    return interp.enter(frame)


def bind(
    interp: Interpreter,
    info: CodeInfo,
    args: list[Value],
    kwargs: dict[str, Value],
    defaults: Value | None,
    keyword_defaults: Value | None,
    function: Object | Function,
) -> list[Value | None]:
    """Arguments to slots, as Python binds them; what Python would reject is rejected in its words."""
    try:
        return _bind(interp, info, args, kwargs, defaults, keyword_defaults)
    except WrongCall:
        named = keyword_defaults.items if isinstance(keyword_defaults, Mapping) else ()
        positional = len(defaults.items) if isinstance(defaults, Sequence) else 0
        raise wrong_call(info.code, _qualname(interp, function), len(args), kwargs, positional, named) from None


def _qualname(interp: Interpreter, function: Object | Function) -> str | None:
    """By which name Python speaks of a function in errors; None of one that stands for another."""
    if isinstance(function, Function):
        return str(interp.plain(function.overrides.get("__qualname__", Constant(function.qualname))))
    if is_polyfill(function.value.__code__):
        return None
    assert function.source is not None
    function.source.attribute("__qualname__").check(("equals", function.value.__qualname__))
    return str(function.value.__qualname__)


def _bind(
    interp: Interpreter,
    info: CodeInfo,
    args: list[Value],
    kwargs: dict[str, Value],
    defaults: Value | None,
    keyword_defaults: Value | None,
) -> list[Value | None]:
    code = info.code
    positional, keyword_only = code.co_argcount, code.co_kwonlyargcount
    slots: list[Value | None] = [None] * info.slot_count
    slots[: min(len(args), positional)] = args[:positional]
    rest = args[positional:]
    named = dict(kwargs)
    for slot in range(code.co_posonlyargcount, positional + keyword_only):
        name = code.co_varnames[slot]
        if name in named:
            if slots[slot] is not None:
                raise _wrong_call(code)
            slots[slot] = named.pop(name)
    following = positional + keyword_only
    if code.co_flags & 0x04:
        slots[following] = Sequence(tuple, list(rest))
        following += 1
    elif rest:
        raise _wrong_call(code)
    if code.co_flags & 0x08:
        slots[following] = Mapping(dict(named))
    elif named:
        raise _wrong_call(code)
    _fill_defaults(interp, info, slots, defaults, keyword_defaults)
    return slots


def _fill_defaults(
    interp: Interpreter,
    info: CodeInfo,
    slots: list[Value | None],
    defaults: Value | None,
    keyword_defaults: Value | None,
) -> None:
    code = info.code
    items = defaults.items if isinstance(defaults, Sequence) else []
    first = code.co_argcount - len(items)
    for slot in range(code.co_argcount):
        if slots[slot] is None:
            if slot < first:
                raise _wrong_call(code)
            slots[slot] = interp.externals.force(items[slot - first])
    for slot in range(code.co_argcount, code.co_argcount + code.co_kwonlyargcount):
        if slots[slot] is None:
            name = code.co_varnames[slot]
            if not isinstance(keyword_defaults, Mapping) or not interp.externals.present(keyword_defaults, name):
                raise _wrong_call(code)
            slots[slot] = interp.externals.force(keyword_defaults.items[name])


def _wrong_call(code: types.CodeType) -> WrongCall:
    return WrongCall("B019", f"TypeError: arguments do not fit {code.co_qualname}()")


def _target_of(interp: Interpreter, reference: WeakReference) -> Value:
    """What a weak reference that was made here leads to, as long as somebody holds that for certain."""
    target = reference.target
    slots = [item for frame in interp.frames for item in (*frame.slots, *frame.stack, *frame.closure)]
    frames = [item.source.value if isinstance(item, LazyItem) else item for item in slots]
    stays = target.source is not None and target.source.accessor[0] != "slot"
    if not stays and id(target) not in reachable((*frames, *interp.externals.written.values())):
        raise Unsupported("B002", "a weak reference to what nobody may hold any more")
    return target


def _refer(interp: Interpreter, function: Object) -> Value:
    """What a weak reference leads to: an object that is known already, or one that stays."""
    target = function.value()
    found = None if target is None else interp.externals.known(target)
    if found is None or function.source is None:
        raise Unsupported("B002", "a weak reference to what is not known otherwise")
    reference = weakref.ref(target)

    def is_same(asked: Any) -> bool:
        return asked() is reference()

    is_same.__qualname__ = "leading to the same object"
    function.source.check(("predicate", is_same))
    interp.externals.guard_identity(found)
    return found


def _call_instance(interp: Interpreter, function: Object, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """An object whose class defines `__call__`."""
    real = function.value
    if is_a(real, torch._C.ScriptFunction) and isinstance(getattr(real, _SCRIPTED, None), types.FunctionType):
        interp.externals.guard_identity(function)
        inner = interp.externals.fixed(getattr(real, _SCRIPTED))
        if interp.tape.ambient.devices:
            return call(interp, interp.externals.fixed(scripted), [inner, *args], kwargs)
        return call(interp, inner, args, kwargs)
    if type(real) is functools.partial and function.source is not None:
        source = function.source
        inner = interp.externals.value(real.func, source.attribute("func"))
        before = interp.externals.value(real.args, source.attribute("args"))
        named = interp.externals.value(real.keywords, source.attribute("keywords"))
        assert isinstance(before, Sequence) and isinstance(named, Mapping)
        interp.externals.complete(named)
        merged = {name: interp.externals.force(item) for name, item in named.items.items()} | kwargs
        return call(interp, inner, [*interp.externals.items(before), *args], merged)
    if type(real) is weakref.ref and not args and not kwargs:
        return _refer(interp, function)
    if is_a(real, WRAPPER):
        return call_cached(interp, function, args, kwargs)
    if type(real) in GETTERS and len(args) == 1 and not kwargs:
        return _get(interp, interp.externals.guard_identity(function), args[0])
    found = interp.tree.class_attribute(type(real), "__call__")
    if found is ABSENT or not isinstance(found, types.FunctionType):
        raise Unsupported("B002", describe(function))
    return call(interp, interp.externals.fixed(found), [function, *args], kwargs)


def _get(interp: Interpreter, getter: Any, value: Value) -> Value:
    """What `operator.itemgetter`, `attrgetter` and `methodcaller` take from a value."""
    kind, args = getter.__reduce__()[:2]
    if isinstance(getter, operator.itemgetter):
        found = [interp.now(subscript(interp, value, interp.wrap_plain(key))) for key in args]
        return found[0] if len(found) == 1 else Sequence(tuple, found)
    if isinstance(getter, operator.attrgetter):
        found = [functools.reduce(functools.partial(attribute_now, interp), path.split("."), value) for path in args]
        return found[0] if len(found) == 1 else Sequence(tuple, found)
    if kind is not operator.methodcaller:
        raise Unsupported("B002", "operator.methodcaller with keywords")
    method = attribute_now(interp, value, args[0])
    return call(interp, method, [interp.wrap_plain(each) for each in args[1:]], {})
