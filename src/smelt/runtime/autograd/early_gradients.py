"""Gradients that leave a compiled backward as soon as they are complete, while its later kernels have not run.

    layers 1 2 3, each with a weight    →    backward runs the steps of 3, returns its gradient; then those of 2; …

The graph becomes several nodes (`smelt.runtime.autograd.split_nodes`), one for each group of inputs, in the order in
which the backward completes their gradients. The engine accumulates the gradients of leaves, and calls the hooks that
wait for them, before it runs the next node, which resumes the backward. So the reductions of
`DistributedDataParallel` begin early, and an optimizer in a hook frees gradients early. Without such hooks one node
does, which costs less.
"""

import sys
from collections.abc import Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any

import torch

from smelt import _native
from smelt.base.fast_dataclass import dataclass
from smelt.base.torch_originals import BASE
from smelt.ir.call_contract import JointPlan
from smelt.runtime.autograd.differentiable import Differentiable, Flat
from smelt.runtime.autograd.layout_fit import without_autocast
from smelt.runtime.autograd.saved_tensors import version_of
from smelt.runtime.overlap import storages
from smelt.runtime.program.last_uses import LastUses, last_uses
from smelt.torch_abi.node_layout import address_of, why_not_read_nodes

GROUPS = 8
"""How many groups there are where nobody says how much is reduced together. A pause costs 40 µs of processor time, and
the kernels after it find less of their data in the cache: 100 µs where the level-two cache has 1 MiB."""

MOST_GROUPS = 64
SMALLEST_GROUP_BYTES = 1 << 18

# Inputs, grouped: with the results that they depend on (a bit each), in the order of the backward.
Groups = tuple[tuple[int, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class DeliveryOrder:
    """How many steps of a backward have run when each gradient may leave; and when each saved tensor was read last."""

    ready: tuple[int, ...]
    reads: tuple[int, ...]
    steps: int


def delivery_order(backward: Flat, plan: JointPlan) -> DeliveryOrder | None:
    """The order of a compiled backward; None if it cannot pause."""
    if type(backward) is not _native.Runner:
        return None
    uses = last_uses(backward)
    if len(uses.results) != len(plan.gradients):
        return None
    reads = tuple([uses.of_value.get(place, 0) for place in range(len(plan.saved))])
    # A hook may write the parameter whose gradient it gets: it is not read after that.
    own: dict[int, int] = {}
    for saved, read in zip(plan.saved, reads, strict=True):
        if saved.source is not None:
            own[saved.source] = max(read, own.get(saved.source, 0))
    ready = [max(uses.of_result(place), own.get(index, 0)) for place, index in enumerate(plan.gradients)]
    return DeliveryOrder(_with_shared_values(ready, uses), reads, uses.steps)


def _with_shared_values(ready: list[int], uses: LastUses) -> tuple[int, ...]:
    """Results that are parts of one value leave together."""
    latest: dict[int, int] = {}
    for value, step in zip(uses.results, ready, strict=True):
        latest[value] = max(step, latest.get(value, 0))
    return tuple([latest[value] for value in uses.results])


def early_groups(state: Differentiable, inputs: Sequence[Any]) -> Groups | None:
    """The groups for a call with such inputs; None if nothing waits for gradients, one group would do, or no backward
    has run yet."""
    if not state.compiled_backwards or not state.consuming or not _is_awaited(state, inputs):
        return None
    backward, _ = next(reversed(state.compiled_backwards.values()))
    if state.early_groups is None or state.early_groups[0] is not backward:
        order = delivery_order(backward, state.plan)
        state.early_groups = backward, () if order is None else _groups_of(state.plan, order, inputs)
    groups: Groups = state.early_groups[1]
    return groups if len(groups) > 1 else None


def _groups_of(plan: JointPlan, order: DeliveryOrder, inputs: Sequence[Any]) -> Groups:
    """Inputs in the order in which their gradients are complete; a group ends where a bucket is full."""
    everything = (1 << len(plan.tangents)) - 1
    bits_of = dict(zip(plan.gradients, plan.grad_depends_on or (everything,) * plan.inputs, strict=False))
    size_of = {index: inputs[index].nbytes for index in plan.gradients if bits_of[index]}
    place_of = {index: place for place, index in enumerate(plan.autograd_input_order or range(plan.inputs))}
    limit, next_limit = _bucket_bytes(sum(size_of.values()))
    groups: list[list[int]] = [[]]
    size = 0
    by_step = sorted((step, index) for step, index in zip(order.ready, plan.gradients, strict=True) if bits_of[index])
    for (step, index), (next_step, _) in pairwise([*by_step, (order.steps + 1, -1)]):
        groups[-1].append(index)
        size += size_of[index]
        if size >= limit and next_step > step:
            groups.append([])
            size, limit = 0, next_limit
    split: list[tuple[int, tuple[int, ...]]] = []
    for group in groups:
        for bits in dict.fromkeys(bits_of[index] for index in group):  # each with the same results behind it
            members = [index for index in group if bits_of[index] == bits]
            split.append((bits, tuple(sorted(members, key=place_of.__getitem__))))
    return tuple(split)


def _bucket_bytes(total: int) -> tuple[int, int]:
    """How many bytes are reduced together: the first of all gradients, and the others."""
    module: Any = sys.modules.get("torch.nn.parallel.distributed")
    active: Any = None if module is None else module.DistributedDataParallel._active_ddp_module
    bucket = getattr(active, "bucket_bytes_cap", total // GROUPS)
    is_small_first = getattr(active, "bucket_bytes_cap_default", False)
    first = min(bucket, module.dist._DEFAULT_FIRST_BUCKET_BYTES) if is_small_first else bucket
    smallest = max(SMALLEST_GROUP_BYTES, total // MOST_GROUPS)
    return max(first, smallest), max(bucket, smallest)


def _is_awaited(state: Differentiable, inputs: Sequence[Any]) -> bool:
    """Whether hooks wait for gradients of leaves: those of the first and the last leaf tell."""
    places = state.plan.gradients
    first = next((inputs[place] for place in places if inputs[place].is_leaf), None)
    if first is None:
        return False
    last = next(inputs[place] for place in reversed(places) if inputs[place].is_leaf)
    if first._post_accumulate_grad_hooks or last._post_accumulate_grad_hooks:
        return True
    return _is_distributed() and _has_reducer(first if type(first) is torch.nn.Parameter else last)


def _is_distributed() -> bool:
    """Whether this process is one of several that PyTorch connected: elsewhere nothing looks for C++ hooks."""
    module: Any = sys.modules.get("torch.distributed.distributed_c10d")
    return module is not None and module._world.default_pg is not None


def _has_reducer(leaf: torch.Tensor) -> bool:
    """Whether the node that accumulates a leaf's gradient has hooks: `DistributedDataParallel` puts them there."""
    if not leaf.requires_grad or why_not_read_nodes() is not None:
        return False
    view: Any = _native.recorded(BASE.view_as, leaf, leaf)
    hooks, _ = _native.node_hooks(address_of(view.grad_fn.next_functions[0][0]))
    return any(kind == "post_hook" for kind, _, _ in hooks)


class EarlyBackward:
    """A running backward that pauses where gradients are complete."""

    def __init__(
        self, state: Differentiable, backward: Any, operands: list[Any], order: DeliveryOrder, arrived: int
    ) -> None:
        plan, self._order = state.plan, order
        # Results that no arrived tangent reaches stay None, as in eager: optimizers skip those.
        fed = plan.grad_depends_on or (arrived,) * len(order.ready)
        self._unreached = {place for place, bits in enumerate(fed) if bits and not bits & arrived}
        self._ready = dict(zip(plan.gradients, order.ready, strict=True))
        self._waiting = sorted(zip(order.ready, range(len(order.ready)), plan.gradients, strict=True), reverse=True)
        self._done = 0
        # Saved inputs that are still to be read, the next last: hooks must not write them, and eager would notice.
        pairs = enumerate(zip(plan.saved, operands, strict=False))
        inputs = [(order.reads[place], tensor) for place, (saved, tensor) in pairs if saved.source is not None]
        inputs.sort(key=itemgetter(0), reverse=True)
        self._reads = [read for read, _ in inputs]
        self._unread = [tensor for _, tensor in inputs]
        self._versions = [version_of(tensor) for tensor in self._unread]
        self._run = without_autocast(backward.begin, (operands,))
        self._pause(0)

    def gradients(self, wanted: Sequence[int]) -> list[tuple[int, Any]]:
        """Run until the gradients of these inputs are complete; all that are complete then, by input. Those that were
        returned before are not among them."""
        until = max([self._ready.get(index, 0) for index in wanted], default=0)
        leaving = []
        while self._waiting and self._waiting[-1][0] <= until:
            leaving.append(self._waiting.pop())
        if not leaving:
            return []
        if not self._waiting:
            until = self._order.steps
        if self._done:
            self._check_unread()
        values = without_autocast(self._run.advance, (until, tuple([place for _, place, _ in leaving])))
        self._pause(until)
        pairs = zip(leaving, values, strict=True)
        return [(index, None if place in self._unreached else value) for (_, place, index), value in pairs]

    def remaining(self) -> list[tuple[int, Any]]:
        """All gradients that were not returned."""
        return self.gradients(list(self._ready))

    def _pause(self, done: int) -> None:
        self._done = done
        while self._reads and self._reads[-1] <= done:
            self._reads.pop(), self._unread.pop(), self._versions.pop()
        self._memory = storages(self._unread)

    def _check_unread(self) -> None:
        for tensor, version in zip(self._unread, self._versions, strict=True):
            if version_of(tensor) != version:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation "
                    f"while the backward ran, maybe by a hook: a tensor of shape {tuple(tensor.shape)}, an input of a "
                    f"compiled graph, is at version {tensor._version}; expected version {version} instead."
                )
        if self._memory != storages(self._unread):
            raise RuntimeError(
                "one of the variables needed for gradient computation was given a new storage (by `.data = …` or "
                "`set_`) while the backward ran, maybe by a hook."
            )
