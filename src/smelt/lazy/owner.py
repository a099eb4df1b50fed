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
from smelt.dispatch import tensors
from smelt.dispatch.device_operators import device_operators
from smelt.dispatch.module import check_index
from smelt.dispatch.operators import overload_of
from smelt.dispatch.tensors import layout_of
from smelt.ir.graph import GraphCompiler
from smelt.lazy.at_once import AtOnce
from smelt.lazy.describe import Undescribed
from smelt.lazy.lines import Line
from smelt.lazy.real_device import CudaDevice, RealDevice
from smelt.lazy.recorder import Foreign, Recorder
from smelt.lazy.runs import Runs
from smelt.lazy.signatures import recorded_operator, signature
from smelt.lazy.timeline import LazyExplanation, Timeline
from smelt.lazy.trials import Trial

aten = torch.ops.aten

MOST_OPERATORS = 20_000
"""So many recorded operators run by themselves."""

MOST_BYTES = 8 << 30
"""So many bytes of recorded results run by themselves."""

Answer = Callable[..., Any]


class LazyOwner:
    """Owner of the device `lazy` (`smelt.dispatch.operators.Owner`)."""

    def __init__(self, name: str, real: RealDevice, compiler: GraphCompiler) -> None:
        self.timeline = Timeline()
        self.real = real
        self.recorder = Recorder(name, real.device)
        self.recorder.most_bytes = MOST_BYTES
        self.runs = Runs(self.recorder, real, compiler, self.timeline)
        self.at_once = AtOnce(self.recorder, self.runs, self.timeline)
        self.blocks: list[Any] = []  # the `Shadows` of those that record
        self.open_blocks: list[Any] = []  # those that are entered
        self._trials: dict[Line | None, tuple[Trial, Trial]] = {}  # of a block, and of steps of the loop in it
        self._answers: dict[torch._ops.OpOverload, Answer] = {
            aten.empty.memory_format: self._empty,
            aten.empty_strided.default: self._empty_strided,
            aten._local_scalar_dense.default: self._item,
            aten._to_copy.default: self._to_copy,
            aten.copy_.default: self._copy,
            aten._copy_from.default: self._copy_from,
            aten._copy_from_and_resize.default: self._copy_from,
            aten.set_.source_Storage_storage_offset: self._set,
            aten.set_.source_Tensor: self._set_tensor,
            aten.set_.source_Storage: self._set_storage,
            aten.resize_.default: self._resize,
            aten.native_batch_norm.default: self._batch_norm,
            aten._efficientzerotensor.default: self._zeros,
            **device_operators(self._recorded, self.call),
        }
        if isinstance(real, CudaDevice):
            self._answers[aten.native_dropout.default] = self._dropout
            self._answers[aten._scaled_dot_product_flash_attention.default] = self._flash_attention
            self._answers[aten._scaled_dot_product_cudnn_attention.default] = self._cudnn_attention

    def call(self, operator: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        with self.recorder.lock, self.real.working():
            answer = self._answers.get(operator)
            return self._recorded(operator, args, kwargs) if answer is None else answer(*args, **kwargs)

    def _recorded(self, operator: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        known = signature(operator)
        if known.draws(args, kwargs):
            return self.at_once.draw(known, args, kwargs)
        if not known.returns_tensors:
            return self.at_once.call(known, args, kwargs, f"{operator} needs numbers")
        recorder = self.recorder
        if known.takes_device and (device := kwargs.get("device")) is not None:
            if device.type != recorder.device_type:  # `empty_like(x, device="cpu")`: it reads no numbers
                return operator(*map(_without_data, args), **kwargs)
            check_index(device.index)
        try:
            found = recorder.record(known, args, kwargs)
        except (Foreign, Undescribed) as error:
            return self.declined(operator, args, kwargs, error)
        if recorder.now.count >= recorder.most_operators or recorder.now.bytes >= MOST_BYTES:
            self.run_full()
        return found

    # What the kernels in C ask for (`csrc/lazy/kernel.c`).

    def kernel(self, name: str) -> Callable[..., Any]:
        """What PyTorch calls for an operator."""
        return _native.LazyKernel(self.recorder, self, name)

    def find(self, name: str) -> tuple[torch._ops.OpOverload, _native.RecordedOperator | None]:
        """An operator by name, and how it is recorded; None for one that is not simply recorded."""
        operator = overload_of(name)
        known = signature(operator)
        is_simple = operator not in self._answers and not known.is_random and known.returns_tensors
        return operator, recorded_operator(operator) if is_simple else None

    def declined(
        self, operator: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any], error: Exception
    ) -> Any:
        """What a call returns that could not be recorded as it came."""
        known = signature(operator)
        with self.real.working():
            if isinstance(error, Foreign):
                args, kwargs = self.recorder.brought(known, args, kwargs)
                return self._recorded(operator, args, kwargs)
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

    def _empty(self, size: Any, *, memory_format: Any = None, **options: Any) -> torch.Tensor:
        self._check(options)
        chosen = memory_format or torch.contiguous_format
        like = torch.empty(size, dtype=options.get("dtype"), memory_format=chosen, device="meta")
        return self.recorder.empty(layout_of(like))

    def _empty_strided(self, size: Any, stride: Any, **options: Any) -> torch.Tensor:
        self._check(options)
        dtype = options.get("dtype") or torch.get_default_dtype()
        return self.recorder.empty((torch.Size(size), tuple(stride), 0, dtype))

    def _check(self, options: Mapping[str, Any]) -> None:
        device = options.get("device")
        check_index(None if device is None else device.index)

    def _set(self, tensor: torch.Tensor, storage: Any, offset: int, size: Any, stride: Any = ()) -> torch.Tensor:
        if not stride and size:
            stride = torch.empty(size, device="meta").stride()
        tensors.set_layout(tensor, storage, offset, size, stride)
        return tensor

    def _set_tensor(self, tensor: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        offset: Any = source.storage_offset()
        return self._set(tensor, source.untyped_storage(), offset, source.shape, source.stride())

    def _set_storage(self, tensor: torch.Tensor, storage: Any) -> torch.Tensor:
        return self._set(tensor, storage, 0, [storage.nbytes() // tensor.dtype.itemsize], [1])

    def _resize(self, tensor: torch.Tensor, size: Any, *, memory_format: Any = None) -> torch.Tensor:
        if tuple(tensor.shape) == tuple(size) and memory_format is None:
            return tensor
        found: torch.Tensor = self.at_once.call(
            signature(aten.resize_.default), (tensor, size), {"memory_format": memory_format}, "a tensor is resized"
        )
        return found

    def _zeros(self, size: Any, **options: Any) -> Any:
        """PyTorch's zeros of forward gradients have no memory: what runs later cannot read them."""
        return self._recorded(aten.zeros.default, (size,), options)

    def _batch_norm(
        self, tensor: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
    ) -> Any:
        """Running statistics are written, of which this operator's schema says nothing; that of another one does."""
        writes = training and mean is not None and var is not None
        operator = aten._native_batch_norm_legit.default if writes else aten.native_batch_norm.default
        return self._recorded(operator, (tensor, weight, bias, mean, var, training, momentum, eps), {})

    # What a GPU does by kernels of its own.

    def _dropout(self, tensor: torch.Tensor, p: float, train: bool | None) -> Any:
        """The mask is drawn at once, as PyTorch's kernel draws it for such a tensor; the rest is arithmetic."""
        if train is False or not 0.0 < p < 1.0 or not tensor.is_floating_point():
            operator = aten.native_dropout.default
            return self.at_once.call(signature(operator), (tensor, p, train), {}, f"{operator} draws random numbers")
        mask = self.recorder.wrap(self.at_once.dropout_mask(layout_of(tensor), p))
        kept = self._recorded(aten.mul.Tensor, (tensor, mask), {})
        return self._recorded(aten.mul.Tensor, (kept, _scale(p, tensor.dtype)), {}), mask

    def _flash_attention(self, *args: Any, **kwargs: Any) -> Any:
        return self._attention(aten._scaled_dot_product_flash_attention.default, args, kwargs)

    def _cudnn_attention(self, *args: Any, **kwargs: Any) -> Any:
        return self._attention(aten._scaled_dot_product_cudnn_attention.default, args, kwargs)

    def _attention(self, operator: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Among its results are the most tokens that a sequence has: those of the arguments, as integers."""
        known = signature(operator)
        if known.draws(args, kwargs):
            return self.at_once.draw(known, args, kwargs)
        found = list(self.recorder.record(known, args, kwargs))
        found[4:6] = [args[0].shape[2], args[1].shape[2]]
        return tuple(found)

    # Copies.

    def brought(self, whole: torch.Tensor) -> torch.Tensor:
        """A tensor of the host that nobody else uses, as a lazy one."""
        with self.real.working():
            return self.recorder.wrap(whole.to(self.recorder.real_device))

    def _item(self, tensor: torch.Tensor) -> Any:
        return self.at_once.real(tensor, "a number is needed").item()

    def _to_copy(self, tensor: torch.Tensor, **options: Any) -> torch.Tensor:
        device = options.get("device") or tensor.device
        options = {name: value for name, value in options.items() if name not in ("device", "pin_memory")}
        if device.type == self.recorder.device_type:
            check_index(device.index)
        if not self.recorder.is_ours(tensor):  # from the host
            real = aten._to_copy.default(tensor.detach(), device=self.recorder.real_device, **options)
            return self.recorder.wrap(real)
        if device.type == self.recorder.device_type:
            options.pop("non_blocking", None)
            found: torch.Tensor = self._recorded(aten._to_copy.default, (tensor,), options)
            return found
        real = self.at_once.real(tensor, f"it is copied to {device}")
        return self.real.lend(aten._to_copy.default(real, device=device, **options))

    def _copy(self, tensor: torch.Tensor, source: Any, non_blocking: bool = False) -> torch.Tensor:
        if not self.recorder.is_ours(tensor):  # to the host
            tensor.copy_(self.at_once.real(source, f"it is copied to {tensor.device}"), non_blocking)
            return tensor
        if not isinstance(source, torch.Tensor):  # a number
            self._recorded(aten.fill_.Scalar, (tensor, source), {})
            return tensor
        if self.recorder.is_ours(source):
            self._recorded(aten.copy_.default, (tensor, source), {})
            return tensor
        real = source.detach().to(self.recorder.real_device, copy=True, non_blocking=non_blocking)
        if self.at_once.is_free(tensor) and real.shape == tensor.shape:
            self.at_once.fill(tensor, real)
            return tensor
        self._recorded(aten.copy_.default, (tensor, self.recorder.wrap(real)), {})
        return tensor

    def _copy_from(self, source: torch.Tensor, tensor: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        return self._copy(tensor, source, non_blocking)


def _scale(p: float, dtype: torch.dtype) -> float:
    """What kept numbers are multiplied by, as the kernel of a GPU computes it."""
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    return float(1 / torch.tensor(1.0 - p, dtype=torch.float64, device=HOST).to(wide))


def _without_data(value: Any) -> Any:
    return tensors.on_meta(value) if isinstance(value, torch.Tensor) else value
