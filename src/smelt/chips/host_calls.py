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
from smelt.dispatch.tensors import layout_of
from smelt.lazy.signatures import Signature
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
        call = _Call(self._device)
        fills = known.operator.overloadpacket in _FILLING
        host_args = tuple(call.host(each, fills and not place) for place, each in enumerate(args))
        host_kwargs = {name: call.host(each) for name, each in kwargs.items()}
        if known.takes_device and (kwargs.get("device") is not None or not call.copies):
            host_kwargs["device"] = HOST
        with torch._C._InferenceMode(False), torch._C.DisableTorchFunction(), torch.no_grad():
            results = known.operator(*host_args, **host_kwargs)
            call.write_back(set(known.written), known.names, args, kwargs)
            returned = call.brought(results)
        return returned, call.copied


class _Call:
    """The arguments of one call on the host, and the way back."""

    def __init__(self, device: ChipDevice) -> None:
        self._device = device
        self.copies: list[tuple[torch.Tensor, torch.Tensor, Any]] = []  # the chip's, the host's, the layout that had
        self.copied = 0

    def host(self, value: Any, is_filled: bool = False) -> Any:
        """`is_filled`: the operator writes all of it, and reads nothing."""
        if isinstance(value, tuple | list):
            return type(value)([self.host(item) for item in value])
        if not self._device.is_ours(value):
            return value
        for known, copy, _ in self.copies:
            if known is value:
                return copy
        if is_filled and is_dense(value.shape, value.stride()):
            copy_on_host = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=HOST)
        else:
            copy_on_host = self._device.to_host(value)
            self.copied += copy_on_host.numel() * copy_on_host.element_size()
        self.copies.append((value, copy_on_host, layout_of(copy_on_host)))
        return copy_on_host

    def write_back(
        self, written: set[str], names: tuple[str, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """What the operator has written, where it has written it; what has another shape now gets new memory."""
        for name, value in (*zip(names, args, strict=False), *kwargs.items()):
            if name not in written:
                continue
            for each in value if isinstance(value, tuple | list) else (value,):
                for ours, host, had in self.copies:
                    if ours is each:
                        self._write(ours, host, had)

    def _write(self, ours: torch.Tensor, host: torch.Tensor, had: Any) -> None:
        self.copied += host.numel() * host.element_size()
        if layout_of(host) != had:
            fresh = self._device.to_chip(_dense(host.resolve_conj().resolve_neg()))
            tensors.set_layout(ours, fresh.untyped_storage(), 0, fresh.shape, fresh.stride())
        else:
            if ours.is_conj() or ours.is_neg():
                raise NotImplementedError("a conjugated or negated view of a chip's memory is not written")
            self._device.write(ours, host)  # with what is between its elements, as it was

    def brought(self, value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)([self.brought(item) for item in value])
        if not isinstance(value, torch.Tensor):
            return value
        if value.layout is not torch.strided:
            raise NotImplementedError(f"the device {self._device.name!r} has no tensors of layout {value.layout}")
        for ours, host, _ in self.copies:
            if host is value:
                return ours
        for ours, host, _ in self.copies:
            if value.numel() and host.untyped_storage()._cdata == value.untyped_storage()._cdata:
                size = value.element_size()
                first = int(ours.storage_offset()) * ours.element_size() + int(value.storage_offset()) * size
                return tensors.view_as(ours, value.dtype, value.shape, value.stride(), first // size)
        on_chip = self._device.to_chip(_dense(value.resolve_conj().resolve_neg()))
        self.copied += value.numel() * value.element_size()
        return on_chip


def _dense(host: torch.Tensor) -> torch.Tensor:
    size = tensors.bytes_of(host.shape, host.stride(), 0, host.dtype)
    if size == host.numel() * host.element_size():
        return host
    return host.clone(memory_format=torch.contiguous_format)
