"""Answers PyTorch's dispatcher for a chip: memory and copies by the chip, operators by kernels compiled for them.

    x + 1                 a kernel, compiled when the first such call comes
    x.t()                 a view: nothing is computed
    x.item(), x.cpu()     copied out
    x.normal_()           drawn by the host, as on the host, and copied in
"""

from collections.abc import Mapping
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
from smelt.dispatch.owner import DeviceOwner
from smelt.dispatch.signatures import Signature, signature
from smelt.dispatch.tensors import layout_of, memory_of
from smelt.ir.graph import GraphCompiler
from smelt.meta.devices import result_device
from smelt.symbolic.shapes import is_dense

aten = torch.ops.aten


class ChipOwner(DeviceOwner):
    """Runs operators on a chip."""

    def __init__(self, device: ChipDevice, compiler: GraphCompiler) -> None:
        super().__init__(device.name)
        self.device = device
        self.new, self.adopt, self.read = device.new, device.to_chip, lambda tensor, reason: device.to_host(tensor)
        self.host = HostCalls(device)
        self.calls = OperatorCalls(device, compiler, self.host)
        self.copies = StridedCopies(device)
        self.lazy: LazyChip | None = None  # what records, once somebody asks for that
        self.answers |= {
            aten.clone.default: self._clone,
            aten.resize_.default: self._resize,
            aten.resize_as_.default: self._resize_as,
            aten.equal.default: self._equal,
            aten.allclose.default: self._allclose,
            aten.zero_.default: lambda tensor: self.compute(aten.fill_.Scalar, (tensor, 0), {}),
            aten.native_batch_norm.default: self._batch_norm,
            **loss_scaling.IN_PLACE,
            **{operator: partial(self._in_double, operator) for operator in IN_DOUBLE},
            **OwnMethods(device, self.compute).answers(),
        }

    def call(self, operator: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if self.lazy is not None and self.lazy.takes(args, kwargs):
            return self.lazy.call(operator, args, kwargs)
        return super().call(operator, args, kwargs)

    def compute(self, operator: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        known = signature(operator)
        if known.is_random:
            return self.host.call(known, args, kwargs)
        if not known.returns_tensors:
            return self.host.fall_back(known, args, kwargs, "it returns no tensors")
        if known.takes_device and (elsewhere := self.call_elsewhere(operator, args, kwargs)) is not None:
            return elsewhere
        args, kwargs = self._together(known, args, kwargs)
        if known.written and not known.is_view:
            return self._written(known, args, kwargs)
        return self.calls.call(known, args, kwargs)

    def _written(self, known: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """An operator that writes. Kernels write whole buffers: parts of tensors, conjugated views and negated ones are
        computed in a copy, which is copied back."""
        parts: list[tuple[torch.Tensor, torch.Tensor]] = []
        for each in known.written_arguments(args, kwargs):
            if self.is_ours(each) and 0 in each.stride() and _is_repeated(each):
                raise RuntimeError(_REPEATED)
            if self.is_ours(each) and not any(each is one for one, _ in parts):
                if _has_bits(each):
                    parts.append((each, self._resolved(each)))
                elif has_gaps(each):
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
                dense = self._computed(part, dense)
                tensors.set_layout(part, dense.untyped_storage(), 0, dense.shape, dense.stride())
            else:
                self.copy_within(part, dense)
        return swapped(results, 0)

    def forget(self) -> None:
        self.calls.forget()
        self.copies.forget()
        self.device.release()

    def _together(
        self, known: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Arguments that kernels take: conjugated and negated views that are read are resolved, and numbers of the
        host's may be among them.

        Raises PyTorch's error for what does not go together.
        """
        foreign = False
        written = tuple(known.written_arguments(args, kwargs)) if known.written else ()

        def taken(value: Any) -> Any:
            nonlocal foreign
            if isinstance(value, tuple | list):
                return type(value)([taken(item) for item in value])
            if not isinstance(value, torch.Tensor):
                return value
            if not self.is_ours(value):
                foreign = True
                return value
            if known.is_view or not _has_bits(value) or any(value is each for each in written):
                return value
            return self._resolved(value)

        arguments = tuple(map(taken, args)), {name: taken(value) for name, value in kwargs.items()}
        if foreign:
            result_device(known.operator, args, {name: each for name, each in kwargs.items() if name != "device"})
        return arguments

    def _resolved(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._computed(tensor, _without_bits(tensor))

    def _computed(self, view: torch.Tensor, plain: torch.Tensor) -> torch.Tensor:
        """`plain`, conjugated if `view` is a conjugated view, and negated if it is a negated one."""
        if view.is_conj():
            plain = self.compute(aten.conj_physical.default, (plain,), {})
        return self.compute(aten.neg.default, (plain,), {}) if view.is_neg() else plain

    # Memory.

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

    def _equal(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        if one.shape != other.shape:
            return False
        same = self.compute(aten.eq.Tensor, (one, other), {})
        return bool(self._item(self.compute(aten.all.default, (same,), {})))

    def _allclose(self, one: torch.Tensor, other: torch.Tensor, *args: Any, **kwargs: Any) -> bool:
        close = torch.isclose(one, other, *args, **kwargs)
        return bool(self._item(self.compute(aten.all.default, (close,), {})))

    def copy_in(self, tensor: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        options.pop("non_blocking", None)
        plain = tensor.detach().resolve_conj().resolve_neg()
        return self.device.to_chip(_without_gaps(aten._to_copy.default(plain, device=HOST, **options)))

    def convert(self, tensor: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        if options.get("dtype") in (None, tensor.dtype):
            return self._clone(tensor, memory_format=options.get("memory_format"))
        converted: torch.Tensor = self.compute(aten._to_copy.default, (tensor,), options)
        return converted

    def _clone(self, tensor: torch.Tensor, *, memory_format: Any = None) -> torch.Tensor:
        chosen = memory_format or torch.preserve_format
        like = torch.empty_like(tensors.on_meta(tensor), memory_format=chosen)
        clone = self.new(like.shape, like.stride(), like.dtype)
        return self._copy(clone, tensor)

    def fill(self, tensor: torch.Tensor, source: torch.Tensor, non_blocking: bool) -> None:
        plain = source.detach().resolve_conj().resolve_neg()
        if self._is_whole(tensor):
            shape, stride, _, dtype = layout_of(tensor)
            self.device.write(tensor, torch.empty_strided(shape, stride, dtype=dtype, device=HOST).copy_(plain))
        else:
            self.copy_within(tensor, self.device.to_chip(_without_gaps(plain.to(HOST))))

    def copy_within(self, tensor: torch.Tensor, source: torch.Tensor) -> None:
        if tensor is source or not tensor.numel():
            return
        if _has_bits(source):
            source = self._resolved(source)
        if source.dtype != tensor.dtype:
            if not has_gaps(tensor) and not (source.is_complex() or tensor.is_complex()):
                self.compute(aten.copy_.default, (tensor, source), {})
                return
            source = self.compute(aten._to_copy.default, (source,), {"dtype": tensor.dtype})
        if 0 in tensor.stride() and _is_repeated(tensor):
            raise RuntimeError(_REPEATED)
        self.copies.copy(_without_bits(tensor), self._computed(tensor, source).expand(tensor.shape))

    def _is_whole(self, tensor: torch.Tensor) -> bool:
        """Whether there is nothing between the elements of a tensor, nor any of them twice."""
        shape, stride, _, dtype = layout_of(tensor)
        if _has_bits(tensor):
            return False
        size = tensors.bytes_of(shape, stride, 0, dtype)
        return size == tensor.numel() * dtype.itemsize and (0 not in stride or tensor.numel() < 2)

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


def has_gaps(tensor: torch.Tensor) -> bool:
    """Whether there is something between the elements of a tensor."""
    return not is_dense(tensor.shape, tensor.stride())


def _has_bits(tensor: torch.Tensor) -> bool:
    return tensor.is_conj() or tensor.is_neg()


def _without_bits(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a conjugated or negated view as it is."""
    plain = torch._conj(tensor) if tensor.is_conj() else tensor
    return torch._neg_view(plain) if tensor.is_neg() else plain


def _without_gaps(host: torch.Tensor) -> torch.Tensor:
    size = tensors.bytes_of(host.shape, host.stride(), 0, host.dtype)
    return host if size == host.numel() * host.element_size() else host.contiguous()
