"""Tracing for a device that this process does not have: tensors on the meta device stand for it.

    source = standing_in(source, torch.device("cuda", 0))    inputs on cuda:0 are fake tensors on meta during tracing
    joint = on_device(trace_joint(source, …), cuda:0)        and on cuda:0 in the graph that comes out

PyTorch's autograd asks a device's own code for streams when it meets a tensor of it, and ends the process where there
is none. The meta device is everywhere and computes nothing. What a program sees is the device it asked for (`StandIn`),
and where PyTorch itself chooses operators by device, its choices for that device are made here: dropout, attention,
recurrent layers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

from torch.overrides import TorchFunctionMode

from smelt.autograd.joint.known_masks import without_known_mask
from smelt.autograd.joint.trace_joint import Joint, Pure, TraceSource
from smelt.device.host_library import on_host
from smelt.ir.graph import Traced
from smelt.ir.substitute_sizes import resized
from smelt.ir.tensorspec import set_spec, spec_of
from smelt.meta.recurrent_layers import by_cudnn, would_be_for_cudnn
from tests.absent_device.fused_attention import attention_of

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
else:
    from smelt.base.torch_originals import functional as F
    from smelt.base.torch_originals import pristine as torch

aten = torch.ops.aten
Found = TypeVar("Found", Pure, Joint)

_META = torch.device("meta")


def is_here(device: torch.device) -> bool:
    """Whether this process can have tensors on a device."""
    if on_host(device) or device.type == "meta":
        return True
    backend = getattr(torch, device.type, None)
    return backend is not None and backend.is_available() and (device.index or 0) < backend.device_count()


def standing_in(source: TraceSource, device: torch.device, target: str = "") -> TraceSource:
    """The same to be traced with the meta device in the place of `device`. `target`: the kind of chip it is, which
    PyTorch chooses some operators by."""
    if any(spec.device.type == "meta" for spec in source.specs):
        raise ValueError("inputs on the meta device, which stands for another")

    def call(inputs: Sequence[Any], constants: Mapping[str, Any]) -> list[Any]:
        with StandIn(device, target):
            return source.call(inputs, constants)

    specs = tuple(replace(spec, device=_META) if spec.device == device else spec for spec in source.specs)
    return replace(source, specs=specs, call=call)


def on_device(traced_graph: Found, device: torch.device) -> Found:
    """What was traced so, on the device itself."""
    _place(traced_graph.traced, device)
    named = tuple(str(device) if name == "meta" else name for name in traced_graph.plan.random)
    plan = replace(resized(traced_graph.plan, lambda _: device, _is_stand_in), random=named)
    return replace(traced_graph, plan=plan)


def _place(traced: Traced, device: torch.device) -> None:
    for node in traced.graph.nodes:
        set_spec(node, resized(spec_of(node), lambda _: device, _is_stand_in))
        node.args = resized(node.args, lambda _: device, _is_stand_in)
        node.kwargs = resized(node.kwargs, lambda _: device, _is_stand_in)


def _is_stand_in(value: Any) -> bool:
    return isinstance(value, torch.device) and value.type == "meta"


class StandIn(TorchFunctionMode):
    """While this is on, tensors on the meta device say that they are on `device`, and asking for that device means
    meta."""

    def __init__(self, device: torch.device, target: str = "") -> None:
        super().__init__()
        self._device, self._target = device, target

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        asked = _ASKED.get(func)
        if asked is not None and args[0].is_meta:
            return asked(self._device)
        if func is torch.Tensor.cuda and self._device.type == "cuda":
            return args[0].to(_META)
        args = [self._stand_in(value, func in _TAKE_DEVICES) for value in args]
        kwargs = {name: self._stand_in(value, name == "device") for name, value in kwargs.items()}
        if func is F.multi_head_attention_forward:
            with self:
                return _body(func)(*args, **kwargs)
        chosen = _CHOSEN.get(func) if self._device.type == "cuda" else None
        result = NotImplemented if chosen is None else chosen(self._target, *args, **kwargs)
        if result is NotImplemented and self._device.type == "cuda":
            result = by_cudnn(func, args, kwargs, _is_for_cudnn)
        return func(*args, **kwargs) if result is NotImplemented else result

    def _stand_in(self, value: Any, may_name: bool) -> Any:
        """Meta for the device, which in some places goes by its name."""
        if isinstance(value, torch.device) or (may_name and isinstance(value, str)):
            meant = torch.device(value)
            same = meant.type == self._device.type and meant.index in (None, self._device.index)
            return _META if same else value
        return value


@cache
def _body(function: Any) -> Callable[..., Any]:
    """A function of PyTorch's, written in Python, that is not handed to modes as a whole: they see what it calls."""
    handed_on = {name: _is_handed_on for name in function.__globals__ if name.startswith("has_torch_function")}
    names = {**function.__globals__, **handed_on}
    body = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    body.__kwdefaults__ = function.__kwdefaults__
    return body


def _is_handed_on(*_args: Any) -> bool:
    return False


# What a program may ask of a tensor's device.
_ASKED: dict[Any, Callable[[torch.device], Any]] = {
    torch.Tensor.device.__get__: lambda device: device,
    torch.Tensor.is_cuda.__get__: lambda device: device.type == "cuda",  # type: ignore[attr-defined]
    torch.Tensor.is_meta.__get__: lambda device: False,  # type: ignore[attr-defined]
    torch.Tensor.get_device: lambda device: device.index or 0,
}
_TAKE_DEVICES = frozenset({torch.Tensor.to})


def _dropout(target: str, input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """One kernel that draws and multiplies, whose random numbers only CUDA knows."""
    if inplace or not input.is_meta or not training or not 0 < p < 1 or not input.numel():
        return NotImplemented
    return aten.native_dropout.default(input, p, True)[0]


def _torch_dropout(target: str, input: torch.Tensor, p: float, train: bool) -> Any:
    return _dropout(target, input, p, train)


def _attention(
    target: str,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    if not query.is_meta:
        return NotImplemented
    attn_mask, is_causal = without_known_mask(query, key, attn_mask, is_causal)
    return attention_of(target, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def _is_for_cudnn(input: torch.Tensor) -> bool:
    return input.is_meta and would_be_for_cudnn(input)


# Functions in which PyTorch chooses operators by device, as it chooses them on CUDA.
_CHOSEN: dict[Any, Callable[..., Any]] = {
    F.dropout: _dropout,
    torch.dropout: _torch_dropout,
    F.scaled_dot_product_attention: _attention,
}
