"""Calls that do not wait: random numbers, which are drawn when eager draws them, and what needs the numbers of tensors.

The operator runs on real tensors; results come back as lazy ones that have their numbers already.
"""

from collections.abc import Mapping
from typing import Any

import torch

from smelt.dispatch import tensors
from smelt.dispatch.tensors import Layout, layout_of, memory_of
from smelt.lazy.memory import Memory, layout_of_real
from smelt.lazy.recorder import Recorder
from smelt.lazy.runs import Runs
from smelt.lazy.signatures import Signature, signature
from smelt.lazy.timeline import Timeline
from smelt.meta.devices import result_device, tensors_in


class AtOnce:
    """Runs single operators on the real device."""

    def __init__(self, recorder: Recorder, runs: Runs, timeline: Timeline) -> None:
        self._recorder = recorder
        self._runs = runs
        self._timeline = timeline

    # Memory of one tensor.

    def real(self, tensor: torch.Tensor, reason: str) -> torch.Tensor:
        """The numbers of a lazy tensor, on the real device; it must not be written."""
        memory: Memory = memory_of(tensor)
        if memory.serial == self._recorder.now.serial:
            self._runs.run(reason)
        if memory.lost is not None:
            raise memory.lost
        self._stand_up(memory)
        with torch._C._InferenceMode(False), torch.no_grad():
            found = memory.view(layout_of(tensor))
            if tensor.is_conj():
                found = found.conj()
            return found._neg_view() if tensor.is_neg() else found

    def _stand_up(self, memory: Memory) -> None:
        """Numbers for memory that nobody has written."""
        if memory.real is None:
            shape, stride, _, dtype = memory.layout
            with torch._C._InferenceMode(False), torch.no_grad():
                memory.real = torch.empty_strided(shape, stride, dtype=dtype, device=self._recorder.real_device)

    def is_free(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is all of its memory, which nobody has written or read."""
        memory: Memory = memory_of(tensor)
        fresh = memory.is_empty and memory.serial != self._recorder.now.serial and memory.lost is None
        return fresh and layout_of(tensor) == memory.layout

    def fill(self, tensor: torch.Tensor, real: torch.Tensor) -> None:
        """Give a free tensor its numbers."""
        memory: Memory = memory_of(tensor)
        self._stand_up(memory)
        assert memory.real is not None
        with torch._C._InferenceMode(False), torch.no_grad():
            if real.stride() == memory.real.stride() and real.dtype == memory.real.dtype:
                memory.real = real
            else:
                memory.real.copy_(real)

    # Operators.

    def draw(self, known: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Random numbers. A tensor that nobody has written yet is filled; to others a copy is recorded."""
        written = args[0] if args and isinstance(args[0], torch.Tensor) and known.written == (known.names[0],) else None
        others = tensors_in((*args[1:], *kwargs.values()))
        if written is None or others or not self._recorder.is_ours(written):
            return self.call(known, args, kwargs, f"{known.operator} draws random numbers")
        if self.is_free(written):
            self._stand_up(memory_of(written))
            return self.call(known, args, kwargs, "")
        shape, stride, _, dtype = layout_of(written)
        with torch._C._InferenceMode(False), torch._C.DisableTorchFunction(), torch.no_grad():
            real = torch.empty_strided(shape, stride, dtype=dtype, device=self._recorder.real_device)
            known.operator(real, *args[1:], **kwargs)
        self._recorder.record(signature(torch.ops.aten.copy_.default), (written, self._recorder.wrap(real)), {})
        return written

    def dropout_mask(self, layout: Layout, p: float) -> torch.Tensor:
        """What dropout keeps of a tensor laid out so: what a thread of its kernel draws depends on that."""
        shape, stride, offset, dtype = layout
        with torch._C._InferenceMode(False), torch._C.DisableTorchFunction(), torch.no_grad():
            count = tensors.bytes_of(shape, stride, offset, dtype) // dtype.itemsize
            like = torch.empty(count, dtype=dtype, device=self._recorder.real_device).as_strided(shape, stride, offset)
            return torch.native_dropout(like, p, True)[1]

    def fall_back(self, known: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any], reason: str) -> Any:
        """What cannot be recorded. An error is PyTorch's own, and no fallback."""
        found = self.call(known, args, kwargs, f"{known.operator} runs at once")
        self._timeline.fall_back(str(known.operator), reason)
        return found

    def call(self, known: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any], reason: str) -> Any:
        """Run an operator on real tensors, now."""
        foreign = [each for each in tensors_in((*args, *kwargs.values())) if not self._recorder.is_ours(each)]
        if foreign:
            result_device(known.operator, args, {name: value for name, value in kwargs.items() if name != "device"})
        run = _Call(self, self._recorder, reason)
        real_args = run.real(args)
        real_kwargs = {name: run.real(value) for name, value in kwargs.items()}
        if known.takes_device and (kwargs.get("device") is not None or not run.given):
            real_kwargs["device"] = self._recorder.real_device
        with torch._C._InferenceMode(False), torch._C.DisableTorchFunction(), torch.no_grad():
            found = known.operator(*real_args, **real_kwargs)
            run.take_layouts()
            return run.wrapped(found)


class _Call:
    """The arguments of one call on real tensors, and the way back."""

    def __init__(self, at_once: AtOnce, recorder: Recorder, reason: str) -> None:
        self._at_once = at_once
        self._recorder = recorder
        self._reason = reason
        self.given: list[tuple[torch.Tensor, torch.Tensor, Any]] = []  # lazy, real, the layout that the real one had

    def real(self, value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)([self.real(item) for item in value])
        if not self._recorder.is_ours(value):
            return value
        for lazy, real, _ in self.given:
            if lazy is value:  # PyTorch asks whether what is written is an operand: `add(a, b, out=a)`
                return real
        found = self._at_once.real(value, self._reason)
        if found is memory_of(value).real:
            found = found.view_as(found)  # the operator may change its layout
        self.given.append((value, found, layout_of(found)))
        return found

    def take_layouts(self) -> None:
        """What the operator has given another shape, as `resize_` and `out=` do."""
        for lazy, real, had in self.given:
            if layout_of(real) == had:
                continue
            storage = real.untyped_storage()
            whole = torch.empty(0, dtype=real.dtype, device=real.device).set_(storage)
            memory: Memory = memory_of(lazy)
            if memory.real is None or storage._cdata != memory.real.untyped_storage()._cdata:
                memory = Memory(layout_of_real(whole), whole)
                fresh = self._recorder.new(memory.layout, memory)
                held = fresh.untyped_storage()
            else:
                memory.layout, memory.real, held = layout_of_real(whole), whole, lazy.untyped_storage()
            offset: Any = real.storage_offset()
            tensors.set_layout(lazy, held, offset, real.shape, real.stride())

    def wrapped(self, value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)([self.wrapped(item) for item in value])
        if not isinstance(value, torch.Tensor):
            return value
        if (kind := _strange_kind(value)) is not None:
            raise NotImplementedError(f"the device {self._recorder.device_type!r} has no {kind}")
        for lazy, real, _ in self.given:
            if real is value:
                return lazy
        for lazy, real, _ in self.given:
            if value.numel() and real.untyped_storage()._cdata == value.untyped_storage()._cdata:
                base: Any = memory_of(lazy).real
                offset: Any = value.storage_offset() - base.storage_offset()
                return tensors.view_as(lazy, value.dtype, value.shape, value.stride(), offset)
        if value.is_conj() or value.is_neg():
            value = value.resolve_conj().resolve_neg()
        reach = tensors.bytes_of(value.shape, value.stride(), 0, value.dtype)
        if value.storage_offset() or value.untyped_storage().nbytes() != reach:
            value = value.clone()
        return self._recorder.wrap(value)


def _strange_kind(tensor: torch.Tensor) -> str | None:
    """What a tensor is that a storage and strides do not describe."""
    if tensor.is_nested:
        return "nested tensors"
    if tensor.is_quantized:
        return "quantized tensors"
    return None if tensor.layout is torch.strided else f"tensors of layout {tensor.layout}"
