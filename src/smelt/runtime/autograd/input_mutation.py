"""Inputs that a compiled graph mutates: when to run eager instead, copies of old values, and writing new values back.

    write_back(plan, inputs, new_values)   →   each mutated input holds its new value, as if written in place

An input that is written differentiably gets its new value by `copy_`, which is how PyTorch's autograd learns of it.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from smelt import _native
from smelt.base.torch_originals import BASE
from smelt.ir.call_contract import JointPlan
from smelt.runtime.overlap import may_write_no_memory, memory_of, overlap, storages


def must_run_eager(plan: JointPlan, inputs: Sequence[torch.Tensor]) -> bool:
    """Whether the compiled graph would be wrong for these inputs, or under the transform that is active."""
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return True
    if any(forbids_mutation(inputs[index]) for index in plan.mutated_with_grad):
        return True
    if not plan.mutated_inputs:
        return False
    if may_write_no_memory(inputs, plan.mutated_inputs):
        for index in plan.mutated_inputs:
            if not inputs[index].untyped_storage().nbytes():
                _refuse_without_memory(inputs[index])
    # If a mutated input overlaps another input, the functional graph computes something else than eager.
    return overlap(inputs, plan.mutated_inputs)


def _refuse_without_memory(tensor: torch.Tensor) -> None:
    """Refuse to write a tensor with elements whose storage was resized to nothing, as FSDP does to parameters: writing
    would crash."""
    if tensor.numel():
        shape = tuple(tensor.shape)
        raise RuntimeError(f"an input of shape {shape} is modified in-place, and its storage was resized to 0 bytes")


def forbids_mutation(tensor: torch.Tensor) -> bool:
    """Whether PyTorch forbids in-place writes that autograd records: to a leaf, a view of one, an output of
    `unbind`."""
    if not tensor._is_view():
        return tensor.requires_grad and tensor.is_leaf
    base = tensor._base
    assert base is not None
    ordinary = torch._C._autograd.CreationMeta.DEFAULT
    return (base.requires_grad and base.is_leaf) or torch._C._autograd._get_creation_meta(tensor) != ordinary


def with_copies(kept_old_values: Sequence[int], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The inputs, with differentiable copies of those that are about to be mutated, or may be before the backward."""
    copies = list(inputs)
    for index in kept_old_values:
        copies[index] = _native.recorded(_clone_with_strides, copies[index])
    return copies


def clone_aliased(values: Sequence[Any], copied: Sequence[int]) -> list[Any]:
    """Results that own their memory: a view into the storage of an earlier result becomes a view of a copy of it."""
    owned = list(values)
    for index in copied:
        value = owned[index]
        taken = any(memory_of(earlier) == memory_of(value) for earlier in owned[:index])
        as_view = taken and not (value.is_conj() or value.is_neg())
        owned[index] = _view_of_copy(value) if as_view else _clone_with_strides(value)
    return owned


def _clone_with_strides(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the strides of the tensor, which kernels rely on: `clone` closes gaps."""
    repeats = [step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True)]
    if any(repeats) and not tensor.requires_grad:
        return _clone_with_strides(tensor[tuple([slice(1 if each else None) for each in repeats])]).expand(tensor.shape)
    clone = BASE.clone(tensor)
    if clone.stride() == tensor.stride():
        return clone
    return torch.empty_strided(clone.shape, tensor.stride(), dtype=clone.dtype, device=clone.device).copy_(clone)


def _view_of_copy(tensor: torch.Tensor) -> torch.Tensor:
    elements = tensor.untyped_storage().nbytes() // tensor.itemsize
    whole = BASE.clone(tensor.as_strided((elements,), (1,), 0))
    return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def bump_versions(tensors: Iterable[torch.Tensor]) -> None:
    """Bump the version counters: each tensor was written once."""
    torch.autograd.graph.increment_version([tensor for tensor in tensors if not tensor.is_inference()])


def write_back(plan: JointPlan, inputs: Sequence[torch.Tensor], new_values: Sequence[torch.Tensor | None]) -> None:
    """Copy new values into the mutated inputs; None marks one that already holds it."""
    tensors = [inputs[index] for index in plan.mutated_inputs]
    counted: list[tuple[torch.Tensor, int]] = []
    if plan.version_bumps.count(1) != len(tensors):
        counted = [
            (tensor, tensor._version + times)  # inference tensors have no version counter
            for tensor, times in zip(tensors, plan.version_bumps, strict=True)
            if times != 1 and not tensor.is_inference()
        ]
    written = tensors
    if any(value is not None for value in new_values):
        copy_back(plan, tensors, new_values)
        written = [tensor for tensor, value in zip(tensors, new_values, strict=True) if value is None]
    bump_versions(written)
    if counted:
        counters, versions = zip(*counted, strict=True)
        torch._C._autograd._unsafe_set_version_counter(counters, versions)


def copy_back(plan: JointPlan, tensors: Sequence[torch.Tensor], new_values: Sequence[torch.Tensor | None]) -> None:
    """New values that alias an input are cloned first."""
    taken = set(_storage_words(tensors))
    storage_of = iter(_storage_words([value for value in new_values if value is not None]))
    safe = [BASE.clone(value) if value is not None and next(storage_of) in taken else value for value in new_values]
    written = [each for each in zip(plan.mutated_inputs, tensors, safe, strict=True) if each[2] is not None]
    plain = [(tensor, value) for index, tensor, value in written if index not in plan.mutated_with_grad]
    if plain:
        _native.unrecorded(_copy_each, plain)
    for index, tensor, value in written:
        if index in plan.mutated_with_grad:
            _native.recorded(BASE.copy_, tensor, value)


def _storage_words(tensors: Sequence[torch.Tensor]) -> memoryview:
    """Which storage each of these has, as a number: asked in one call, for there may be hundreds."""
    return memoryview(storages(list(tensors))).cast("Q")


def _copy_each(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for group in _launched_together(pairs):
        if len(group) > 1:
            torch._foreach_copy_([tensor for tensor, _ in group], [value for _, value in group])
        else:
            BASE.copy_(*group[0])


def _launched_together(
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]],
) -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
    """Pairs that PyTorch copies by one launch: on one GPU and of one dtype, which running statistics and their counts
    are not."""
    groups: dict[object, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for number, (tensor, value) in enumerate(pairs):
        key = (tensor.device, tensor.dtype, value.dtype) if tensor.is_cuda else number
        groups.setdefault(key, []).append((tensor, value))
    return list(groups.values())
