"""Leaves of autograd that the graph makes: tensors that require grad and have no history.

w = torch.zeros(3, requires_grad=True)   →   a leaf with a `.grad` of its own
"""

from collections.abc import Iterable
from typing import Any

from torch import fx

from smelt.capture.model.values import Constant, Slots, Tensor
from smelt.capture.tape.autograd_history import leaves_of


class MadeLeaves:
    """Those of one graph, with their `.grad`."""

    def __init__(self) -> None:
        self._slots: dict[int, tuple[Any, Slots]] = {}

    def release(self) -> None:
        """Let go of the program's tensors."""
        self._slots.clear()

    def add(self, fake: Any) -> Slots:
        """A tensor is such a leaf, or is given a gradient all the same."""
        return self._slots.setdefault(id(fake), (fake, Slots({"grad": Constant(None)})))[1]

    def add_all(self, others: "MadeLeaves") -> None:
        """Those of a graph inside of this one."""
        self._slots |= others._slots

    def gradient_slots(self, value: Tensor) -> Slots | None:
        """The `.grad` of a leaf that the graph makes; None for any other tensor."""
        known = self._slots.get(id(value.fake))
        return None if known is None else known[1]

    def are_returned(self, outputs: Iterable[fx.Node], tensors: Iterable[Tensor]) -> bool:
        """Whether a leaf that the graph makes comes out of it, or something that leads to no other leaves. Where others
        are led to as well, nobody can see whether a gradient reaches one that has gone."""
        nodes = set(outputs) if self._slots else set()
        returned = [value.fake for value in tensors if value.node in nodes and value.fake.requires_grad]
        if any(id(fake) in self._slots for fake in returned):
            return True
        return any(all(id(leaf) in self._slots for leaf in leaves_of([fake])) for fake in returned)
