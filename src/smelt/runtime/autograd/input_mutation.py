"""Inputs that a compiled graph writes: where only eager is right, old values, and new values put where they belong.

    write_back(plan, inputs, new_values)   →   each written input holds its new value, as if written in place

An input that is written differentiably gets its new value by `copy_`, which is how PyTorch's autograd learns of it.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from smelt import _native
from smelt.base.torch_originals import BASE
from smelt.ir.call_contract import JointPlan
from smelt.runtime.overlap import memory_of, overlap


def only_eager_is_right(plan: JointPlan, inputs: Sequence[torch.Tensor]) -> bool:
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return True
    if any(forbids_writing(inputs[index]) for index in plan.mutated_with_grad):
        return True
    for index in plan.mutated_inputs:
        _refuse_without_memory(inputs[index])
    # Where a written input lies in memory of another the pure graph is not what eager does.
    return bool(plan.mutated_inputs) and overlap(inputs, plan.mutated_inputs)


def _refuse_without_memory(tensor: torch.Tensor) -> None:
    """Refuse to write a tensor whose memory was taken away, as is done to sharded parameters: that ends the process."""
    if tensor.numel() and not tensor.untyped_storage().nbytes():
        raise RuntimeError(f"a tensor of shape {tuple(tensor.shape)} is written; its storage was resized to 0 bytes")


def forbids_writing(tensor: torch.Tensor) -> bool:
    """Whether PyTorch forbids to write this tensor differentiably: a leaf, a view of one, one of several views."""
    if not tensor._is_view():
        return tensor.requires_grad and tensor.is_leaf
    base = tensor._base
    assert base is not None
    ordinary = torch._C._autograd.CreationMeta.DEFAULT
    return (base.requires_grad and base.is_leaf) or torch._C._autograd._get_creation_meta(tensor) != ordinary


def with_old_values(recalled: Sequence[int], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The inputs, those that are about to be written, or may be, as copies that know where they came from."""
    given = list(inputs)
    for index in recalled:
        given[index] = _native.recorded(_alike, given[index])
    return given


def own(values: Sequence[Any], copied: Sequence[int]) -> list[Any]:
    """Results with memory of their own: a view of what an earlier result lies in becomes one of a copy of all of it."""
    owned = list(values)
    for index in copied:
        value = owned[index]
        taken = any(memory_of(earlier) == memory_of(value) for earlier in owned[:index])
        owned[index] = _view_of_copy(value) if taken and not (value.is_conj() or value.is_neg()) else _alike(value)
    return owned


def _alike(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that lies as the tensor does, which kernels rely on: a clone of one with gaps has none."""
    repeats = [step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True)]
    if any(repeats) and not tensor.requires_grad:
        return _alike(tensor[tuple([slice(1 if each else None) for each in repeats])]).expand(tensor.shape)
    made = BASE.clone(tensor)
    if made.stride() == tensor.stride():
        return made
    return torch.empty_strided(made.shape, tensor.stride(), dtype=made.dtype, device=made.device).copy_(made)


def _view_of_copy(tensor: torch.Tensor) -> torch.Tensor:
    elements = tensor.untyped_storage().nbytes() // tensor.itemsize
    whole = BASE.clone(tensor.as_strided((elements,), (1,), 0))
    return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def count_writes(tensors: Iterable[torch.Tensor]) -> None:
    """Let autograd know that these were written, each once."""
    torch.autograd.graph.increment_version([tensor for tensor in tensors if not tensor.is_inference()])


def write_back(plan: JointPlan, inputs: Sequence[torch.Tensor], new_values: Sequence[torch.Tensor | None]) -> None:
    """Give written inputs their new values; None is one that is there already."""
    tensors = [inputs[index] for index in plan.mutated_inputs]
    counted = [
        (tensor, tensor._version + times)  # tensors of inference mode have no version
        for tensor, times in zip(tensors, plan.version_bumps, strict=True)
        if times != 1 and not tensor.is_inference()
    ]
    if any(value is not None for value in new_values):
        _copy_back(plan, tensors, new_values)
    count_writes([tensor for tensor, value in zip(tensors, new_values, strict=True) if value is None])
    if counted:
        counters, versions = zip(*counted, strict=True)
        torch._C._autograd._unsafe_set_version_counter(counters, versions)


def _copy_back(plan: JointPlan, tensors: Sequence[torch.Tensor], new_values: Sequence[torch.Tensor | None]) -> None:
    """A new value that is some input's own memory is copied out first."""
    places = set(map(memory_of, tensors))
    safe = [BASE.clone(value) if value is not None and memory_of(value) in places else value for value in new_values]
    written = [each for each in zip(plan.mutated_inputs, tensors, safe, strict=True) if each[2] is not None]
    for index, tensor, value in written:
        if index not in plan.mutated_with_grad:
            _native.unrecorded(BASE.copy_, tensor, value)
    for index, tensor, value in written:
        if index in plan.mutated_with_grad:
            _native.recorded(BASE.copy_, tensor, value)
