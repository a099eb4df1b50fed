"""Branches that random numbers cannot change: a uniform one is between 0 and 1.

    if torch.rand([]) < self.layerdrop:      with layerdrop = 0.0 never taken, whatever is drawn

The draw itself stays in the graph, as the generator moves on by it.
"""

import operator
from typing import Any

import torch

from smelt.capture.model.values import Tensor

_UNIFORM = (torch.rand, torch.rand_like)
_EXACT = (torch.float32, torch.float64)  # as numbers to compare with are; others round the bound
_MIRRORED = {operator.lt: operator.gt, operator.le: operator.ge, operator.gt: operator.lt, operator.ge: operator.le}


def decided(value: Tensor, tensors: dict[int, Tensor]) -> bool | None:
    """What a comparison comes to for every number that may be drawn; None if that depends on the number."""
    node = value.node
    if node.target not in _MIRRORED or value.fake._version or value.fake.numel() != 1:
        return None
    compare, (left, right) = node.target, node.args
    if _is_uniform(right, tensors):
        compare, left, right = _MIRRORED[compare], right, left
    if not _is_uniform(left, tensors) or type(right) not in (int, float):
        return None
    at_least, at_most = compare(0.0, right), compare(1.0, right)
    return bool(at_least) if at_least == at_most else None


def _is_uniform(node: Any, tensors: dict[int, Tensor]) -> bool:
    """Whether a graph argument is a number drawn between 0 and 1, and nothing was written over it."""
    if getattr(node, "target", None) not in _UNIFORM:
        return False
    fakes = [tensor.fake for tensor in tensors.values() if tensor.node is node]
    return len(fakes) == 1 and not fakes[0]._version and fakes[0].dtype in _EXACT
