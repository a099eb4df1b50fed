"""Calls that read or set the state operators depend on: grad mode, autocast, attention's kernels, default device.

torch.set_autocast_enabled("cpu", True)   →   the tape's `Ambient` changes; nodes say so where the next operator is

What is read is guarded as it was when the graph began.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from smelt.base.fast_dataclass import dataclass
from smelt.base.torch_internals import internal
from smelt.capture.interpreter.attributes import attribute_now, store_attribute
from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.model.breaks import Unsupported
from smelt.capture.model.policy import is_library
from smelt.capture.model.values import Constant, Instance, Sequence, Value
from smelt.device.host_library import HOST, on_host
from smelt.ir.nodes.ambient import ATTENTION_GETTERS, ATTENTION_SETTERS, AUTOCAST_DEVICES, Ambient, autocast_nesting

AmbientCall = Callable[[Interpreter, list[Any]], Value]


def _change(interp: Interpreter, **settings: Any) -> Value:
    interp.tape.set_ambient(replace(interp.tape.ambient, **settings))
    return Constant(None)


def _cast(interp: Interpreter, device: Any, position: int) -> Value:
    """What autocast does on a device: the item at a position of its settings."""
    if device in AUTOCAST_DEVICES:
        return Constant(_casts(interp)[AUTOCAST_DEVICES.index(device)][position])
    return Constant(_elsewhere(interp, _CAST_GETTERS[position], device))


_CAST_GETTERS: dict[int, Callable[[str], Any]] = {1: torch.is_autocast_enabled, 2: torch.get_autocast_dtype}


def _elsewhere(interp: Interpreter, function: Callable[[str], Any], device: Any) -> Any:
    """What autocast does on a device that no graph is for: nothing that is captured sets it, so it is relied on."""
    try:
        answer = function(device)
    except (RuntimeError, TypeError) as error:
        raise Unsupported("B002", f"torch.{function.__name__}({device!r})") from error
    interp.tree.process(f"{function.__name__} of {device}", _asking(function, device), answer)
    return answer


@functools.cache
def _asking(function: Callable[[str], Any], device: str) -> Callable[[], Any]:
    return functools.partial(function, device)


def _any_enabled(interp: Interpreter, args: list[Any]) -> Value:
    return Constant(any(enabled for _, enabled, _ in _casts(interp)))


def _is_cached(interp: Interpreter, args: list[Any]) -> Value:
    _casts(interp)
    return Constant(interp.tape.ambient.cached)


def _casts(interp: Interpreter) -> Any:
    """The settings of autocast, relied on."""
    interp.tree.rely_on_autocast()
    return interp.tape.ambient.casts


def _set_cast(interp: Interpreter, device_type: Any, position: int, value: Any) -> Value:
    if device_type not in AUTOCAST_DEVICES:
        if _elsewhere(interp, _CAST_GETTERS[position], device_type) == value:
            return Constant(None)
        raise Unsupported("B002", f"torch.set_autocast({device_type!r})")
    casts, device = list(_casts(interp)), AUTOCAST_DEVICES.index(device_type)
    cast = list(casts[device])
    cast[position] = value
    casts[device] = tuple(cast)
    return _change(interp, casts=tuple(casts))


def _set_enabled(interp: Interpreter, args: list[Any]) -> Value:
    if len(args) != 2:
        raise Unsupported("B002", "torch.set_autocast_enabled without a device")
    return _set_cast(interp, args[0], 1, args[1])


def _set_cached(interp: Interpreter, args: list[Any]) -> Value:
    _casts(interp)
    return _change(interp, cached=args[0])


def _nest(interp: Interpreter, change: int) -> Value:
    interp.tree.process("autocast nesting", autocast_nesting, interp.tree.nesting)
    inside = interp.tape.ambient.nesting + change
    _change(interp, nesting=inside)
    return Constant(inside)


def _forget_casts(interp: Interpreter, args: list[Any]) -> Value:
    interp.tape.forget_casts()
    return Constant(None)


def _grad_mode(interp: Interpreter, args: list[Any]) -> Value:
    interp.tape.rely_on_grad_mode()
    return Constant(interp.tape.ambient.grad)


def _attention(interp: Interpreter) -> Any:
    """Which kernels attention chooses among, relied on."""
    interp.tree.rely_on_attention()
    return interp.tape.ambient.attention or interp.tree.attention


def _set_attention(interp: Interpreter, enabled: tuple[bool, ...], order: tuple[int, ...]) -> Value:
    if not is_library(interp.frames[-1].info.code):
        raise Unsupported("B002", "torch._C._set_sdp_use")  # whose end may be outside of the graph
    wanted = None if (enabled, order) == interp.tree.attention else (enabled, order)
    return _change(interp, attention=wanted)


def _kernel_getter(place: int) -> AmbientCall:
    return lambda interp, args: Constant(_attention(interp)[0][place])


def _kernel_setter(place: int) -> AmbientCall:
    def rule(interp: Interpreter, args: list[Any]) -> Value:
        enabled, order = _attention(interp)
        return _set_attention(interp, (*enabled[:place], bool(args[0]), *enabled[place + 1 :]), order)

    return rule


def _order(interp: Interpreter, args: list[Any]) -> Value:
    return Sequence(list, [Constant(each) for each in _attention(interp)[1]])


def _set_order(interp: Interpreter, args: list[Any]) -> Value:
    enabled, order = _attention(interp)
    if sorted(args[0]) != sorted(order):
        raise Unsupported("B002", "torch._C._set_sdp_priority_order")  # which PyTorch refuses, or pads
    return _set_attention(interp, enabled, tuple(args[0]))


_ATTENTION_CALLS: dict[Any, AmbientCall] = {
    **{function: _kernel_getter(place) for place, function in enumerate(ATTENTION_GETTERS)},
    **{function: _kernel_setter(place) for place, function in enumerate(ATTENTION_SETTERS)},
    getattr(torch._C, "_get_sdp_priority_order", None): _order,
    getattr(torch._C, "_set_sdp_priority_order", None): _set_order,
}

AMBIENT_CALLS: dict[Any, AmbientCall] = {
    **_ATTENTION_CALLS,
    torch.is_autocast_enabled: lambda interp, args: _cast(interp, args[0] if args else "cuda", 1),
    torch.get_autocast_dtype: lambda interp, args: _cast(interp, args[0], 2),
    internal("_C._is_any_autocast_enabled"): _any_enabled,
    torch.is_autocast_cache_enabled: _is_cached,
    torch.set_autocast_enabled: _set_enabled,
    torch.set_autocast_dtype: lambda interp, args: _set_cast(interp, args[0], 2, args[1]),
    torch.set_autocast_cache_enabled: _set_cached,
    torch.autocast_increment_nesting: lambda interp, args: _nest(interp, 1),
    torch.autocast_decrement_nesting: lambda interp, args: _nest(interp, -1),
    torch.clear_autocast_cache: _forget_casts,
    torch._C._set_grad_enabled: lambda interp, args: _change(interp, grad=bool(args[0])),
    torch.is_grad_enabled: _grad_mode,
    # Capture itself runs outside that mode.
    torch.is_inference_mode_enabled: lambda interp, args: Constant(interp.tape.ambient.inference),
}


@dataclass(slots=True, eq=False)
class Before(Value):
    """What an inference mode will put back. No object stands for it: the graph cannot end inside such a block."""

    ambient: Ambient


def _enter_inference(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    manager = args[0]
    if interp.externals.explores:
        return _enter_without_gradients(interp, manager)
    mode = manager.attributes["mode"] if isinstance(manager, Instance) else None
    entry = interp.tree.inference_mode
    if not interp.generators or not isinstance(mode, Constant) or type(mode.value) is not bool:
        raise Unsupported("B013", "torch.inference_mode")
    if entry and not mode.value:
        raise Unsupported("B013", "torch.inference_mode(False) in inference mode")
    assert isinstance(manager, Instance)
    interp.entered_inference = True
    interp.before_mutation(manager)
    manager.attributes[_CONTEXT] = Before(interp.tape.ambient)
    return _change(interp, inference=mode.value, grad=not mode.value)


def _enter_without_gradients(interp: Interpreter, manager: Value) -> Value:
    """For export, which keeps no gradients between states, an inference mode is one without gradients."""
    mode = interp.plain(attribute_now(interp, manager, "mode"))
    store_attribute(interp, manager, _CONTEXT, Constant(interp.tape.ambient.grad))
    return _change(interp, grad=interp.tape.ambient.grad and not mode)


def _leave_inference(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    manager = args[0]
    if interp.externals.explores:
        return _change(interp, grad=bool(interp.plain(attribute_now(interp, manager, _CONTEXT))))
    before = manager.attributes.get(_CONTEXT) if isinstance(manager, Instance) else None
    if not isinstance(before, Before):
        raise Unsupported("B013", "torch.inference_mode")
    return _change(interp, inference=before.ambient.inference, grad=before.ambient.grad)


def _leave_device(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    devices = interp.tape.ambient.devices
    if not devices or not isinstance(args[0], Constant) or args[0].value != devices[-1]:
        raise Unsupported("B013", "torch.device")
    return _change(interp, devices=devices[:-1])


def _default_device(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    devices = interp.tape.ambient.devices
    device = devices[-1] if devices else HOST
    if device.index is not None or on_host(device) or device.type == "meta":
        return Constant(device)
    if device.type != "cuda" or not torch.cuda.is_available():
        raise Unsupported("B002", "torch.get_default_device")  # which one of them, only PyTorch knows
    return Constant(torch.device("cuda", interp.tape.current_device("cuda")))


_CONTEXT = "_inference_mode_context"

BLOCKS: dict[Any, Callable[[Interpreter, list[Value], dict[str, Value]], Value]] = {
    torch.inference_mode.__enter__: _enter_inference,
    torch.inference_mode.__exit__: _leave_inference,
    torch.device.__exit__: _leave_device,
    torch.get_default_device: _default_device,
}
