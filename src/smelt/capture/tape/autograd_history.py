"""What autograd has written down about fake tensors: which leaves a backward reaches, and what it leaves unusable.

loss.backward()   →   leaves_of([loss]): the fake tensors of weight and bias; from then on `loss` is spent
"""

from collections.abc import Iterable
from typing import Any

import torch

from smelt.meta.autograd_graph import behind


class Histories:
    """The backwards of one capture."""

    def __init__(self) -> None:
        self._freed: set[Any] = set()

    def note(self, outputs: Iterable[torch.Tensor], inputs: Iterable[torch.Tensor]) -> None:
        """A backward from `outputs` to `inputs` that does not retain the graph is about to run."""
        passed = {torch.autograd.graph.get_gradient_edge(each).node for each in inputs}
        for node in behind(output.grad_fn for output in outputs):  # each after all it leads to
            if any(after in passed for after, _ in node.next_functions):
                passed.add(node)
                if _saves(node):
                    self._freed.add(node)

    def is_freed(self, tensor: torch.Tensor) -> bool:
        """Whether a backward from this tensor would come upon what another has freed."""
        if not self._freed or tensor.grad_fn is None:
            return False
        return any(node in self._freed for node in behind([tensor.grad_fn]))

    def lead_to(self, tensors: Iterable[torch.Tensor], leaf: torch.Tensor) -> bool:
        """Whether a backward from some of these tensors would come to a leaf, and not upon what another has freed."""
        roots = [tensor.grad_fn for tensor in tensors]
        live = {torch.autograd.graph.get_gradient_edge(leaf).node}
        for node in behind(roots):  # each after all it leads to
            if node not in self._freed and any(after in live for after, _ in node.next_functions):
                live.add(node)
        return any(root in live for root in roots)


def leaves_of(outputs: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The leaves that a backward from `outputs` reaches, each once."""
    tensors = list(outputs)
    leaves = {id(each): each for each in tensors if each.grad_fn is None}
    for node in behind(each.grad_fn for each in tensors):
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, torch.Tensor):
            leaves.setdefault(id(leaf), leaf)
    return list(leaves.values())


def yields_sparse(outputs: Iterable[torch.Tensor]) -> bool:
    """Whether a backward from `outputs` makes sparse gradients, which fake tensors do not tell from others."""
    return any(
        getattr(node, name, False) is True
        for node in behind(each.grad_fn for each in outputs)
        for name in ("_saved_sparse", "_saved_sparse_grad")
    )


_saving: dict[type, bool] = {}


def _saves(node: Any) -> bool:
    """Whether a node keeps tensors for its backward; of one written in Python it is taken for granted."""
    kind = type(node)
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        return True  # and not kept: classes of the program come and go
    if kind not in _saving:
        _saving[kind] = any(name.startswith("_raw_saved_") for name in dir(kind))
    return _saving[kind]
