"""Calling values: what each kind of callable means.

Function, method, user class   →  a frame is pushed, `PUSHED` comes back
torch function                 →  a node of the graph
builtin on known values        →  computed now
anything else                  →  Unsupported

An object from outside is looked up in `CALLABLES`; what is not there is the first kind
of `KINDS_OF_FUNCTIONS` or `KINDS_OF_OBJECTS` that fits.
"""

import functools
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from smelt.base.coexist import is_allowed_in_graph
from smelt.base.unseen import UNSEEN
from smelt.capture.calls import nn_module
from smelt.capture.calls.arity import WrongCall, refusal, refuse_arguments
from smelt.capture.calls.autograd_function import FUNCTION_CALLS, ONCE
from smelt.capture.calls.builtins import BUILTIN_CALLS, PURE, Builtin
from smelt.capture.calls.classes import GETTERS, NEW_CALLS, call_class
from smelt.capture.calls.collectives import collect, is_collective
from smelt.capture.calls.copy import COPIES
from smelt.capture.calls.grad_and_autocast import AMBIENT_CALLS, BLOCKS, AmbientCall
from smelt.capture.calls.kinds.c_methods import call_descriptor
from smelt.capture.calls.kinds.callable_objects import (
    call_getter,
    call_instance,
    call_partial,
    call_scripted,
    refer,
    target_of,
)
from smelt.capture.calls.kinds.python_functions import enter_function, follow, inline
from smelt.capture.calls.kinds.torch_functions import call_leaf
from smelt.capture.calls.lru_cache import WRAPPER, call_cached
from smelt.capture.calls.numbers import number_call
from smelt.capture.calls.process_groups import CONVERSIONS, QUESTIONS, ask, convert, place
from smelt.capture.calls.python_library import EXPRESSION_CALLS
from smelt.capture.calls.regions.checkpoint import CHECKPOINTS
from smelt.capture.calls.regions.transforms import TRANSFORM_CALLS
from smelt.capture.calls.traced.marked_functions import call_traced
from smelt.capture.calls.traced.numpy_arrays import FROM_ARRAYS, call_numpy, is_numpy, tensor_of_array
from smelt.capture.calls.traced.wrapper_tensors import WRAPPER_CALLS, ask_classes_from_now, attribute_by_getter
from smelt.capture.interpreter.attributes import attribute_now
from smelt.capture.interpreter.backward import BACKWARD_CALLS
from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.interpreter.replaced_methods import rely_on_own_in
from smelt.capture.interpreter.special_methods import lacking, special
from smelt.capture.model.breaks import Unsupported
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
    acts_as_in_eager,
    is_library,
    is_torch_leaf,
    known_name,
)
from smelt.capture.model.source import predicate
from smelt.capture.model.static import is_a, static_lookup
from smelt.capture.model.values import (
    PLACEMENTS,
    Array,
    Constant,
    Descriptor,
    Function,
    Instance,
    Mapping,
    Method,
    Object,
    Partial,
    Sequence,
    Set,
    Value,
    WeakReference,
    Wrapper,
    describe,
    python_type,
)
from smelt.capture.polyfills.by_name import BY_NAME, WHOLE, ask_classes, hide_backend_settings, index_by_tensors
from smelt.capture.polyfills.library import POLYFILLS
from smelt.capture.polyfills.optimizers import STEPPING
from smelt.capture.polyfills.transforms import TRANSFORMS
from smelt.capture.tape.program_state import as_the_program_has_it
from smelt.capture.tape.subtape import RegionTape

Arguments = list[Value]
Named = dict[str, Value]
Handler = Callable[[Interpreter, Object, Arguments, Named], Value | None]
"""Calls an object from outside; None passes it on to the next that fits."""

_DISPATCHING = functools.singledispatch(lambda first: first).__code__  # type: ignore[attr-defined]


def call(interp: Interpreter, function: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Call `function`; the one entry for every kind of callable."""
    if isinstance(function, Method):
        return call(interp, function.function, [function.receiver, *args], kwargs)
    if isinstance(function, Function):
        return enter_function(interp, function, args, kwargs)
    if isinstance(function, Partial):
        return call(interp, function.function, [*function.args, *args], {**function.keywords, **kwargs})
    if isinstance(function, Object):
        return _call_object(interp, function, args, kwargs)
    if isinstance(function, WeakReference) and not args and not kwargs:
        return target_of(interp, function)
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


def _call_object(interp: Interpreter, function: Object, args: Arguments, kwargs: Named) -> Value:
    real = function.value
    handler = CALLABLES.get(real) if _is_listed(real) else None
    answer = None if handler is None else handler(interp, function, args, kwargs)
    if answer is not None:
        return answer
    for fits, handler in KINDS_OF_FUNCTIONS if is_a(real, types.FunctionType) else KINDS_OF_OBJECTS:
        answer = handler(interp, function, args, kwargs) if fits(real) else None
        if answer is not None:
            return answer
    raise AssertionError("the last of either list calls anything")


def _is_listed(real: Any) -> bool:
    """Whether tables of library functions may hold a callable; not one of the program's, which may stand in a library
    function's place since before smelt was imported."""
    if is_a(real, types.FunctionType):
        return is_library(real.__code__)
    # Otherwise hashing it would run the program's code.
    return isinstance(static_lookup(type(real), "__hash__"), types.WrapperDescriptorType)


def _break_graph(interp: Interpreter, function: Object, args: Arguments, kwargs: Named) -> Value:
    raise Unsupported("B001")


def _defer(interp: Interpreter, function: Object, args: Arguments, kwargs: Named) -> Value | None:
    if not isinstance(args[0], Object):
        return None
    interp.externals.deferred_calls.append((interp.externals.guard_identity(args[0]), args[1:]))
    return Constant(None)


def _nothing_deferred(interp: Interpreter, function: Object, args: Arguments, kwargs: Named) -> Value:
    deferred = [value for _, values in interp.externals.deferred_calls for value in values]
    return Constant(all(args[0] is not value for value in deferred))


def _refuse(interp: Interpreter, function: Object, args: Arguments, kwargs: Named) -> Value:
    raise Unsupported("B002", str(interp.plain(args[0])))


def _index_by_tensors(interp: Interpreter, function: Object, args: Arguments, kwargs: Named) -> Value:
    interp.indexes_by_tensors = bool(interp.plain(args[0]))
    return Constant(None)


def _hide_backend_settings(interp: Interpreter, function: Object, args: Arguments, kwargs: Named) -> Value:
    interp.tree.hides_backend_settings = bool(interp.plain(args[0]))
    return Constant(None)


def _is_compiling(interp: Interpreter, function: Object, args: Arguments, kwargs: Named) -> Value:
    interp.externals.guard_identity(function)
    return Constant(not acts_as_in_eager(interp.frames[-1].info.code))


def _answer(value: object) -> Handler:
    def answer(interp: Interpreter, function: Object, args: Arguments, kwargs: Named) -> Value:
        interp.externals.guard_identity(function)
        return Constant(value)

    return answer


def _last_argument(interp: Interpreter, function: Object, args: Arguments, kwargs: Named) -> Value | None:
    if not args or kwargs:
        return None
    interp.externals.guard_identity(function)
    return args[-1]


def _no_transforms(interp: Interpreter, function: Object, args: Arguments, kwargs: Named) -> Value | None:
    """Compiled code runs under those transforms alone that it captured."""
    return None if isinstance(interp.tape, RegionTape) else _answer(False)(interp, function, args, kwargs)


def _current_gpu(interp: Interpreter, function: Object, args: Arguments, kwargs: Named) -> Value | None:
    if not torch.cuda.is_available() or args or kwargs:
        return None
    interp.externals.guard_identity(function)
    return interp.wrap_plain(interp.tape.current_device("cuda"))


def _evaluate(interp: Interpreter, function: Object, args: Arguments, kwargs: Named) -> Value:
    real = interp.externals.guard_identity(function)
    plain = [interp.plain(value) for value in args]
    named = {name: interp.plain(value) for name, value in kwargs.items()}
    if real in (torch.finfo, torch.iinfo):
        source = interp.tree.fixed(real(*plain, **named), "finfo")
        return Object(real(*plain, **named), identity_guarded=True, source=source)
    with as_the_program_has_it(interp.tape.ambient):  # some are operators, which a mode would be asked about
        return interp.compute(real, *plain, **named)


def _ask_machine(interp: Interpreter, function: Object, args: Arguments, kwargs: Named) -> Value:
    answer = _evaluate(interp, function, args, kwargs)
    interp.tree.rely_on_machine(function.value, None if args or kwargs else answer)
    return answer


def _ambient(rule: AmbientCall) -> Handler:
    def handle(interp: Interpreter, function: Object, args: Arguments, kwargs: Named) -> Value:
        interp.externals.guard_identity(function)
        return rule(interp, [interp.plain(value) for value in (*args, *kwargs.values())])

    return handle


def _unguarded(rule: Callable[..., Value | None]) -> Handler:
    """By a rule that sees to the guards itself."""
    return lambda interp, function, args, kwargs: rule(interp, args, kwargs)


def _builtin(rule: Builtin) -> Handler:
    def handle(interp: Interpreter, function: Object, args: Arguments, kwargs: Named) -> Value:
        rely_on_own_in(interp, interp.externals.guard_identity(function), args)
        return rule(interp, args, kwargs)

    return handle


def calls_instead(stand_in: Any) -> Handler:
    """Follow a function in Python that does the same."""

    def handle(interp: Interpreter, function: Object, args: Arguments, kwargs: Named) -> Value:
        real = interp.externals.guard_identity(function)
        refuse_arguments(real, args, kwargs)
        try:
            return call(interp, interp.externals.fixed(stand_in), args, kwargs)
        except WrongCall:
            raise refusal(real, len(args), kwargs) from None

    return handle


def _from_array(otherwise: Handler | None) -> Handler:
    """What makes a tensor of an array."""

    def handle(interp: Interpreter, function: Object, args: Arguments, kwargs: Named) -> Value | None:
        if args and isinstance(args[0], Array):
            return tensor_of_array(interp, function.value, args, kwargs)
        return None if otherwise is None else otherwise(interp, function, args, kwargs)

    return handle


def _enter_compiled(interp: Interpreter, function: Object, args: Arguments, kwargs: Named) -> Value | None:
    """A function that is compiled alike: what it calls is followed."""
    real = function.value
    entered = entered_by(real)
    if entered is None or not interp.externals.follows(entered):
        return None
    interp.externals.guard_identity(function)
    if not entered.of_method:
        return call(interp, _bound(interp, entered.function), args, kwargs)
    if not isinstance(args[0], Object):
        return None
    model = entered.function(interp.externals.guard_identity(args[0]))
    if model is args[0].value:
        return None
    other = interp.externals.fixed(model)
    own = interp.tree.class_attribute(type(model), real.__name__)  # not the object's, which may call this one
    if is_a(own, types.FunctionType):
        return call(interp, interp.externals.fixed(own), [other, *args[1:]], kwargs)
    return call(interp, attribute_now(interp, other, real.__name__), args[1:], kwargs)


def _bound(interp: Interpreter, function: Any) -> Value:
    if isinstance(function, types.MethodType):
        return Method(interp.externals.fixed(function.__func__), interp.externals.fixed(function.__self__))
    return interp.externals.fixed(function)


def _refuse_disabled(interp: Interpreter, function: Object, args: Arguments, kwargs: Named) -> Value:
    raise Unsupported("B010", function.value.__qualname__)


def _call_named(interp: Interpreter, function: Object, args: Arguments, kwargs: Named) -> Value | None:
    return NAMED[known_name(function.value)](interp, function, args, kwargs)


def _full_name(real: Any) -> str:
    return f"{real.__module__}.{real.__qualname__}" if known_name(real) else ""


def _by_name(interp: Interpreter, function: Object, args: Arguments, kwargs: Named) -> Value:
    """A function of PyTorch's that is known by its name: what stands for it, or itself, followed to its end."""
    interp.externals.guard_identity(function)
    name = _full_name(function.value)
    if name not in BY_NAME:
        answer = follow(interp, function, args, kwargs)
    else:
        answer = call(interp, interp.externals.fixed(BY_NAME[name]), args, kwargs)
    if name not in WHOLE:
        return answer
    try:
        return interp.now(answer)
    finally:
        interp.indexes_by_tensors = False


def _dispatch(interp: Interpreter, function: Object, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """`functools.singledispatch`: its register is asked now and at every call, through weak references."""
    if not args:
        return None
    real, kind = function.value, python_type(args[0])
    if kind is None or function.source is None:
        raise Unsupported("B002", real.__qualname__)
    chosen = real.dispatch(kind)
    text = f"calling {chosen.__qualname__} for a {kind.__qualname__}"
    function.source.check(predicate(lambda asked: asked.dispatch(kind) is chosen, text))
    return call(interp, interp.externals.fixed(chosen), args, kwargs)


def _call_once(interp: Interpreter, function: Object, args: Arguments, kwargs: Named) -> Value:
    interp.tape.once = True
    return call(interp, interp.externals.fixed(function.value.__wrapped__), args, kwargs)


def _call_stepping(interp: Interpreter, function: Object, args: Arguments, kwargs: Named) -> Value:
    step = interp.externals.fixed(function.value.__wrapped__)
    return call(interp, interp.externals.fixed(STEPPING[function.value.__code__]), [step, *args], kwargs)


def _call_class(interp: Interpreter, function: Object, args: Arguments, kwargs: Named) -> Value:
    make = place if function.value.__module__ == PLACEMENTS else call_class
    return make(interp, function, args, kwargs)


def _call_method_wrapper(interp: Interpreter, function: Object, args: Arguments, kwargs: Named) -> Value | None:
    if not args or not isinstance(args[0], Wrapper):
        return None
    return attribute_by_getter(interp, function.value, args, kwargs)


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


CALLABLES: dict[Any, Handler] = {
    graph_break: _break_graph,
    defer: _defer,
    nothing_deferred: _nothing_deferred,
    unsupported: _refuse,
    is_compiling: _is_compiling,
    index_by_tensors: _index_by_tensors,
    ask_classes: lambda interp, function, args, kwargs: ask_classes_from_now(interp, bool(interp.plain(args[0]))),
    hide_backend_settings: _hide_backend_settings,
    **{real: _ambient(rule) for real, rule in AMBIENT_CALLS.items()},
    **{
        real: _unguarded(rule)
        for table in (
            NEW_CALLS,
            BLOCKS,
            BACKWARD_CALLS,
            FUNCTION_CALLS,
            CHECKPOINTS,
            nn_module.MODULE_CALLS,
            nn_module.RECURRENT_CALLS,
            TRANSFORM_CALLS,
            WRAPPER_CALLS,
        )
        for real, rule in table.items()
    },
    **{real: calls_instead(stand_in) for table in (POLYFILLS, TRANSFORMS) for real, stand_in in table.items()},
    **{real: _builtin(rule) for table in (BUILTIN_CALLS, COPIES, EXPRESSION_CALLS) for real, rule in table.items()},
}
"""By the callable: no key is in two of these tables."""

CALLABLES |= {real: _from_array(CALLABLES.get(real)) for real in FROM_ARRAYS}

NAMED: dict[str, Handler] = {
    **dict.fromkeys(ANSWERED_TRUE, _is_compiling),
    **dict.fromkeys(ANSWERED_FALSE, _answer(False)),
    **dict.fromkeys(IDENTITIES, _last_argument),
    **dict.fromkeys(IGNORED, _answer(None)),
    **dict.fromkeys(EVALUATED, _evaluate),
    **dict.fromkeys(EVALUATED & OF_THE_MACHINE, _ask_machine),
    **dict.fromkeys(QUESTIONS, ask),
    **dict.fromkeys(CONVERSIONS, convert),
    "torch._C._are_functorch_transforms_active": _no_transforms,
    "torch.cuda.current_device": _current_gpu,
}
"""By the name of a function of PyTorch's that only some builds have, or that others may wrap."""

_BY_FULL_NAME = WHOLE | set(BY_NAME)
_DESCRIPTORS = types.MethodDescriptorType | types.WrapperDescriptorType | types.ClassMethodDescriptorType

Kinds = tuple[tuple[Callable[[Any], bool], Handler], ...]
"""The first that fits calls it, unless its handler passes it on."""

KINDS_OF_FUNCTIONS: Kinds = (
    # What the program said of a function comes before all that its file or its name would say.
    (lambda real: True, _enter_compiled),
    (lambda real: DISABLED in real.__dict__, _refuse_disabled),
    (lambda real: not is_library(real.__code__) and is_allowed_in_graph(real), call_traced),
    (lambda real: UNSEEN in real.__dict__, _answer(None)),
    # Functions of PyTorch's known one by one: before the leaves, among which most of them are.
    (lambda real: known_name(real) in NAMED, _call_named),
    (is_collective, collect),
    (lambda real: _full_name(real) in _BY_FULL_NAME, _by_name),
    (is_numpy, call_numpy),
    (is_torch_leaf, call_leaf),
    # Those made by a decorator that is known by its code, before any other.
    (lambda real: real.__code__ is _DISPATCHING, _dispatch),
    (lambda real: real.__code__ is ONCE, _call_once),
    (lambda real: real.__code__ in STEPPING, _call_stepping),
    (lambda real: True, inline),
)

KINDS_OF_OBJECTS: Kinds = (
    # As of functions: one by one, then leaves.
    (lambda real: known_name(real) in NAMED, _call_named),
    (is_numpy, call_numpy),
    (is_torch_leaf, call_leaf),
    # What C defines, and classes.
    (lambda real: is_a(real, _DESCRIPTORS), call_descriptor),
    (lambda real: is_a(real, type), _call_class),
    (lambda real: is_a(real, types.MethodWrapperType), _call_method_wrapper),
    (lambda real: is_a(real, types.BuiltinFunctionType), _call_builtin),
    # Objects of classes that are known, before any that has a `__call__`.
    (lambda real: is_a(real, torch._C.ScriptFunction), call_scripted),
    (lambda real: type(real) is functools.partial, call_partial),
    (lambda real: type(real) is weakref.ref, refer),
    (lambda real: is_a(real, WRAPPER), call_cached),
    (lambda real: type(real) in GETTERS, call_getter),
    (lambda real: True, call_instance),
)
