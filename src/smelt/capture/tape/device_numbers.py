"""Devices that are named without a number: which one they mean is written into the graph, and guarded.

    x.to("cuda")                     →   x.to(device("cuda", 1))             where the second GPU is the current one
    x.cuda(non_blocking=True)        →   x.cuda(device("cuda", 1), non_blocking=True)
    torch.zeros(3, device="cuda")    →   torch.zeros(3, device=device("cuda", 1))

What the graph becomes may run where another device is current: a backward runs on a thread of the engine.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from smelt.capture.model.breaks import Unsupported
from smelt.capture.model.values import Constant, Number, Value
from smelt.device.host_library import on_host
from smelt.meta.devices import with_index

Numbering = Callable[[str], int]

_MOVES = ("to", torch.Tensor.to)
_TO_CUDA = ("cuda", torch.Tensor.cuda)


def current_number(kind: str) -> int:
    """Which device of a kind is the current one."""
    try:
        return with_index(torch.device(kind)).index
    except Exception as error:  # CUDA does not start: Python raises it from the program's line
        raise Unsupported("B011", f"torch.{kind}.current_device: {type(error).__name__}: {error}") from error


def numbered(
    target: Any, args: tuple[Value, ...], kwargs: dict[str, Value], current: Numbering
) -> tuple[tuple[Value, ...], dict[str, Value]]:
    """The arguments of a call with every device in full. `current`: what the number of a kind of device is now."""
    if target in _TO_CUDA and _lacks_device(args, kwargs):
        kwargs = {name: value for name, value in kwargs.items() if name != "device"}
        args = (args[0], Constant(torch.device("cuda")), *args[2:])
    if target in _MOVES and len(args) > 1:
        args = (args[0], _in_full(args[1], current, may_name=True), *args[2:])
    else:
        args = tuple([_in_full(value, current, may_name=False) for value in args])
    return args, {name: _in_full(value, current, may_name=name == "device") for name, value in kwargs.items()}


def chosen_kinds(results: Iterable[Any], operands: Sequence[Any], args: Sequence[Value]) -> set[str]:
    """Kinds of devices that results are on though neither an operand is there nor an argument says so: PyTorch chose
    the current one, as for `x.type("torch.cuda.FloatTensor")`."""
    devices = {tensor.device for tensor in results if not on_host(tensor.device)}
    devices = devices.difference(tensor.device for tensor in operands) if devices else devices
    if not devices or any(isinstance(arg, Constant) and _is_numbered(arg) for arg in args):
        return set()
    return {device.type for device in devices if device.index is not None}


def _is_numbered(argument: Constant) -> bool:
    value = argument.known if isinstance(argument, Number) else argument.value
    return isinstance(value, torch.device) or (isinstance(value, str) and ":" in value)


def _lacks_device(args: tuple[Value, ...], kwargs: dict[str, Value]) -> bool:
    device = args[1] if len(args) > 1 else kwargs.get("device")
    return device is None or (isinstance(device, Constant) and device.value is None)


def _in_full(value: Value, current: Numbering, may_name: bool) -> Value:
    """A device with its number; in some places devices go by their names."""
    if not isinstance(value, Constant) or (isinstance(value, Number) and not (may_name and type(value.known) is str)):
        return value  # who looks at a number relies on it
    device = value.value
    if may_name and isinstance(device, str):
        try:
            device = torch.device(device)
        except RuntimeError:
            return value  # the call will say so itself
    if not isinstance(device, torch.device) or device.index is not None or on_host(device) or device.type == "meta":
        return value
    return Constant(torch.device(device.type, current(device.type)))
