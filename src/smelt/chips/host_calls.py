"""Operators that the host computes for a chip: arguments are copied there, results and what is written copied back."""

from collections.abc import Mapping
from typing import Any

import torch

from smelt.base import events
from smelt.base.errors import SmeltError, warn
from smelt.base.options import config
from smelt.chips.runtime import ChipDevice
from smelt.device.host_library import HOST
from smelt.dispatch import tensors
from smelt.dispatch.real_call import RealCall
from smelt.dispatch.signatures import Signature
from smelt.dispatch.tensors import Layout, layout_of
from smelt.symbolic.shapes import is_dense

aten = torch.ops.aten

_FILLING = frozenset({
    aten.bernoulli_, aten.uniform_, aten.normal_, aten.random_, aten.exponential_, aten.geometric_, aten.cauchy_,
    aten.log_normal_,
})  # fmt: skip
"""Operators that write random numbers over their first argument, whatever was there."""


class HostCalls:
    """Calls on copies of a chip's tensors."""

    def __init__(self, device: ChipDevice) -> None:
        self._device = device
        self.fallbacks: dict[str, int] = {}  # by operator, how often

    def fall_back(self, known: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any], reason: str) -> Any:
        """For want of a kernel: counted, told, or refused."""
        name = str(known.operator)
        if not config.chip_fallback:
            raise SmeltError("SM072", f"{name} has no kernel on {self._device.name!r}: {reason}")
        results, copied = self._call(known, args, kwargs)
        events.count("chip_fallbacks")
        self.fallbacks[name] = self.fallbacks.get(name, 0) + 1
        text = f"{name} on {self._device.name!r} is computed by the host, which copies {copied} bytes: {reason}"
        events.emit("fallback", text)
        if self.fallbacks[name] == 1:
            warn(f"SM072: {text}. smelt.counters['chip_fallbacks'] counts such calls")
        return results

    def call(self, known: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return self._call(known, args, kwargs)[0]

    def _call(self, known: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, int]:
        fills = known.operator.overloadpacket in _FILLING
        call = _Call(self._device, args[0] if fills else None)
        return call.run(known, args, kwargs), call.copied


class _Call(RealCall):
    """`filled`: the argument that the operator fills without reading it."""

    def __init__(self, device: ChipDevice, filled: torch.Tensor | None) -> None:
        super().__init__(device.name, HOST)
        self._device, self._filled = device, filled
        self.copied = 0

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor is self._filled and is_dense(tensor.shape, tensor.stride()):
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=HOST)
        self.copied += tensor.numel() * tensor.element_size()
        return self._device.to_host(tensor)

    def write_back(self, known: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """What the operator has written, where it has written it; what has another shape now gets new memory."""
        for each in known.written_arguments(args, kwargs):
            for ours, host, layout_before in self.pairs:
                if ours is each:
                    self._write(ours, host, layout_before)

    def _write(self, ours: torch.Tensor, host: torch.Tensor, layout_before: Layout) -> None:
        self.copied += host.numel() * host.element_size()
        if layout_of(host) != layout_before:
            fresh = self._device.to_chip(_dense(host.resolve_conj().resolve_neg()))
            tensors.set_layout(ours, fresh.untyped_storage(), 0, fresh.shape, fresh.stride())
        else:
            self._device.write(ours, host)  # with what is between its elements, as it was

    def offset(self, ours: torch.Tensor, view: torch.Tensor) -> int:
        first = int(ours.storage_offset()) * ours.element_size()
        return first // view.element_size() + int(view.storage_offset())

    def bring(self, real: torch.Tensor) -> torch.Tensor:
        self.copied += real.numel() * real.element_size()
        return self._device.to_chip(_dense(real))


def _dense(host: torch.Tensor) -> torch.Tensor:
    size = tensors.bytes_of(host.shape, host.stride(), 0, host.dtype)
    if size == host.numel() * host.element_size():
        return host
    return host.clone(memory_format=torch.contiguous_format)
