"""Answers PyTorch's dispatcher for the lazy device: most calls are recorded, some need numbers, some run at once.

    x + 1                    recorded
    x.item(), x.cpu()        a value is needed: what is recorded runs
    x.normal_()              runs at once: random numbers are drawn when and as eager draws them
    x.nonzero()              what cannot be described without numbers runs at once, on the real device, and is counted
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from smelt import _native
from smelt.device.host_library import HOST
from smelt.dispatch.operators import overload_of
from smelt.dispatch.owner import DeviceOwner
from smelt.dispatch.signatures import recorded_operator, signature
from smelt.dispatch.tensors import layout_of, memory_of
from smelt.ir.graph import GraphCompiler
from smelt.lazy.at_once import AtOnce
from smelt.lazy.describe import Undescribed
from smelt.lazy.lines import Line
from smelt.lazy.memory import Memory
from smelt.lazy.paths.constants import constant_at
from smelt.lazy.paths.programs import exact
from smelt.lazy.real_device import CudaDevice, RealDevice
from smelt.lazy.recorder import Foreign, Recorder
from smelt.lazy.runs import Runs
from smelt.lazy.timeline import LazyExplanation, Timeline
from smelt.lazy.trials import Trial

aten = torch.ops.aten

MOST_OPERATORS = 20_000
"""So many recorded operators run by themselves."""

MOST_BYTES = 8 << 30
"""So many bytes of recorded results run by themselves."""


class LazyOwner(DeviceOwner):
    """Records operators on the device `lazy`, or on a chip's."""

    def __init__(self, name: str, real: RealDevice, compiler: GraphCompiler) -> None:
        super().__init__(name)
        self.timeline = Timeline()
        self.real = real
        self.recorder = Recorder(name, real.device)
        self.recorder.most_bytes = MOST_BYTES
        self.blocks: list[Any] = []  # the `Shadows` of those that record
        self.runs = Runs(self.recorder, real, compiler, self.timeline, self.blocks)
        self.at_once = AtOnce(self.recorder, self.runs, self.timeline)
        self.read = self.at_once.real
        self.open_blocks: list[Any] = []  # those that are entered
        self._trials: dict[Line | None, tuple[Trial, Trial]] = {}  # of a block, and of steps of the loop in it
        self.answers |= {
            aten.resize_.default: self._resize,
            aten.native_batch_norm.default: self._batch_norm,
            aten._efficientzerotensor.default: self._zeros,
        }
        if isinstance(real, CudaDevice):
            self.answers[aten.native_dropout.default] = self._dropout
            self.answers[aten._scaled_dot_product_flash_attention.default] = self._flash_attention
            self.answers[aten._scaled_dot_product_cudnn_attention.default] = self._cudnn_attention

    def call(self, operator: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        with self.recorder.lock, self.real.working():
            return super().call(operator, args, kwargs)

    def compute(self, operator: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        known = signature(operator)
        if known.draws(args, kwargs):
            return self.at_once.draw(known, args, kwargs)
        if not known.returns_tensors:
            return self.at_once.call(known, args, kwargs, f"{operator} needs numbers")
        if known.takes_device and (elsewhere := self.call_elsewhere(operator, args, kwargs)) is not None:
            return elsewhere
        recorder = self.recorder
        try:
            results = recorder.record(known, args, kwargs)
        except (Foreign, Undescribed) as error:
            return self.declined(operator, args, kwargs, error)
        if recorder.now.count >= recorder.most_operators or recorder.now.bytes >= MOST_BYTES:
            self.run_full()
        return results

    # What the kernels in C ask for (`csrc/lazy/kernel.c`).

    def kernel(self, name: str) -> Callable[..., Any]:
        """What PyTorch calls for an operator."""
        return _native.LazyKernel(self.recorder, self, name)

    def find(self, name: str) -> tuple[torch._ops.OpOverload, _native.RecordedOperator | None]:
        """An operator by name, and how it is recorded; None for one that is not simply recorded."""
        operator = overload_of(name)
        known = signature(operator)
        if operator in self.answers or not known.returns_tensors:
            return operator, None
        recorded = recorded_operator(operator)
        return operator, None if known.is_random and not recorded.has_zero else recorded

    def declined(
        self, operator: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any], error: Exception
    ) -> Any:
        """What a call returns that could not be recorded as it came."""
        known = signature(operator)
        with self.real.working():
            if isinstance(error, Foreign):
                args, kwargs = self.recorder.brought(known, args, kwargs)
                return self.compute(operator, args, kwargs)
            return self.at_once.fall_back(known, args, kwargs, str(error))

    def run_full(self) -> None:
        """As much is recorded as may be, or as a loop brings each time."""
        now = self.recorder.now
        ends, recurs = self.runs.loops.ends_here(now)
        with self.real.working():
            if ends:
                self.runs.run("a loop repeats", recurs=recurs)
            elif now.count >= MOST_OPERATORS:
                self.runs.run(f"{MOST_OPERATORS} operators were recorded")
            elif now.bytes >= MOST_BYTES:
                self.runs.run(f"{MOST_BYTES >> 30} GiB of results were recorded")

    def run(self, reason: str) -> None:
        with self.recorder.lock, self.real.working():
            self.runs.run(reason)

    def settle(self, reason: str) -> None:
        """Run what is recorded, and have the numbers where tensors of lazy blocks say that they are."""
        self.run(reason)
        for block in list(self.blocks):
            block.settle(reason)

    def with_default_dtype(self, change: Callable[[], None]) -> None:
        """Change PyTorch's default dtype. What is recorded and compiled until then has the one before."""
        with self.recorder.lock:
            try:
                self.run("the default dtype changes")
                self.runs.programs.worker.wait()
            finally:
                before = torch.get_default_dtype()
                change()
                if (now := torch.get_default_dtype()) != before:
                    self.recorder.default_dtype_changed(before, now)

    def end_step(self) -> None:
        """An optimizer has made its step."""
        if self.recorder.now.count:
            self.run("an optimizer's step")
        self.end_round()

    def end_round(self) -> None:
        """A loop goes on, which may be in a block."""
        if (block := self.open_block()) is not None:
            block.end_step()

    def open_block(self) -> Any:
        """The block that this thread is in."""
        return next((block for block in self.open_blocks if block.is_of_this_thread()), None)

    def trials_at(self, line: Line | None) -> tuple[Trial, Trial]:
        """Of a block that begins there, and of a loop in it."""
        return self._trials.setdefault(line, (Trial(), Trial()))

    @property
    def is_compiling(self) -> bool:
        return self.runs.programs.worker.is_busy

    def forget(self) -> None:
        """Drop what was compiled, and the numbers that were seen."""
        with self.recorder.lock, self.real.working():
            self.runs.run("smelt.reset()")
            self.recorder.forget()
            self.runs.forget()
            self._trials.clear()

    def explain(self) -> LazyExplanation:
        with self.recorder.lock:
            line = self.timeline
            pending = self.recorder.now.count
            kept, programs = tuple(line.runs), self.runs.programs
            counts = (line.count, programs.compiled, dict(line.fallbacks), dict(line.reasons))
            left = {
                f"the block at {line or 'an unknown line'}": trial.reason
                for line, trials in self._trials.items()
                for trial in trials
                if trial.pays is False
            }
            return LazyExplanation(kept, *counts, pending, dict(programs.not_compiled), left)

    # Memory.

    def new(self, shape: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
        return self.recorder.empty((torch.Size(shape), tuple(stride), 0, dtype))

    def _resize(self, tensor: torch.Tensor, size: Any, *, memory_format: Any = None) -> torch.Tensor:
        if tuple(tensor.shape) == tuple(size) and memory_format is None:
            return tensor
        resized: torch.Tensor = self.at_once.call(
            signature(aten.resize_.default), (tensor, size), {"memory_format": memory_format}, "a tensor is resized"
        )
        return resized

    def _item(self, tensor: torch.Tensor) -> Any:
        recorder = self.recorder
        memory: Memory = memory_of(tensor)
        value = memory.find(layout_of(tensor)) if memory.serial == recorder.now.serial else None
        constant = None if value is None else constant_at(recorder.now.step, value)
        if constant is None or tensor.is_conj() or tensor.is_neg():
            return super()._item(tensor)
        numbers = tuple([exact(recorder.now.numbers[place]) for place in constant.places])
        if constant.numbers != numbers:
            constant.result = super()._item(tensor)
            constant.numbers = numbers
        return constant.result

    def _zeros(self, size: Any, **options: Any) -> Any:
        """PyTorch's zeros of forward gradients have no memory: what runs later cannot read them."""
        return self.compute(aten.zeros.default, (size,), options)

    def _batch_norm(
        self, tensor: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
    ) -> Any:
        """Running statistics are written, of which this operator's schema says nothing; that of another one does."""
        writes = training and mean is not None and var is not None
        operator = aten._native_batch_norm_legit.default if writes else aten.native_batch_norm.default
        return self.compute(operator, (tensor, weight, bias, mean, var, training, momentum, eps), {})

    # What a GPU does by kernels of its own.

    def _dropout(self, tensor: torch.Tensor, p: float, train: bool | None) -> Any:
        """The mask is drawn at once, as PyTorch's kernel draws it for such a tensor; the rest is arithmetic."""
        if train is False or not 0.0 < p < 1.0 or not tensor.is_floating_point():
            operator = aten.native_dropout.default
            return self.at_once.call(signature(operator), (tensor, p, train), {}, f"{operator} draws random numbers")
        mask = self.recorder.wrap(self.at_once.dropout_mask(layout_of(tensor), p))
        kept = self.compute(aten.mul.Tensor, (tensor, mask), {})
        return self.compute(aten.mul.Tensor, (kept, _scale(p, tensor.dtype)), {}), mask

    def _flash_attention(self, *args: Any, **kwargs: Any) -> Any:
        return self._attention(aten._scaled_dot_product_flash_attention.default, args, kwargs)

    def _cudnn_attention(self, *args: Any, **kwargs: Any) -> Any:
        return self._attention(aten._scaled_dot_product_cudnn_attention.default, args, kwargs)

    def _attention(self, operator: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Among its results are the most tokens that a sequence has: those of the arguments, as integers."""
        known = signature(operator)
        if known.draws(args, kwargs):
            return self.at_once.draw(known, args, kwargs)
        results = list(self.recorder.record(known, args, kwargs))
        results[4:6] = [args[0].shape[2], args[1].shape[2]]
        return tuple(results)

    # Copies.

    def adopt(self, host: torch.Tensor) -> torch.Tensor:
        with self.real.working():
            return self.recorder.wrap(host.to(self.recorder.real_device))

    def lend(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.real.lend(tensor)

    def copy_in(self, tensor: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        real = aten._to_copy.default(tensor.detach(), device=self.recorder.real_device, **options)
        return self.recorder.wrap(real)

    def fill(self, tensor: torch.Tensor, source: torch.Tensor, non_blocking: bool) -> None:
        real = source.detach().to(self.recorder.real_device, copy=True, non_blocking=non_blocking)
        if self.at_once.is_free(tensor) and real.shape == tensor.shape:
            self.at_once.fill(tensor, real)
        else:
            self.copy_within(tensor, self.recorder.wrap(real))


def _scale(p: float, dtype: torch.dtype) -> float:
    """What kept numbers are multiplied by, as the kernel of a GPU computes it."""
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    return float(1 / torch.tensor(1.0 - p, dtype=torch.float64, device=HOST).to(wide))
