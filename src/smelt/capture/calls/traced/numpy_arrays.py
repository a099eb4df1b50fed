"""NumPy in captured code: arrays are tensors of the graph, functions are `torch._numpy`'s on fake tensors.

    a = x.numpy()                    Array(ndarray, x)                    shares memory with x, as it does in NumPy
    b = np.sin(a) * 2                sin · mul                            Array(ndarray, mul)
    return b, np.linspace(0, 1, 3)   computed now: a constant             arrays again when the graph has run

Of each call NumPy itself is asked what it yields for arrays of ones of the same sizes: array or scalar, its type, its
shape, and whose memory it shares. Where the graph would have it otherwise, it ends there, and NumPy is called.
"""

import functools
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch

from smelt.capture.calls.traced.recorder import Recorder
from smelt.capture.interpreter.deferred_scalars import item_of_tensor, listed, needed
from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.model.breaks import Unsupported
from smelt.capture.model.container_changes import same_keys
from smelt.capture.model.static import is_a
from smelt.capture.model.values import (
    Array,
    Constant,
    LazyItem,
    Object,
    Sequence,
    Slice,
    Tensor,
    Value,
    has_any,
    is_constant,
)
from smelt.device.host_library import HOST, on_host

_MAX_CONSTANT = 4096
_MAX_ELEMENTS = 1 << 22
# What `torch._numpy` computes otherwise: cbrt of negative numbers, fix of fractions, signs of NaN and of -0.0.
_COMPUTED_OTHERWISE = ("angle", "cbrt", "fix", "heaviside", "sign")
FROM_ARRAYS = (torch.from_numpy, torch.as_tensor, torch.tensor, torch.asarray)
Values = list[Value]
Named = dict[str, Value]


@functools.cache
def _functions() -> dict[int, Any]:
    """By the ids of NumPy's functions and types: what they are in `torch._numpy`."""
    import numpy
    import torch._numpy as traced

    functions: dict[int, Any] = {}
    for module, ours in ((numpy, traced), (numpy.linalg, traced.linalg), (numpy.fft, traced.fft)):
        for name in dir(ours):
            theirs = getattr(module, name, None)
            left_out = name.startswith("_") or name in _COMPUTED_OTHERWISE
            if callable(theirs) and callable(getattr(ours, name)) and not left_out:
                functions[id(theirs)] = getattr(ours, name)
    return functions


def is_numpy(function: Any) -> bool:
    """Whether a callable is a function or a type of NumPy's."""
    if "numpy" not in sys.modules:
        return False
    kind = type(function)
    if kind in (types.FunctionType, types.BuiltinFunctionType) or kind is type:
        return str(getattr(function, "__module__", "")).partition(".")[0] == "numpy"
    return kind.__module__ == "numpy"


def call_numpy(interp: Interpreter, function: Object, args: Values, kwargs: Named) -> Value | None:
    """What a function of NumPy's yields; None where export explores."""
    if interp.externals.explores:
        return None
    real = interp.externals.guard_identity(function)
    ours = _functions().get(id(real))
    if ours is None or "out" in kwargs or len(args) > getattr(real, "nin", len(args)):  # those of a ufunc; then `out`
        raise Unsupported("B002", f"numpy.{getattr(real, '__name__', real)}")
    if has_any(Array, (*args, *kwargs.values())):
        return on_arrays(interp, real, ours, args, kwargs)
    return _constant(interp, real, args, kwargs)


def array_of(interp: Interpreter, tensor: Tensor) -> Array:
    """`tensor.numpy()`."""
    fake, externals = tensor.fake, interp.externals
    elsewhere = externals.explores or externals.runs_later or externals.no_side_effects or interp.tape.ambient.inference
    if elsewhere or "numpy" not in sys.modules or fake.requires_grad or not on_host(fake.device):
        raise needed("Tensor.numpy")
    return Array(_numpy().ndarray, tensor=_of_numpy(tensor))


def call_method(interp: Interpreter, real: Any, args: Values, kwargs: Named) -> Value:
    """A method of NumPy's arrays, called with its receiver first."""
    receiver, name = args[0], real.__name__
    if isinstance(receiver, Array) and len(args) == 1 and not kwargs and name in ("item", "tolist"):
        answer = item_of_tensor(interp, receiver.tensor) if name == "item" else listed(interp, receiver.tensor)
        if answer is None:
            raise needed(f"ndarray.{name}")
        return answer
    ours = getattr(_traced().ndarray, name, None)
    if ours is None or "out" in kwargs:
        raise Unsupported("B002", f"ndarray.{name}")
    return on_arrays(interp, real, ours, args, kwargs)


def number_of(interp: Interpreter, value: Value) -> Value:
    """The Python number that PyTorch takes a scalar of NumPy's for, if that is known while capturing; else the value
    as it is. A bool or a complex number it takes for a float."""
    if isinstance(value, Sequence) and value.kind in (tuple, list) and any(map(_is_scalar, value.raw_items)):
        return Sequence(value.kind, [number_of(interp, item) for item in interp.externals.items(value)])
    if not _is_scalar(value):
        return value
    if isinstance(value, Array):
        known = interp.tape.known_item(value.tensor)
    else:
        assert isinstance(value, Object)
        known = value.value.item()
        if value.source is not None:
            value.source.check(("predicate", functools.partial(_is_number, type(value.value), known)))
    return value if known is NotImplemented else Constant(known)


def _is_scalar(value: Any) -> bool:
    if isinstance(value, LazyItem):
        kind: Any = type(value.value)
    elif isinstance(value, Array):
        kind = value.kind
    else:
        kind = type(value.value) if isinstance(value, Object) else None
    if kind is None or kind.__module__ != "numpy" or "numpy" not in sys.modules:
        return False
    return issubclass(kind, (_numpy().floating, _numpy().integer)) and kind is not _numpy().longdouble


def _is_number(kind: Any, known: Any, real: Any) -> bool:
    return type(real) is kind and same_keys((real.item(),), (known,))


def array_call(interp: Interpreter, function: Callable[..., Any], args: Values) -> Value:
    """An operator, or `getattr`, of which an operand is an array."""
    return on_arrays(interp, function, function, args, {})


def on_arrays(interp: Interpreter, theirs: Any, ours: Any, args: Values, kwargs: Named) -> Value:
    """What a function of NumPy's (`theirs`) yields of arrays some of which the graph computes, by `ours`."""
    operands = _Given(interp)
    mine = [operands.of(value) for value in args]
    named = {name: operands.of(value) for name, value in kwargs.items()}
    try:
        with warnings.catch_warnings(), _numpy().errstate(all="ignore"):
            warnings.simplefilter("ignore")
            expected = theirs(*[each for _, each in mine], **{name: each for name, (_, each) in named.items()})
    except Exception as error:
        raise Unsupported("B002", f"NumPy's {_name(theirs)}, which raised {type(error).__name__},") from None
    recorder = Recorder(interp)
    try:
        with recorder:
            actual = ours(*[each for each, _ in mine], **{name: each for name, (each, _) in named.items()})
    except Exception as error:
        stop = recorder.stop or Unsupported("B002", f"NumPy's {_name(theirs)} ({type(error).__name__})")
        raise stop.bare() from None
    operands.refuse_replaced()
    if recorder.stop is not None:
        raise recorder.stop.bare()
    interp.tree.why_not_persist = "NumPy's arrays"
    return operands.result(recorder, actual, expected, _name(theirs))


class _Given:
    """The arguments of one call, each twice: over fake tensors, and as NumPy's own with ones in it."""

    def __init__(self, interp: Interpreter) -> None:
        self._interp = interp
        self._arrays: dict[int, tuple[Array, Any, Any]] = {}

    def of(self, value: Any) -> tuple[Any, Any]:
        value = self._interp.externals.force(value)
        if isinstance(value, Array):
            if id(value) not in self._arrays:
                self._arrays[id(value)] = (value, *self._array(value))
            return self._arrays[id(value)][1:]
        if isinstance(value, Sequence) and value.kind in (tuple, list):
            pairs = [self.of(item) for item in value.items]
            return value.kind(each for each, _ in pairs), value.kind(each for _, each in pairs)
        if isinstance(value, Slice):
            pairs = [self.of(part) for part in (value.start, value.stop, value.step)]
            return slice(*(each for each, _ in pairs)), slice(*(each for _, each in pairs))
        real = self._interp.plain(value)
        if is_a(real, type) and id(real) in _functions():
            return _functions()[id(real)], real
        if is_a(real, _numpy().dtype):
            return _traced().dtype(real.name), real
        return real, real

    def _array(self, value: Array) -> tuple[Any, Any]:
        fake = _of_numpy(value.tensor).fake
        if fake.numel() > _MAX_ELEMENTS:
            raise Unsupported("B002", "NumPy with arrays of more than four million elements")
        self._interp.tape.known_as(value.tensor)
        ones = _numpy().ones(tuple(map(int, fake.shape)), _dtype(fake.dtype))
        return _traced().ndarray(fake), ones if value.kind is _numpy().ndarray else ones[()]

    def refuse_replaced(self) -> None:
        """Refuse a function that gave an array other memory than it had: nobody else who has it would see."""
        if any(ours.tensor is not value.tensor.fake for value, ours, _ in self._arrays.values()):
            raise Unsupported("B005", "an array of NumPy's, in other memory")

    def result(self, recorder: Recorder, actual: Any, expected: Any, name: str) -> Value:
        """The value of a result, if it is what NumPy has."""
        numpy = _numpy()
        same = [value for value, _, ones in self._arrays.values() if ones is expected]
        if same:
            return same[0]
        if type(expected) in (tuple, list) and isinstance(actual, tuple | list) and len(actual) == len(expected):
            items = [self.result(recorder, *each, name) for each in zip(actual, expected, strict=True)]
            return Sequence(type(expected), items)
        if is_a(expected, numpy.dtype) and getattr(actual, "name", None) == expected.name:
            return Constant(expected)
        if type(expected) is numpy.ndarray or is_a(expected, numpy.generic):
            tensor = recorder.value(getattr(actual, "tensor", None))
            like = (tuple(expected.shape), expected.dtype)
            if isinstance(tensor, Tensor) and (tuple(tensor.fake.shape), _dtype(tensor.fake.dtype)) == like:
                return Array(type(expected), tensor=self._in_own_memory(tensor, expected, name))
        elif is_constant(expected) and type(actual) is type(expected) and actual == expected:
            return Constant(expected)
        raise Unsupported("B002", f"NumPy's {name}, which yields something else than torch._numpy's")

    def _in_own_memory(self, tensor: Tensor, expected: Any, name: str) -> Tensor:
        tape, shares = self._interp.tape, False
        for value, _, ones in self._arrays.values():
            shared = is_a(expected, _numpy().ndarray) and _numpy().may_share_memory(expected, ones)
            shares |= shared
            if shared and not tape.memory.is_shared(tensor, value.tensor):
                raise Unsupported("B002", f"NumPy's {name}, which yields a view where torch._numpy's copies")
            if not shared and tape.memory.is_shared(tensor, value.tensor):
                return self._copied(tensor)
        # An inverse transform may yield a conjugate that is still to be computed.
        return self._copied(tensor) if tensor.fake.dtype.is_complex and not shares else tensor

    def _copied(self, tensor: Tensor) -> Tensor:
        copied = self._interp.tensor_call("call_method", "clone", [tensor])
        assert isinstance(copied, Tensor)
        return copied


def _constant(interp: Interpreter, real: Any, args: Values, kwargs: Named) -> Value:
    """What NumPy computes of plain values, now."""
    plain = [interp.plain(value) for value in args]
    named = {name: interp.plain(value) for name, value in kwargs.items()}
    try:
        with warnings.catch_warnings(), _numpy().errstate(all="raise"):
            warnings.simplefilter("error")
            return _wrapped(interp, real(*plain, **named))
    except Unsupported:
        raise
    except Exception as error:  # which Python shall see at its line
        raise Unsupported("B002", f"NumPy's {_name(real)}, which raised {type(error).__name__},") from None


def _wrapped(interp: Interpreter, result: Any) -> Value:
    numpy = _numpy()
    if type(result) in (tuple, list):
        return Sequence(type(result), [_wrapped(interp, each) for each in result])
    if type(result) is not numpy.ndarray and not is_a(result, numpy.generic):
        return interp.wrap_plain(result)
    if result.size > _MAX_CONSTANT:
        raise Unsupported("B002", "NumPy's array of many constants")
    try:
        dtype = torch.from_numpy(numpy.empty(0, result.dtype)).dtype
    except TypeError:
        raise Unsupported("B017", f"NumPy's {result.dtype}") from None
    interp.tree.why_not_persist = "NumPy's arrays"
    settings: Named = {"dtype": Constant(dtype), "device": Constant(HOST)}
    tensor = interp.tensor_call("call_function", torch.tensor, [interp.wrap_plain(result.tolist())], settings)
    if not isinstance(tensor, Tensor) or tuple(tensor.fake.shape) != result.shape:
        raise Unsupported("B017", "NumPy's array without elements")
    return Array(type(result), tensor=tensor)


def tensor_of_array(interp: Interpreter, real: Any, args: Values, kwargs: Named) -> Value:
    """`torch.from_numpy(array)`, which shares its memory, `torch.as_tensor` and `torch.tensor`."""
    array = args[0]
    assert isinstance(array, Array)
    is_array = array.kind is _numpy().ndarray
    if len(args) != 1 or kwargs or interp.tape.ambient.devices or real is torch.asarray:
        raise Unsupported("B002", f"torch.{real.__name__} of an array, with more than that")
    if real is torch.from_numpy and not is_array:
        raise Unsupported("B019", "TypeError: expected np.ndarray")
    shares = real is not torch.tensor and is_array
    return interp.tensor_call("call_method", "detach" if shares else "clone", [array.tensor])


def _of_numpy(tensor: Tensor) -> Tensor:
    """A tensor that an array can be of: of a type that NumPy has, of the host."""
    if tensor.fake.requires_grad or type(tensor) is not Tensor or _dtype(tensor.fake.dtype) is None:
        raise needed("Tensor.numpy")
    return tensor


@functools.cache
def _dtype(dtype: torch.dtype) -> Any:
    try:
        return torch.empty(0, dtype=dtype, device="meta").dtype and _numpy().dtype(str(dtype).removeprefix("torch."))
    except TypeError:
        return None


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", function))


def _numpy() -> Any:
    return sys.modules["numpy"]


def _traced() -> Any:
    _functions()
    return sys.modules["torch._numpy"]
