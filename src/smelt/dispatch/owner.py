"""The owner of a PrivateUse1 device: everything about it but how operators are computed and where numbers are.

    class LazyOwner(DeviceOwner)      records operators and runs them when a value is needed
    class ChipOwner(DeviceOwner)      runs each operator by a kernel of a chip
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch

from smelt.dispatch import tensors
from smelt.dispatch.accelerator import answer_for_accelerator
from smelt.dispatch.copies import keep_sharing
from smelt.dispatch.device import UNNAMED, claim
from smelt.dispatch.device_operators import device_operators
from smelt.dispatch.files import register_files
from smelt.dispatch.module import DeviceModule, check_index
from smelt.dispatch.moved_modules import keep_parameters
from smelt.dispatch.torch_hooks import answer_torch

aten = torch.ops.aten

Answer = Callable[..., Any]


class DeviceOwner(ABC):
    """Answers PyTorch's dispatcher for the device `name` (`smelt.dispatch.operators.Owner`)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._held: list[Any] = []  # registrations, which end when they die
        self.answers: dict[torch._ops.OpOverload, Answer] = {
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
            **device_operators(self.compute, self.call),
        }

    def register(self, module: DeviceModule, real: torch.device) -> None:
        """Make the device, whose operators run on `real`; `module` becomes `torch.<name>`."""
        claim(self.name, self, module, real.type)
        if self.name != UNNAMED:  # else programs have no tensors there
            register_files(self.name, self.adopt)
            keep_parameters(self.name)
            keep_sharing(self.name)
            self._held = answer_for_accelerator(self.name, module, real)
            answer_torch(self.name, module)

    # What subclasses decide.

    new: Callable[[Any, Any, torch.dtype], torch.Tensor]  # with new memory: shape, strides, dtype
    adopt: Callable[[torch.Tensor], torch.Tensor]  # the numbers of a dense tensor of the host that nobody else uses
    read: Callable[[torch.Tensor, str], torch.Tensor]  # the numbers of a tensor, not to be written; why they are needed

    @abstractmethod
    def compute(self, operator: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Compute an operator that is not in `answers`."""

    @abstractmethod
    def copy_in(self, tensor: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        """`_to_copy` from another device."""

    def convert(self, tensor: torch.Tensor, options: dict[str, Any]) -> Any:
        """`_to_copy` on the device."""
        return self.compute(aten._to_copy.default, (tensor,), options)

    @abstractmethod
    def fill(self, tensor: torch.Tensor, source: torch.Tensor, non_blocking: bool) -> None:
        """`copy_` from another device."""

    def copy_within(self, tensor: torch.Tensor, source: torch.Tensor) -> None:
        """`copy_` on the device."""
        self.compute(aten.copy_.default, (tensor, source), {})

    def lend(self, tensor: torch.Tensor) -> torch.Tensor:
        """A new tensor of another device, for the program."""
        return tensor

    # Operators.

    def call(self, operator: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        answer = self.answers.get(operator)
        return self.compute(operator, args, kwargs) if answer is None else answer(*args, **kwargs)

    def is_ours(self, value: object) -> bool:
        return isinstance(value, torch.Tensor) and value.device.type == self.name

    def call_elsewhere(self, operator: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """`empty_like(x, device="cpu")`, which reads no numbers; None for a call that makes tensors of this device."""
        device = kwargs.get("device")
        if device is not None and device.type != self.name:
            return operator(*[tensors.on_meta(x) if isinstance(x, torch.Tensor) else x for x in args], **kwargs)
        _check_device(kwargs)

    def _empty(self, size: Any, *, memory_format: Any = None, **options: Any) -> torch.Tensor:
        _check_device(options)
        chosen = memory_format or torch.contiguous_format
        like = torch.empty(size, dtype=options.get("dtype"), memory_format=chosen, device="meta")
        return self.new(like.shape, like.stride(), like.dtype)

    def _empty_strided(self, size: Any, stride: Any, **options: Any) -> torch.Tensor:
        _check_device(options)
        return self.new(size, stride, options.get("dtype") or torch.get_default_dtype())

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

    def _item(self, tensor: torch.Tensor) -> Any:
        return self.read(tensor, "a number is needed").item()

    def _to_copy(self, tensor: torch.Tensor, **options: Any) -> Any:
        device = options.pop("device", None) or tensor.device
        options.pop("pin_memory", None)
        if device.type == self.name:
            check_index(device.index)
        if not self.is_ours(tensor):
            return self.copy_in(tensor, options)
        if device.type == self.name:
            options.pop("non_blocking", None)
            return self.convert(tensor, options)
        real = self.read(tensor, f"it is copied to {device}")
        return self.lend(aten._to_copy.default(real, device=device, **options))

    def _copy(self, tensor: torch.Tensor, source: Any, non_blocking: bool = False) -> torch.Tensor:
        if not self.is_ours(tensor):
            tensor.copy_(self.read(source, f"it is copied to {tensor.device}"), non_blocking)
        elif not isinstance(source, torch.Tensor):
            self.compute(aten.fill_.Scalar, (tensor, source), {})
        elif self.is_ours(source):
            self.copy_within(tensor, source)
        else:
            self.fill(tensor, source, non_blocking)
        return tensor

    def _copy_from(self, source: torch.Tensor, tensor: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        return self._copy(tensor, source, non_blocking)


def _check_device(options: Mapping[str, Any]) -> None:
    device = options.get("device")
    check_index(None if device is None else device.index)
