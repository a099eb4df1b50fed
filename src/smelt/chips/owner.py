"""Answers PyTorch's dispatcher for a chip: memory and copies by the chip, operators by kernels compiled for them.

    x + 1                 a kernel, compiled when the first such call comes
    x.t()                 a view: nothing is computed
    x.item(), x.cpu()     copied out
    x.normal_()           drawn by the host, as on the host, and copied in
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from smelt.chips.calls import OperatorCalls
from smelt.chips.decompositions import IN_DOUBLE
from smelt.chips.host_calls import HostCalls
from smelt.chips.lazy_chip import LazyChip
from smelt.chips.own_methods import OwnMethods
from smelt.chips.runtime import ChipDevice, ChipMemory
from smelt.chips.strided_copies import StridedCopies
from smelt.device.host_library import HOST
from smelt.dispatch import loss_scaling, tensors
from smelt.dispatch.device_operators import device_operators
from smelt.dispatch.module import check_index
from smelt.dispatch.tensors import layout_of, memory_of
from smelt.ir.graph import GraphCompiler
from smelt.lazy.signatures import Signature, signature
from smelt.meta.devices import result_device
from smelt.symbolic.shapes import is_dense

aten = torch.ops.aten

Answer = Callable[..., Any]


class ChipOwner:
    """Owner of a chip's device (`smelt.dispatch.operators.Owner`)."""

    def __init__(self, device: ChipDevice, compiler: GraphCompiler) -> None:
        self.device = device
        self.host = HostCalls(device)
        self.calls = OperatorCalls(device, compiler, self.host)
        self.copies = StridedCopies(device)
        self.lazy: LazyChip | None = None  # what records, once somebody asks for that
        self._answers: dict[torch._ops.OpOverload, Answer] = {
            aten.empty.memory_format: self._empty,
            aten.empty_strided.default: self._empty_strided,
            aten._local_scalar_dense.default: self._item,
            aten._to_copy.default: self._to_copy,
            aten.copy_.default: self._copy,
            aten.clone.default: self._clone,
            aten._copy_from.default: self._copy_from,
            aten._copy_from_and_resize.default: self._copy_from,
            aten.set_.source_Storage_storage_offset: self._set,
            aten.set_.source_Tensor: self._set_tensor,
            aten.set_.source_Storage: self._set_storage,
            aten.resize_.default: self._resize,
            aten.resize_as_.default: self._resize_as,
            aten.equal.default: self._equal,
            aten.allclose.default: self._allclose,
            aten.zero_.default: lambda tensor: self.compute(aten.fill_.Scalar, (tensor, 0), {}),
            aten.native_batch_norm.default: self._batch_norm,
            **loss_scaling.IN_PLACE,
            **{operator: partial(self._in_double, operator) for operator in IN_DOUBLE},
            **device_operators(self.compute, self.call),
            **OwnMethods(device, self.compute).answers(),
        }

    def call(self, operator: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if self.lazy is not None and self.lazy.takes(args, kwargs):
            return self.lazy.call(operator, args, kwargs)
        answer = self._answers.get(operator)
        return self.compute(operator, args, kwargs) if answer is None else answer(*args, **kwargs)

    def compute(self, operator: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        known = signature(operator)
        if known.is_random:
            return self.host.call(known, args, kwargs)
        if not known.returns_tensors:
            return self.host.fall_back(known, args, kwargs, "it returns no tensors")
        if known.takes_device and (asked := kwargs.get("device")) is not None and asked.type != self.device.name:
            return operator(*map(_without_data, args), **kwargs)  # `empty_like(x, device="cpu")`: it reads no numbers
        if known.takes_device:
            _check_device(kwargs)
        args, kwargs = self._together(known, args, kwargs)
        if known.written and not known.is_view:
            return self._written(known, args, kwargs)
        return self.calls.call(known, args, kwargs)

    def _written(self, known: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """An operator that writes. Kernels write whole buffers: what is written between others' elements is computed
        in a copy."""
        parts: list[tuple[torch.Tensor, torch.Tensor]] = []
        for name, value in (*zip(known.names, args, strict=False), *kwargs.items()):
            for each in (value if isinstance(value, tuple | list) else (value,)) if name in known.written else ():
                if self.device.is_ours(each) and 0 in each.stride() and _is_repeated(each):
                    raise RuntimeError(_REPEATED)
                if self.device.is_ours(each) and has_gaps(each) and not any(each is one for one, _ in parts):
                    parts.append((each, self.copies.dense(each)))
        if not parts:
            return self.calls.call(known, args, kwargs)

        def swapped(value: Any, to: int) -> Any:
            if isinstance(value, tuple | list):
                return type(value)([swapped(item, to) for item in value])
            return next((pair[to] for pair in parts if pair[1 - to] is value), value)

        results = self.calls.call(
            known, swapped(args, 1), {name: swapped(value, 1) for name, value in kwargs.items()}
        )
        for part, dense in parts:
            if part.shape != dense.shape:
                tensors.set_layout(part, dense.untyped_storage(), 0, dense.shape, dense.stride())
            else:
                self.copies.copy(part, dense)
        return swapped(results, 0)

    def forget(self) -> None:
        self.calls.forget()
        self.copies.forget()
        self.device.release()

    def _together(
        self, known: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Arguments that kernels take: bits of tensors are resolved, and numbers of the host's may be among them.

        Raises PyTorch's error for what does not go together.
        """
        foreign = False

        def taken(value: Any) -> Any:
            nonlocal foreign
            if isinstance(value, tuple | list):
                return type(value)([taken(item) for item in value])
            if not isinstance(value, torch.Tensor):
                return value
            if not self.device.is_ours(value):
                foreign = True
                return value
            if known.is_view or not (value.is_conj() or value.is_neg()):
                return value
            return self._resolved(value)

        if known.written and not known.is_view and any(map(_has_bits, args[:1])):
            raise NotImplementedError(f"{known.operator} writes a conjugated or negated view")
        arguments = tuple(map(taken, args)), {name: taken(value) for name, value in kwargs.items()}
        if foreign:
            result_device(known.operator, args, {name: each for name, each in kwargs.items() if name != "device"})
        return arguments

    def _resolved(self, tensor: torch.Tensor) -> torch.Tensor:
        plain = tensor
        if tensor.is_neg():
            plain = torch._neg_view(plain)
        if tensor.is_conj():
            plain = torch._conj(plain)
            plain = self.compute(aten.conj_physical.default, (plain,), {})
        return self.compute(aten.neg.default, (plain,), {}) if tensor.is_neg() else plain

    # Memory.

    def _empty(self, size: Any, *, memory_format: Any = None, **options: Any) -> torch.Tensor:
        _check_device(options)
        chosen = memory_format or torch.contiguous_format
        like = torch.empty(size, dtype=options.get("dtype"), memory_format=chosen, device="meta")
        return self.device.new(like.shape, like.stride(), like.dtype)

    def _empty_strided(self, size: Any, stride: Any, **options: Any) -> torch.Tensor:
        _check_device(options)
        return self.device.new(size, stride, options.get("dtype") or torch.get_default_dtype())

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
        chosen = memory_format or torch.contiguous_format
        like = torch.empty(size, dtype=tensor.dtype, memory_format=chosen, device="meta")
        offset: Any = tensor.storage_offset()
        needed = tensors.bytes_of(like.shape, like.stride(), offset, tensor.dtype)
        memory: ChipMemory = memory_of(tensor)
        if needed > memory.nbytes:
            grown = ChipMemory(self.device, needed)
            if memory.address:
                self.device.copy_within(grown.address, memory.address, memory.nbytes)
            tensors.give_memory(tensor.untyped_storage(), grown, needed, grown.address)
        tensors.set_layout(tensor, tensor.untyped_storage(), offset, like.shape, like.stride())
        return tensor

    def _resize_as(self, tensor: torch.Tensor, like: torch.Tensor, *, memory_format: Any = None) -> torch.Tensor:
        kept = memory_format is torch.preserve_format
        return self._resize(tensor, like.shape, memory_format=None if kept else memory_format)

    # Copies.

    def _item(self, tensor: torch.Tensor) -> Any:
        return self.device.to_host(tensor).item()

    def _equal(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        if one.shape != other.shape:
            return False
        same = self.compute(aten.eq.Tensor, (one, other), {})
        return bool(self._item(self.compute(aten.all.default, (same,), {})))

    def _allclose(self, one: torch.Tensor, other: torch.Tensor, *args: Any, **kwargs: Any) -> bool:
        close = torch.isclose(one, other, *args, **kwargs)
        return bool(self._item(self.compute(aten.all.default, (close,), {})))

    def _to_copy(self, tensor: torch.Tensor, **options: Any) -> torch.Tensor:
        device = options.get("device") or tensor.device
        if device.type == self.device.name:
            check_index(device.index)
        options = {name: each for name, each in options.items() if name not in ("device", "pin_memory")}
        if not self.device.is_ours(tensor):  # from the host
            options.pop("non_blocking", None)
            plain = tensor.detach().resolve_conj().resolve_neg()
            host = aten._to_copy.default(plain, device=HOST, **options)
            return self.device.to_chip(_without_gaps(host))
        if device.type == self.device.name:
            options.pop("non_blocking", None)
            if options.get("dtype") in (None, tensor.dtype):
                return self._clone(tensor, memory_format=options.get("memory_format"))
            copied: torch.Tensor = self.compute(aten._to_copy.default, (tensor,), options)
            return copied
        copy: torch.Tensor = aten._to_copy.default(self.device.to_host(tensor), device=device, **options)
        return copy

    def _clone(self, tensor: torch.Tensor, *, memory_format: Any = None) -> torch.Tensor:
        chosen = memory_format or torch.preserve_format
        like = torch.empty_like(tensors.on_meta(tensor), memory_format=chosen)
        clone = self.device.new(like.shape, like.stride(), like.dtype)
        return self._copy(clone, tensor)

    def _copy(self, tensor: torch.Tensor, source: Any, non_blocking: bool = False) -> torch.Tensor:
        if not self.device.is_ours(tensor):  # to the host
            tensor.copy_(self.device.to_host(source))
            return tensor
        if not isinstance(source, torch.Tensor):  # a number
            self.compute(aten.fill_.Scalar, (tensor, source), {})
            return tensor
        if not self.device.is_ours(source):
            plain = source.detach().resolve_conj().resolve_neg()
            if self._is_whole(tensor):
                shape, stride, _, dtype = layout_of(tensor)
                host = torch.empty_strided(shape, stride, dtype=dtype, device=HOST).copy_(plain)
                self.device.write(tensor, host)
                return tensor
            source = self.device.to_chip(_without_gaps(plain.to(HOST)))
        if tensor is source or not tensor.numel():
            return tensor
        if _has_bits(source):
            source = self._resolved(source)
        if source.dtype != tensor.dtype:
            if not has_gaps(tensor) and not (source.is_complex() or tensor.is_complex()):
                self.compute(aten.copy_.default, (tensor, source), {})
                return tensor
            source = self.compute(aten._to_copy.default, (source,), {"dtype": tensor.dtype})
        if 0 in tensor.stride() and _is_repeated(tensor):
            raise RuntimeError(_REPEATED)
        if _has_bits(tensor):
            raise NotImplementedError("a conjugated or negated view of a chip's memory is not written")
        self.copies.copy(tensor, source.expand(tensor.shape))
        return tensor

    def _is_whole(self, tensor: torch.Tensor) -> bool:
        """Whether there is nothing between the elements of a tensor, nor any of them twice."""
        shape, stride, _, dtype = layout_of(tensor)
        if tensor.is_conj() or tensor.is_neg():
            return False
        size = tensors.bytes_of(shape, stride, 0, dtype)
        return size == tensor.numel() * dtype.itemsize and (0 not in stride or tensor.numel() < 2)

    def _copy_from(self, source: torch.Tensor, tensor: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        return self._copy(tensor, source, non_blocking)

    # What PyTorch calls otherwise on a device like this one than on the host.

    def _as(self, operator: torch._ops.OpOverload, *args: Any) -> Any:
        return self.compute(operator, args, {})

    def _in_double(self, operator: torch._ops.OpOverload, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """By float64, rounded once."""
        has, dtype = self.device.target.dtypes, tensor.dtype
        if dtype not in (torch.float32, torch.float16, torch.bfloat16) or (has and "float64" not in has):
            return self.compute(operator, (tensor, *args), kwargs)
        wide = [each.double() if isinstance(each, torch.Tensor) else each for each in (tensor, *args)]
        return self.compute(operator, tuple(wide), kwargs).to(dtype)

    def _batch_norm(
        self, tensor: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float, eps: float
    ) -> Any:
        """By the operator whose schema says that it writes the running statistics."""
        if mean is None:
            return self._as(aten._native_batch_norm_legit.no_stats, tensor, weight, bias, training, momentum, eps)
        args = (tensor, weight, bias, mean, variance, training, momentum, eps)
        return self._as(aten._native_batch_norm_legit.default, *args)


_REPEATED = (
    "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
    "Please clone() the tensor before performing the operation."
)  # PyTorch's words, which only its own kernels say


def _is_repeated(tensor: torch.Tensor) -> bool:
    return any(size > 1 and not step for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def _check_device(options: Mapping[str, Any]) -> None:
    device = options.get("device")
    check_index(None if device is None else device.index)


def has_gaps(tensor: torch.Tensor) -> bool:
    """Whether there is something between the elements of a tensor."""
    return not is_dense(tensor.shape, tensor.stride())


def _has_bits(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_conj() or value.is_neg())


def _without_gaps(host: torch.Tensor) -> torch.Tensor:
    size = tensors.bytes_of(host.shape, host.stride(), 0, host.dtype)
    return host if size == host.numel() * host.element_size() else host.contiguous()


def _without_data(value: Any) -> Any:
    return tensors.on_meta(value) if isinstance(value, torch.Tensor) else value
