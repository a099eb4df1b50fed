"""The nodes of autograd's graph behind some tensors.

    y = (x * 2).sin()     behind([y.grad_fn])  →  [AccumulateGrad of x, MulBackward0, SinBackward0]
"""

from collections.abc import Iterable
from typing import Any


def behind(roots: Iterable[Any]) -> list[Any]:
    """The nodes that `roots` lead to, and they themselves, each after all that it leads to; None counts for nothing."""
    order: list[Any] = []
    seen: set[Any] = set()
    pending = [(root, False) for root in roots]
    while pending:
        node, done = pending.pop()
        if done:
            order.append(node)
        elif node is not None and node not in seen:
            seen.add(node)
            pending.append((node, True))
            pending.extend((after, False) for after, _ in node.next_functions)
    return order
