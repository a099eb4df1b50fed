"""Calls that do not wait: random numbers, which are drawn when eager draws them, and what needs the numbers of tensors.

The operator runs on real tensors; results come back as lazy ones that have their numbers already.
"""

from collections.abc import Mapping
from typing import Any

import torch

from smelt.dispatch import tensors
from smelt.dispatch.real_call import RealCall
from smelt.dispatch.signatures import Signature, signature
from smelt.dispatch.tensors import Layout, layout_of, memory_of
from smelt.lazy.memory import Memory, layout_of_real, view_of
from smelt.lazy.recorder import Recorder
from smelt.lazy.runs import Runs
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
            view = view_of(memory, layout_of(tensor))
            if tensor.is_conj():
                view = view.conj()
            return view._neg_view() if tensor.is_neg() else view

    def _stand_up(self, memory: Memory) -> None:
        """Numbers for memory that nobody has written."""
        if memory.real is None:
            shape, stride, _, dtype = memory.layout
            with torch._C._InferenceMode(False), torch.no_grad():
                memory.real = torch.empty_strided(shape, stride, dtype=dtype, device=self._recorder.real_device)

    def is_free(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is all of its memory, which nobody has written or read."""
        memory: Memory = memory_of(tensor)
        fresh = memory.real is None and memory.serial != self._recorder.now.serial and memory.lost is None
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
        results = self.call(known, args, kwargs, f"{known.operator} runs immediately")
        self._timeline.fall_back(str(known.operator), reason)
        return results

    def call(self, known: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any], reason: str) -> Any:
        """Run an operator on real tensors, now."""
        foreign = [each for each in tensors_in((*args, *kwargs.values())) if not self._recorder.is_ours(each)]
        if foreign:
            result_device(known.operator, args, {name: value for name, value in kwargs.items() if name != "device"})
        return _Call(self, self._recorder, reason).run(known, args, kwargs)


class _Call(RealCall):
    def __init__(self, at_once: AtOnce, recorder: Recorder, reason: str) -> None:
        super().__init__(recorder.device_type, recorder.real_device)
        self._at_once, self._recorder, self._reason = at_once, recorder, reason

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        real = self._at_once.real(tensor, self._reason)
        return real.view_as(real) if real is memory_of(tensor).real else real  # the operator may change its layout

    def write_back(self, known: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Apply changes of shape, by `resize_` and `out=`."""
        for lazy, real, layout_before in self.pairs:
            if layout_of(real) == layout_before:
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

    def offset(self, ours: torch.Tensor, view: torch.Tensor) -> int:
        return int(view.storage_offset()) - int(memory_of(ours).real.storage_offset())

    def bring(self, real: torch.Tensor) -> torch.Tensor:
        reach = tensors.bytes_of(real.shape, real.stride(), 0, real.dtype)
        is_whole = not real.storage_offset() and real.untyped_storage().nbytes() == reach
        return self._recorder.wrap(real if is_whole else real.clone())
