"""Operators that PyTorch decomposes by device, decomposed for our device as for the real one.

    scaled_dot_product_attention(q, k, v)   →   _scaled_dot_product_flash_attention_for_cpu(q, k, v)[0]

For an unknown device, PyTorch decomposes attention into matmuls and a softmax. Fake tensors on the real device show
which operators it calls there, once for each kind of arguments. These are then called on lazy tensors, under autograd.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from smelt.ir.tensorspec import TensorSpec
from smelt.lazy.recorder import Recorder
from smelt.meta import fake_tensor

aten = torch.ops.aten

_KEYS = ("AutogradPrivateUse1", "PrivateUse1")  # the second in inference mode
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_MOST = 1000
"""So many kinds of arguments are remembered."""


class Composites:
    """What calls of such operators consist of."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._known: dict[Any, Calls | None] = {}

    def register(self) -> list[Any]:
        """Register the decompositions. They end when the returned registrations die."""
        library: Any = torch.library.Library  # untyped
        aten_library = library("aten", "IMPL")
        for operator in (aten.scaled_dot_product_attention.default,):
            for key in _KEYS:
                aten_library.impl(operator._schema.name.partition("::")[2], self._kernel(operator), key)
        return [aten_library]

    def _kernel(self, operator: torch._ops.OpOverload) -> Callable[..., Any]:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            values = (*args, *kwargs.values())
            tensors = _tensors(values)
            calls = self._calls(operator, args, kwargs, values, tensors)
            return operator._op_dk(_COMPOSITE, *args, **kwargs) if calls is None else calls(tensors)

        return kernel

    def _calls(
        self,
        operator: torch._ops.OpOverload,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        values: tuple[Any, ...],
        tensors: list[torch.Tensor],
    ) -> "Calls | None":
        """What a call consists of on the real device; None if it cannot be asked for."""
        device = self._recorder.device_type
        if any(tensor.device.type != device for tensor in tensors):
            return None
        key = (operator, tuple(map(_kind, values)), tuple(kwargs), torch.is_grad_enabled(), _settings())
        if key not in self._known:
            if len(self._known) >= _MOST:
                self._known.clear()
            graph = self._traced(operator, args, kwargs)
            self._known[key] = None if graph is None else Calls(graph, self._recorder)
        return self._known[key]

    def _traced(self, operator: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        writer = fake_tensor.Recorder()

        def stand_in(value: Any) -> Any:
            return writer.placeholder("given", self._spec(value)) if isinstance(value, torch.Tensor) else value

        try:
            with torch._C._InferenceMode(False), torch._C.DisableTorchFunction(), writer:
                named = {name: stand_in(value) for name, value in kwargs.items()}
                result = operator(*map(stand_in, args), **named)
            writer.output([result])
        except Exception:  # the call itself raises in PyTorch's words
            return None
        return None if writer.constants else writer.graph

    def _spec(self, tensor: torch.Tensor) -> TensorSpec:
        spec = TensorSpec.of(tensor)
        real = self._recorder.real_device
        return TensorSpec(spec.shape, spec.stride, spec.dtype, real, spec.offset, requires_grad=spec.requires_grad)


class Calls:
    """The operators of a graph, called on lazy tensors. Values are numbered: tensors given first, then each result."""

    def __init__(self, graph: fx.Graph, recorder: Recorder) -> None:
        numbers: dict[fx.Node, int] = {}
        self._steps: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], tuple[Any, ...]]] = []
        for node in graph.nodes:
            if node.op == "output":
                self._result = numbers[node.args[0][0]]
                continue
            if node.op != "placeholder":
                kwargs = dict(node.kwargs)
                if kwargs.get("device") == recorder.real_device:
                    kwargs["device"] = recorder.device
                held = [(key, value) for key, value in (*enumerate(node.args), *kwargs.items()) if _has_node(value)]
                self._steps.append((node.target, node.args, kwargs, tuple(held)))
            numbers[node] = len(numbers)
        self._numbers = numbers

    def __call__(self, tensors: list[torch.Tensor]) -> Any:
        values: list[Any] = list(tensors)
        for target, args, kwargs, held in self._steps:
            positional, named = list(args), dict(kwargs)
            for key, value in held:
                resolved = self._resolved(value, values)
                if type(key) is int:
                    positional[key] = resolved
                else:
                    named[key] = resolved
            values.append(target(*positional, **named))
        return values[self._result]

    def _resolved(self, value: Any, values: list[Any]) -> Any:
        if isinstance(value, fx.Node):
            return values[self._numbers[value]]
        return fx.map_arg(value, lambda node: values[self._numbers[node]])


def _has_node(value: Any) -> bool:
    nodes: list[fx.Node] = []
    fx.map_arg(value, nodes.append)
    return bool(nodes)


def _settings() -> Any:
    """What PyTorch chooses kernels of attention by, beside its arguments."""
    c = torch._C
    enabled = (c._get_flash_sdp_enabled(), c._get_mem_efficient_sdp_enabled(), c._get_math_sdp_enabled())
    priority = tuple(map(int, c._get_sdp_priority_order()))
    return enabled, c._get_cudnn_sdp_enabled(), priority, torch.are_deterministic_algorithms_enabled()


def _kind(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        bits = value.requires_grad, value.is_conj(), value.is_neg()
        return value.shape, value.stride(), value.storage_offset(), value.dtype, bits
    return type(value), value


def _tensors(values: tuple[Any, ...]) -> list[torch.Tensor]:
    return [value for value in values if isinstance(value, torch.Tensor)]
